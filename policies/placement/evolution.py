"""AlpaServe's evolutionary search: improves a plan by random changes of many placements side by side.

github.com/alpa-projects/mms (`evolutionary_search`): in each step, placements are drawn by attainment and changed
(two groups merged 8 %, one split 8 %, each replica replaced 5 %, by a model drawn by its unserved requests). Unlike
there, a change that does not fit into memory is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.placement.changes import holding
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator, Outcome
from policies.placement.types import Group, Placement, Shape

#: The chance of each change of a child.
_MERGE, _SPLIT, _REPLACE = 0.08, 0.08, 0.05


def evolve(
    plan: Outcome,
    fit: Fit,
    evaluate: Evaluator,
    random: Random,
    *,
    steps: int = 200,
    population: int = 1024,
) -> Outcome:
    """The plan with the highest attainment of all steps, the given one included. Each step draws `population` children. The
    defaults are AlpaServe's."""
    best = plan
    plans = [plan]
    for _ in range(steps):
        weights = [each.attainment for each in plans]
        if not any(weights):
            return best
        parents = random.choices(plans, weights, k=population)
        children = [_child(parent, fit, evaluate, random) for parent in parents]
        plans = list(map(evaluate, children))
        best = max([best, *plans], key=lambda each: each.attainment)
        plans.append(best)
    return best


def _child(parent: Outcome, fit: Fit, evaluate: Evaluator, random: Random) -> Placement:
    placement = parent.placement
    unserved = [float(count) for count in evaluate.unserved(parent)]
    if random.random() < _MERGE:
        placement = _merge(placement, fit, random, unserved)
    if random.random() < _SPLIT:
        placement = _split(placement, fit, random, unserved)
    return _replace(placement, fit, random, unserved).sorted()


def _merge(placement: Placement, fit: Fit, random: Random, unserved: list[float]) -> Placement:
    pairs = [
        (one, other)
        for one in range(len(placement.groups))
        for other in range(one + 1, len(placement.groups))
        if placement.groups[one].shape == placement.groups[other].shape
        and 2 * placement.groups[one].shape.pipeline <= placement.groups[one].shape.kind.max_pipeline
    ]
    if not pairs:
        return placement
    one, other = random.choice(pairs)
    old = placement.groups[one].shape
    union = sorted({*placement.groups[one].models, *placement.groups[other].models})
    merged = _filled(Shape(old.kind, old.tensor, 2 * old.pipeline), union, fit, unserved)
    return placement.replacing(other).replacing(one, merged)


def _split(placement: Placement, fit: Fit, random: Random, unserved: list[float]) -> Placement:
    places = [place for place, group in enumerate(placement.groups) if group.shape.pipeline % 2 == 0]
    if not places:
        return placement
    place = random.choice(places)
    group = placement.groups[place]
    shape = Shape(group.shape.kind, group.shape.tensor, group.shape.pipeline // 2)
    ordered = sorted(group.models, key=lambda model: unserved[model])
    halves = [_filled(shape, ordered[start::2], fit, unserved) for start in (0, 1)]
    return placement.replacing(place, *halves)


def _filled(shape: Shape, models: Sequence[int], fit: Fit, unserved: list[float]) -> Group:
    return holding(shape, range(len(fit.models)), fit, unserved, first=models)


def _replace(placement: Placement, fit: Fit, random: Random, unserved: list[float]) -> Placement:
    if not any(unserved):
        return placement
    for place, group in enumerate(placement.groups):
        for old in group.models:
            if random.random() < _REPLACE:
                (new,) = random.choices(range(len(unserved)), unserved)
                smaller = placement.groups[place].dropping(old)
                if fit.allows(smaller, new):
                    placement = placement.replacing(place, smaller.adding(new))
    return placement
