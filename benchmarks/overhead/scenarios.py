"""What is measured: the loads, pass by pass over all targets in turn, and the figures read off their results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from benchmarks.overhead import processes
from benchmarks.overhead.plan import Plan, Result
from benchmarks.overhead.processes import VARIANTS, Cores, StartError, Target
from router.listening import raise_open_files


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a table. `added` means: less what `direct` showed in the same pass."""

    name: str
    read: Callable[[Result], float | None]
    added: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One `load`, whose times and processes are filled in by `plan`. `direct`: it is measured without a gateway too;
    `variants`: with other fleet files too. `figures` are what it reports."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    load: Plan
    direct: bool = True
    variants: bool = False
    fixed_s: float | None = None  # its measured window, whatever duration was asked for

    def is_for(self, target: str) -> bool:
        if target == "direct":
            return self.direct
        return self.variants or target not in VARIANTS

    def plan(self, target: Target, engine: Target, duration_s: float, rate_per_s: float) -> Plan:
        return replace(
            self.load,
            ports=target.ports,
            duration_s=duration_s if self.fixed_s is None else min(self.fixed_s, duration_s),
            warmup_s=min(0.5, duration_s),
            rate_per_s=rate_per_s if self.load.mode == "open" else 0.0,
            target_pids=() if target is engine else target.pids,
            bench_pids=engine.pids,
        )


def _per(seconds: float, count: int) -> float | None:
    return seconds * 1e6 / count if count and seconds else None


def _times(name: str, of: str) -> tuple[Figure, ...]:
    """p50 and p99 of a `Spread` of the result, and what is added to both."""
    return tuple(
        Figure(f"{added}{name}{share} us", attrgetter(f"{of}.{share}_us"), added=bool(added))
        for added in ("", "added ")
        for share in ("p50", "p99")
    )


_LATENCY, _TTFT, _RELAY = _times("", "latency"), _times("TTFT ", "ttft"), _times("relay ", "relay")
_CPU_A_REQUEST = Figure("CPU us a request", lambda r: _per(r.target_cpu_s, r.answers))
_CPU_A_CHUNK = Figure("CPU us a chunk", lambda r: _per(r.target_cpu_s, r.chunks))
_CHUNKS = Figure("chunks/s", lambda r: r.chunks / r.window_s)
_MEMORY = (Figure("RSS MiB", lambda r: r.rss_mib), Figure("PSS MiB", lambda r: r.pss_mib))

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "idle", "Memory after the start", _MEMORY, Plan("hold", stream=True), direct=False, fixed_s=0.5
        ),
        Scenario(
            "hold",
            "1000 streams held open, a chunk each 500 ms",
            (Figure("streams held", lambda r: float(r.held)), *_MEMORY, _CPU_A_CHUNK),
            Plan("hold", connections=1000, stream=True, chunks=100_000, pace_us=500_000),
            direct=False,
            fixed_s=2.0,
        ),
        Scenario(
            "json",
            "JSON at a fixed rate, open loop, latency from the scheduled instant",
            (*_LATENCY, _CPU_A_REQUEST),
            Plan("open", connections=32),
        ),
        Scenario(
            "json-max",
            "JSON, 32 connections, as fast as it goes",
            (
                Figure("requests/s", lambda r: r.answers / r.window_s),
                Figure("requests/s a core", lambda r: r.answers / r.target_cpu_s if r.target_cpu_s else None),
                _CPU_A_REQUEST,
            ),
            Plan(connections=32),
            variants=True,
        ),
        Scenario(
            "streams",
            "64 streams, a chunk each 10 ms, 64 chunks a stream",
            (*_TTFT, *_RELAY, _CPU_A_CHUNK),
            Plan(connections=64, stream=True, chunks=64, pace_us=10_000),
        ),
        Scenario(
            "streams-max",
            "384 streams, a chunk each 10 ms: 38,400 chunks/s offered",
            (_CHUNKS, _CPU_A_CHUNK, *_RELAY[:2]),
            Plan(connections=384, stream=True, chunks=64, pace_us=10_000),
        ),
    )
}

TARGETS = ("direct", *processes.PEERS, "headway", *VARIANTS)


@dataclass(slots=True)
class Measured:
    """Results by scenario and target, one a pass; `missing` has the reason by target that did not start."""

    cores: Cores
    results: dict[str, dict[str, list[Result]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def measure(
    scenarios: Sequence[Scenario],
    *,
    targets: Sequence[str] = TARGETS,
    passes: int,
    duration_s: float,
    rate_per_s: float,
    on_run: Callable[[str], None] = lambda run: None,
) -> Measured:
    """Measure; `on_run` gets each run's name before it starts. Every pass starts its processes afresh, and
    the order of the targets rotates. Raises StartError if anything but a peer does not start."""
    raise_open_files()
    measured = Measured(Cores.here())
    for number in range(passes):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-overhead-")))
            engine = stack.enter_context(processes.upstream(measured.cores))
            running = dict(_start(stack, engine, targets, folder, measured))
            for scenario in scenarios:
                by_target = measured.results.setdefault(scenario.name, {})
                names = [name for name in running if scenario.is_for(name)]
                turn = number % len(names) if names else 0
                for name in names[turn:] + names[:turn]:
                    on_run(f"pass {number + 1}: {scenario.name}, {name}")
                    plan = scenario.plan(running[name], engine, duration_s, rate_per_s)
                    by_target.setdefault(name, []).append(processes.generate(plan, measured.cores))
    return measured


def run_count(scenarios: Sequence[Scenario], targets: Sequence[str], passes: int) -> int:
    """How many runs `measure` makes if every target starts."""
    return passes * sum(len([name for name in targets if scenario.is_for(name)]) for scenario in scenarios)


def _start(
    stack: ExitStack, engine: Target, targets: Sequence[str], folder: Path, measured: Measured
) -> Iterator[tuple[str, Target]]:
    for name in TARGETS:
        if name not in targets or name in measured.missing:
            continue
        own = folder / name
        own.mkdir()
        if name == "direct":
            yield name, engine
        elif name in processes.PEERS:
            try:
                yield name, stack.enter_context(processes.peer(name, engine, own, measured.cores))
            except StartError as error:
                measured.missing[name] = str(error)
        else:
            fleet = processes.fleet_of(engine, own, name)
            yield name, stack.enter_context(processes.gateway(fleet, own, measured.cores))
