"""Tables and JSON of what was measured."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.measures import difference
from benchmarks.overhead.plan import Result
from benchmarks.overhead.processes import PEERS, Cores
from benchmarks.overhead.scenarios import SCENARIOS, TARGETS, Figure, Measured, Scenario
from benchmarks.terminal import aligned

#: From this share of its core on, the engine or the load generator is what limits a run.
_SATURATED = 0.9
#: From this use by other programs on, in cores, times are disturbed.
_DISTURBED_CORES = 0.2
_LATE_US = 1000.0


@dataclass(frozen=True, slots=True)
class Passes:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Passes | None:
        return cls(median(values), min(values), max(values)) if values else None

    def text(self) -> str:
        if self.least == self.most:
            return digits(self.median)
        return f"{digits(self.median)} ({digits(self.least)}-{digits(self.most)})"


def digits(value: float) -> str:
    """A number with about three digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def over_passes(figure: Figure, target: str, results: Mapping[str, Sequence[Result]]) -> Passes | None:
    """A figure of one target; None where it has none. An added figure is a difference pass by pass."""
    values, direct = (list(map(figure.read, results.get(name, ()))) for name in (target, "direct"))
    if figure.added:
        pairs = [] if target == "direct" else zip(values, direct, strict=False)
        values = [difference(value, base) for value, base in pairs]
    return Passes.of([value for value in values if value is not None])


def text(measured: Measured) -> str:
    parts = [f"{_machine()}; {measured.cores.text()}"]
    parts += [f"without {name}: {reason}" for name, reason in measured.missing.items()]
    for name, results in measured.results.items():
        parts += ["", *_table(SCENARIOS[name], results), *notes(results, measured.cores)]
    parts += ["", *_ratios(measured)]
    parts += [
        "",
        "Medians over the passes (least-most). `added` is less `direct` in the same pass. Chunk times come from",
        "stamps that the engine writes. The gateway streams upstream also when the client does not.",
    ]
    return "\n".join(parts)


def as_json(measured: Measured, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Medians and every raw result."""
    return {
        "machine": _machine(),
        "cores": measured.cores.text(),
        "settings": dict(settings),
        "missing": measured.missing,
        "scenarios": {
            name: {
                "title": SCENARIOS[name].title,
                "figures": {
                    figure.name: {
                        target: asdict(passes)
                        for target in results
                        if (passes := over_passes(figure, target, results)) is not None
                    }
                    for figure in SCENARIOS[name].figures
                },
                "notes": notes(results, measured.cores),
                "passes": {target: [asdict(each) for each in runs] for target, runs in results.items()},
            }
            for name, results in measured.results.items()
        },
    }


def notes(results: Mapping[str, Sequence[Result]], cores: Cores) -> list[str]:
    """What spoils, bounds or disturbs the figures of one scenario."""
    return [*_failures(results), *_limits(results, cores), *_disturbances(results)]


def _failures(results: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    for target, runs in results.items():
        kinds: Counter[str] = Counter()
        for each in runs:
            kinds += Counter({**each.errors, "not ended": each.incomplete})
        if kinds:
            listed = ", ".join(f"{kind}: {count}" for kind, count in kinds.items())
            started = sum(each.started for each in runs)
            yield f"! {target}: {kinds.total()} of {started} answers failed ({listed})"


def _limits(results: Mapping[str, Sequence[Result]], cores: Cores) -> Iterator[str]:
    for target, runs in results.items():
        shares = [_bench_share(each, cores) for each in runs]
        if shares and median(shares) >= _SATURATED:
            what = "is the ceiling of this bench" if target == "direct" else "could do more"
            yield (
                f"! {target} {what}: the engine and the load generator were busy {median(shares):.0%} of their core"
            )


def _bench_share(result: Result, cores: Cores) -> float:
    """How much of its core the busier of engine and load generator used; of their core, if they share one."""
    engine, load = result.bench_cpu_s / result.window_s, result.load_cpu_s / result.window_s
    return engine + load if cores.shared else max(engine, load)


def _disturbances(results: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    foreign = [
        each.foreign_cores for runs in results.values() for each in runs if each.foreign_cores is not None
    ]
    if foreign and median(foreign) >= _DISTURBED_CORES:
        yield (
            f"! other programs used {median(foreign):.1f} cores meanwhile: times are too long; "
            "CPU figures and ratios suffer less"
        )
    for target, runs in results.items():
        late = [each.lag.p99_us for each in runs if each.lag.p99_us is not None]
        if late and median(late) >= _LATE_US:
            yield f"! {target}: the load generator itself sent up to {digits(median(late))} us late (p99)"


def _table(scenario: Scenario, results: Mapping[str, Sequence[Result]]) -> list[str]:
    targets = [target for target in TARGETS if target in results]
    compare = [target for target in ("direct", *PEERS) if target in targets and "headway" in targets]
    rows = [["", *targets, *(f"headway / {target}" for target in compare)]]
    for figure in scenario.figures:
        found = {target: over_passes(figure, target, results) for target in targets}
        if not any(found.values()):
            continue
        row = [figure.name, *(passes.text() if passes else "-" for passes in found.values())]
        rows.append([*row, *(_ratio(found["headway"], found[target]) for target in compare)])
    return [f"{scenario.name}: {scenario.title}", *aligned(rows)]


#: What the gateway is judged by, beside its peers: scenario, figure, target.
_JUDGED = (
    ("json-max", "requests/s", "headway"),
    ("json-max", "requests/s", "when_needed"),
    ("json-max", "requests/s", "slo"),
    ("streams", "added TTFT p50 us", "headway"),
    ("streams", "CPU us a chunk", "headway"),
    ("streams-max", "chunks/s", "headway"),
    ("json", "added p99 us", "headway"),
    ("idle", "PSS MiB", "headway"),
    ("hold", "PSS MiB", "headway"),
)


def _ratios(measured: Measured) -> list[str]:
    """The figures of `_JUDGED` in units of each peer's."""
    peers = [peer for peer in PEERS if any(peer in results for results in measured.results.values())]
    rows = [["in units of", *peers]]
    for scenario, name, target in _JUDGED:
        results = measured.results.get(scenario, {})
        figure = next(each for each in SCENARIOS[scenario].figures if each.name == name)
        ours = over_passes(figure, target, results)
        if ours is not None:
            theirs = [over_passes(figure, peer, results) for peer in peers]
            rows.append([f"{scenario}: {name}, {target}", *(_ratio(ours, each) for each in theirs)])
    return aligned(rows) if peers and len(rows) > 1 else []


def _ratio(ours: Passes | None, theirs: Passes | None) -> str:
    comparable = ours is not None and theirs is not None and theirs.median > 0
    return f"{ours.median / theirs.median:.2f}" if comparable and ours and theirs else "-"


def _machine() -> str:
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )
