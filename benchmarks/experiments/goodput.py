"""What parts of the predictors are worth in goodput: the same traffic with each part left out or replaced.

Emulated engines are exactly as the profiles of the fleet file say, which is the best case of the physical estimate. So there
are fleets whose engines are unlike their profiles (constants drawn as for training data), and fleets that name none. All
predictors of a draw meet the same requests and the same engines, and differences are taken draw by draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import fsum
from pathlib import Path
from random import Random
from typing import Literal

from benchmarks.compare import pool
from benchmarks.compare.summary import summary_of
from benchmarks.datasets.emulated import true_engine
from benchmarks.experiments import charts
from benchmarks.experiments.predictor_parts import Parts
from benchmarks.experiments.report import Results, Section, Value, interval
from benchmarks.measures import Interval, difference
from benchmarks.scenarios import Scenario, load_scenario
from benchmarks.simulator import Simulation, arrivals, open_fleet
from benchmarks.workloads.format import WorkloadRequest

POLICIES = ("latency", "slo")
#: An E2E target in place of those of TTFT and TPOT: the time of an answer of so many tokens that just meets both.
_E2E_TOKENS = 100
#: Means of answers' lengths are taken of another draw.
_OTHER_DRAW = 1000
Profiles = Literal["fit", "unlike", "none"]


@dataclass(frozen=True)
class Case:
    """A fleet and its load. `profiles`: the engines are as the fleet file says, unlike that, or it names no profiles. `e2e`:
    the SLO is of E2E. With `data` the scenario's full form is played, of which only `prompts` count."""

    name: str
    scenario: str
    rate_per_s: float
    profiles: Profiles = "fit"
    e2e: bool = False
    data: Path | None = None
    prompts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Trial:
    """One run of `requests` requests."""

    case: Case
    predictor: str
    parts: Parts
    policy: str
    seed: int
    requests: int


#: Shares and rates of one run: attainment, goodput (requests/s), median relative error of TTFT, share of TTFTs within p95.
Outcome = Mapping[str, float | None]


def run(trial: Trial) -> Outcome:
    """Play it on virtual time."""
    case, config = trial.case, _scenario(trial.case.scenario, trial.case.data).fleet
    random = Random(f"{trial.seed}/engines")
    named = open_fleet(config)
    true = {name: true_engine(random, each) for name, each in sorted(named.profiles.items())}
    fleet = open_fleet(config, true) if case.profiles == "unlike" else named
    predictor = trial.parts.predictor(config, partial(_mean_tokens, case, trial.seed))
    simulation = Simulation(fleet, seed=trial.seed, predictor=predictor)
    for instance in simulation.scheduler.instances.values():
        known = {} if case.profiles == "none" else {
            model: named.profiles[profile.name] for model, profile in instance.profiles.items()
        }  # fmt: skip
        instance.profiles = known
    requests = _requests(case, trial.seed)[: trial.requests]
    summary = summary_of(
        simulation.run(trial.parts.arrivals(config, arrivals(requests, fleet, policy=trial.policy)))
    )
    return {
        "attainment": summary["attainment"],
        "goodput_per_s": summary["goodput_per_s"],
        "error": summary["prediction"]["ttft_p50_median_relative_error"],
        "within_p95": summary["prediction"]["ttft_p95_coverage"],
    }


@cache
def _scenario(name: str, data: Path | None) -> Scenario:
    return load_scenario(name, small=data is None)


@cache
def _drawn(name: str, data: Path | None, seed: int) -> Sequence[WorkloadRequest]:
    environment = {} if data is None else {"HEADWAY_DATA": str(data)}
    return _scenario(name, data).requests(seed, environment)[1]


@cache
def _requests(case: Case, seed: int) -> Sequence[WorkloadRequest]:
    """The draw of a seed at the case's rate."""
    drawn = _drawn(case.scenario, case.data, seed)
    found = [each for each in drawn if case.data is None or each.prompt in case.prompts]
    first_s, last_s = found[0].arrival_s, found[-1].arrival_s
    stretch = (len(found) - 1) / (last_s - first_s) / case.rate_per_s
    return [
        replace(each, arrival_s=(each.arrival_s - first_s) * stretch, routing=_routing(each, case.e2e))
        for each in found
    ]


