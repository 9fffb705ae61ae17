"""Whether AlpaServe's method, run again, gives a published placement, and if not, why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reproduce.alpaserve_cases import Case
from benchmarks.reproduce.alpaserve_workload import BURSTS, DEFAULT, IDLE, Assumptions, Workload, workload
from policies.placement.alpaserve import alpaserve, alpaserve_star, score
from policies.placement.feasibility import obstacles
from policies.placement.memory import Fit, gb_per_gpu, group_gb
from policies.placement.outcomes import Outcome
from policies.placement.types import Placement

#: Where the default assumptions never give the published placement: others that do.
_OTHER_ASSUMPTIONS = {("AlpaServe", "regular"): IDLE, ("AlpaServe*", "regular"): BURSTS}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """`seeds`: those of `tried` whose requests give the published placement, in a assumptions. `reasons`: what the others
    give in the usual one. An infeasible case is tried once, and its reason is why."""

    seeds: tuple[int, ...]
    tried: int
    assumptions: str
    reasons: tuple[str, ...]


def reproduce(case: Case, data: Path, seeds: int, requests: int) -> Reproduction:
    """Run the case's own algorithm for many seeds."""
    if not case.groups:
        return _infeasible(case, workload(case, DEFAULT, 0, requests, data))
    found, reasons = _seeds(case, DEFAULT, data, seeds, requests)
    assumptions = DEFAULT
    other = _OTHER_ASSUMPTIONS.get((case.algorithm, case.model_set))
    if not found and other is not None:
        assumptions = other
        found, _ = _seeds(case, other, data, seeds, requests)
    return Reproduction(found, seeds, assumptions.name, reasons)


def _infeasible(case: Case, load: Workload) -> Reproduction:
    refused = _planned(load) is None
    reasons = tuple(map(str, obstacles(case.models, load.cluster)))
    return Reproduction((0,) if refused and reasons else (), 1, DEFAULT.name, reasons)


def _planned(load: Workload) -> Outcome | None:
    method = alpaserve_star if load.case.star else alpaserve
    return method(load.cluster, load.case.models, load.evaluator())


def _seeds(
    case: Case, assumptions: Assumptions, data: Path, seeds: int, requests: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    found = []
    reasons: Counter[str] = Counter()
    for seed in range(seeds):
        load = workload(case, assumptions, seed, requests, data)
        plan = _planned(load)
        published = case.published(load.kind)
        if plan is not None and plan.placement == published:
            found.append(seed)
        else:
            reasons[_reason(load, published, plan)] += 1
    return tuple(found), tuple(f"{count} x {reason}" for reason, count in reasons.most_common())


def _reason(load: Workload, published: Placement, plan: Outcome | None) -> str:
    fit = Fit(load.case.models)
    evaluate = load.evaluator()
    if plan is None:
        return "no candidate holds every model"
    if not fit.valid(published):
        return "the published placement does not fit"
    if not load.case.star and (room := _room(published, fit)):
        return f"the published placement has room for {room}: the method would not end there"
    if score(plan) >= score(evaluate(published)):
        return f"{_shapes(plan.placement)} scores higher"
    return _passed_by(fit, published, load.arrivals.counts)


def _passed_by(fit: Fit, published: Placement, counts: tuple[int, ...]) -> str:
    """Why the greedy never meets a placement that would score higher."""
    for left_out in sorted(set(range(len(fit.models))) - published.placed):
        own = fit.models[left_out]
        for model in sorted(published.placed):
            other = fit.models[model]
            if other.gb > own.gb / 2 and counts[left_out] > counts[model]:
                return f"{own.name} has more requests than a {other.name}, so the greedy places it first"
    return "the greedy passes it by"


def _room(placement: Placement, fit: Fit) -> str:
    """A replica that a placement could take within the memory that its fullest group uses."""
    most = max(group_gb(fit.models, group) for group in placement)
    for group in placement:
        for model, one in enumerate(fit.models):
            total = group_gb(fit.models, group) + gb_per_gpu(one, group.shape)
            if fit.allows(group, model) and total <= most:
                where = f"beside models {','.join(map(str, group.models))}"
                return f"{one.name} {where} ({total:.2f} GB a GPU, another group has {most:.2f})"
    return ""


def _shapes(placement: Placement) -> str:
    counts = Counter((group.shape.tensor, group.shape.pipeline) for group in placement)
    return " + ".join(f"{count} x ({tensor},{pipeline})" for (tensor, pipeline), count in counts.items())
