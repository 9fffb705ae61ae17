"""All oracles for one workload at one rate over one fleet, as a comparison's report takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from benchmarks.measures import offered_period_s
from benchmarks.oracles.bound import goodput_upper_bound
from benchmarks.oracles.clairvoyant import Effort, search
from benchmarks.oracles.quality_cost import frontier
from benchmarks.oracles.schedule import Job
from benchmarks.oracles.truth import Truth
from benchmarks.simulator import Arrival, Fleet, InstanceLoss, Result
from benchmarks.workloads.format import WorkloadError


@dataclass(frozen=True, slots=True)
class Efforts:
    """`search` bounds the search, `levels` and `part_requests` are those of the bound."""

    search: Effort
    levels: int
    part_requests: int


class OracleFault(RuntimeError):
    """A schedule has passed the bound: the bound, the simulator or the search is wrong, not the input."""


EFFORTS = {
    "brief": Efforts(Effort(2_000, 10.0), levels=2, part_requests=4_000),
    "quick": Efforts(Effort(10_000, 60.0), levels=2, part_requests=4_000),
    "normal": Efforts(Effort(100_000, 300.0), levels=3, part_requests=8_000),
    "thorough": Efforts(Effort(1_000_000, 1_800.0), levels=5, part_requests=20_000),
}


def oracles(
    fleet: Fleet,
    arrivals: Sequence[Arrival],
    results_by_policy: Mapping[str, Result],
    *,
    effort: str | Efforts = "normal",
    seed: int = 0,
    losses: Sequence[InstanceLoss] = (),
) -> dict[str, Any]:
    """What was possible for `arrivals` over `fleet`, as a report keeps it. `results_by_policy` are runs of the same arrivals: the
    search starts from the best of them and never ends below it. `effort` is a key of EFFORTS or an own one. The clairvoyant knows
    the `losses` of the runs; the bound is that of a fleet without them. Raises WorkloadError for an unknown effort, and for runs of
    other workloads; OracleFault when a schedule passes the bound.

    `goodput_upper_bound_per_s` and `attainment_upper_bound` hold for every schedule; `bound_parts` is the number of pieces that the
    bound was made of. `clairvoyant` is the best schedule known: `met` of `offered` requests keep their SLO when it is served. Its
    `start` is the policy that the search started from; `improved` is false where the search found nothing better, or did not run.
    Shares and rates are None where no request has an SLO, rates also where all arrive at once.
    """
    chosen = EFFORTS.get(effort) if isinstance(effort, str) else effort
    if chosen is None:
        raise WorkloadError(f"unknown effort {effort!r} (known: {', '.join(EFFORTS)})")
    for name, result in results_by_policy.items():
        if len(result) != len(arrivals):
            raise WorkloadError(f"the run of {name} has {len(result)} requests, the workload {len(arrivals)}")
    truth = Truth(fleet, arrivals, losses)
    began = perf_counter()
    bound = goodput_upper_bound(truth, part_requests=chosen.part_requests, levels=chosen.levels)
    bound_seconds = perf_counter() - began

    met_by_policy = {
        name: int((result.columns["met"] == 1).sum()) for name, result in results_by_policy.items()
    }
    best = max(sorted(met_by_policy), key=met_by_policy.__getitem__, default=None)
    best_met = 0 if best is None else met_by_policy[best]
    began = perf_counter()
    met, iterations = best_met, 0
    # Nothing to find where no request has an SLO, or the bound is reached.
    if best_met < bound.met:
        start = {} if best is None else schedule_of(truth, results_by_policy[best])
        found = search(truth, start, bound.wanted, chosen.search, seed)
        met, iterations = max(best_met, found.met), found.iterations
    if met > bound.met:
        who = f"the run of {best}" if met == best_met else "the clairvoyant schedule"
        raise OracleFault(
            f"{who} keeps the SLO of {met} requests and the upper bound is {bound.met}: a fault of this program "
            "(its bound, engine model or search), not of the input"
        )
    period_s = offered_period_s(sorted(each.request.arrived_at for each in arrivals))
    offered = bound.offered

    def per_s(count: int) -> float | None:
        return count / period_s if offered and period_s else None

    return {
        "goodput_upper_bound_per_s": per_s(bound.met),
        "attainment_upper_bound": bound.attainment,
        "bound_met": bound.met,
        "bound_parts": bound.parts,
        "bound_seconds": bound_seconds,
        "clairvoyant": {
            "attainment": met / offered if offered else None,
            "goodput_per_s": per_s(met),
            "met": met,
            "offered": offered,
            "iterations": iterations,
            "seconds": perf_counter() - began,
            "start": best,
            "improved": met > best_met,
        },
        "quality_cost": [
            {"quality": quality, "cost_usd_per_request": usd} for quality, usd in frontier(truth).points
        ],
    }


def schedule_of(truth: Truth, result: Result) -> dict[int, Job]:
    """What a policy did, as a schedule: jobs by request, for those that reached an engine."""
    attempts = [{(each.instance, each.model): each for each in some} for some in truth.attempts]
    names = result.models
    place = {name: truth.fleet.names.index(name) for name in result.instances}
    columns = result.columns
    found = {}
    for row in range(len(result)):
        if columns["instance"][row] >= len(result.instances):
            continue
        index = int(columns["index"][row])
        key = (place[result.instances[columns["instance"][row]]], names[columns["model"][row]])
        attempt = attempts[index].get(key)
        if attempt is not None:
            submit_s = float(columns["arrival_s"][row]) + float(columns["queue_wait_s"][row])
            found[index] = Job(submit_s, index, attempt)
    return found