def _routing(request: WorkloadRequest, e2e: bool) -> Mapping[str, object] | None:
    routing = dict(request.routing or {})
    slo = routing.get("slo")
    if e2e and slo:
        routing["slo"] = {"e2e_ms": slo["ttft_ms"] + _E2E_TOKENS * slo["tpot_ms"]}
    return routing or None


@cache
def _mean_tokens(case: Case, seed: int) -> Mapping[str, float]:
    found = _requests(case, seed + _OTHER_DRAW)
    means = {}
    for each in _scenario(case.scenario, case.data).fleet.models:
        lengths = [
            tokens if isinstance(tokens := request.output_tokens, int) else (tokens or {})[each.name]
            for request in found
        ]
        means[each.name] = fsum(lengths) / len(lengths)
    return means


# --- many runs ------------------------------------------------------------------------------------------
Played = Mapping[tuple[str, str, str], Sequence[Outcome]]


def play(
    cases: Sequence[Case], predictors: Mapping[str, Parts], draws: int, requests: int, seed: int
) -> dict[tuple[str, str, str], list[Outcome]]:
    """All predictors in all cases under both policies, by (case, policy, predictor): the outcome of each draw."""
    trials = [
        Trial(case, name, parts, policy, 100 * seed + draw, requests)
        for case in cases
        for policy in POLICIES
        for name, parts in predictors.items()
        for draw in range(draws)
    ]
    outcomes: dict[int, Outcome] = dict(pool.run_local(run, trials, pool.cores()))
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    for at, trial in enumerate(trials):
        found.setdefault((trial.case.name, trial.policy, trial.predictor), []).append(outcomes[at])
    return found


def section(title: str, name: str, text: Sequence[str], found: Played, baseline: str) -> Section:
    """Tables and figures of what was played; differences are to the predictor `baseline`."""
    rows: list[dict[str, Value]] = []
    lanes: dict[str, dict[str, list[charts.Lane]]] = {policy: {} for policy in POLICIES}
    for (case, policy, predictor), outcomes in found.items():
        row: dict[str, Value] = {
            "fleet": case,
            "policy": policy,
            "predictor": predictor,
            "TTFT: median error (%)": _mean(outcomes, "error", 100),
            "TTFT: within p95 (%)": _mean(outcomes, "within_p95", 100),
            "attainment (%)": _mean(outcomes, "attainment", 100),
            "goodput (requests/s)": _mean(outcomes, "goodput_per_s"),
        }
        rows.append(row)
        if predictor == baseline:
            continue
        theirs = found[case, policy, baseline]
        mean, half = _less(outcomes, theirs, "goodput_per_s")
        row[f"goodput less that of {baseline}"] = mean
        row["95 % interval"] = None if mean is None or half is None else interval(mean - half, mean + half)
        mean, half = _less(outcomes, theirs, "attainment")
        if mean is not None and half is not None:
            middle, half = 100 * mean, 100 * half
            lanes[policy].setdefault(predictor, []).append((case, middle, middle - half, middle + half))
    label = f"Attainment less that of {baseline}"
    return Section(
        title,
        text,
        [Results.of(title, rows)],
        [
            charts.lanes(
                f"{name}_{policy}",
                f"{label}, policy {policy}: paired differences with 95 % intervals over the draws",
                f"attainment minus that of {baseline} (percentage points)",
                of_policy,
                zero=True,
            )
            for policy, of_policy in lanes.items()
        ],
    )


def _mean(outcomes: Sequence[Outcome], measure: str, times: float = 1.0) -> float | None:
    mean = Interval.of(each[measure] for each in outcomes).mean
    return None if mean is None else times * mean


def _less(
    ours: Sequence[Outcome], theirs: Sequence[Outcome], measure: str
) -> tuple[float | None, float | None]:
    """The mean of the paired differences, and half the width of its interval."""
    pairs = zip(ours, theirs, strict=True)
    found = Interval.of(difference(one[measure], other[measure]) for one, other in pairs)
    return found.mean, found.half_width
