"""AlpaServe's planner, and AlpaServe*: Li et al., "AlpaServe: Statistical Multiplexing with Model Parallelism for
Deep Learning Serving", OSDI '23, section 4.2; github.com/alpa-projects/mms (`ModelParallelismSearch`).

Each candidate of `equal_groups` is filled with replicas, greedily or by a beam, by simulating the requests; the best
score wins.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement.candidates import equal_groups
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator, Outcome
from policies.placement.types import Cluster, Group, Model, Placement


def score(outcome: Outcome) -> float:
    """AlpaServe's: attainment, then mean latency, then replicas, in one number."""
    return outcome.attainment - outcome.mean_latency_s / 1e4 + outcome.placement.replicas / 1e6


def alpaserve(
    cluster: Cluster,
    models: Sequence[Model],
    evaluate: Evaluator,
    *,
    beam: int | None = None,
    only: frozenset[int] | None = None,
) -> Outcome:
    """AlpaServe's plan. `beam`: search with this many placements side by side instead of greedily (AlpaServe uses 3).
    `only`: place no other models."""
    fit = Fit(models, only)
    starts = equal_groups(cluster)
    if beam is None:
        placements = [greedy(start, fit, evaluate) for start in starts]
    else:
        placements = [beam_search(start, fit, evaluate, beam) for start in starts]
    return max(map(evaluate, placements), key=score)


def alpaserve_star(cluster: Cluster, models: Sequence[Model], evaluate: Evaluator) -> Outcome | None:
    """AlpaServe*: every group runs every model, so that each request has a replica. None if no candidate has the
    memory for it (`feasibility` says why)."""
    fit = Fit(models)
    everything = tuple(range(len(models)))
    found = [
        evaluate(Placement(tuple(Group(group.shape, everything) for group in start)))
        for start in equal_groups(cluster)
        if all(fit.holds(group.shape, everything) for group in start)
    ]
    return max(found, key=score, default=None)


def greedy(start: Placement, fit: Fit, evaluate: Evaluator, at_once: int = 1) -> Placement:
    """Add replicas until nothing fits. Each time simulate, take the group with the fewest requests, and add the model with the
    most unserved requests that fits there. Of equal groups the first, of equal models the last. Large clusters are filled sooner
    with `at_once` replicas for each simulation."""
    placement = start
    while (added := _added(placement, fit, evaluate, at_once)) is not None:
        placement = added.sorted()
    return placement


def _added(placement: Placement, fit: Fit, evaluate: Evaluator, count: int) -> Placement | None:
    outcome = evaluate(placement)
    unserved: list[float] = list(evaluate.unserved(outcome))
    each = sum(unserved) / count  # what a replica takes over, so that `count` of them are for several models
    added = 0
    for place in sorted(range(len(placement.groups)), key=lambda place: outcome.sent[place]):
        group = placement.groups[place]
        for model in sorted(range(len(unserved)), key=lambda model: (-unserved[model], -model)):
            if fit.allows(group, model):
                placement = placement.replacing(place, group.adding(model))
                unserved[model] -= each
                added += 1
                break
        if added == count:
            break
    return placement if added else None


def beam_search(start: Placement, fit: Fit, evaluate: Evaluator, width: int) -> Placement:
    """Add one replica in every possible way and keep the `width` best placements, until nothing fits. Returns the best of
    all steps."""
    beam = [start]
    best = evaluate(start)
    visited: set[Placement] = set()
    while beam:
        plans = []
        for placement in beam:
            for added in _every_addition(placement, fit):
                if added not in visited:
                    visited.add(added)
                    plans.append(evaluate(added))
        plans.sort(key=score, reverse=True)
        beam = [plan.placement for plan in plans[:width]]
        best = max([best, *plans[:width]], key=score)
    return best.placement


def _every_addition(placement: Placement, fit: Fit) -> list[Placement]:
    return [
        placement.replacing(place, group.adding(model)).sorted()
        for place, group in enumerate(placement.groups)
        for model in range(len(fit.models))
        if fit.allows(group, model)
    ]
