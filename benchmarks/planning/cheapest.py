"""The cheapest placement of all models: a small integer program, of the smallest group of each model in each pool."""

from __future__ import annotations

from benchmarks.planning.problem import PlanningProblem
from policies.placement.candidates import every_shape
from policies.placement.memory import Fit
from policies.placement.types import Group, Placement


def cheapest(problem: PlanningProblem) -> Placement:
    """One replica of each model. For a problem without `reasons`: then there is a placement."""
    from scipy.optimize import LinearConstraint, milp

    fit, models, pools = Fit(problem.models), range(len(problem.models)), problem.cluster.pools
    options = [
        (model, pool, min(held, key=lambda shape: (shape.gpus, shape.pipeline)))
        for model in models
        for pool in pools
        if (held := [shape for shape in every_shape(pool) if fit.holds(shape, [model])])
    ]
    once = [[float(model == each) for model, _, _ in options] for each in models]
    gpus = [[float(shape.gpus * (pool is each)) for _, pool, shape in options] for each in pools]
    found = milp(
        [shape.usd_per_hour for _, _, shape in options],
        integrality=[1] * len(options),
        constraints=[
            LinearConstraint(once, 1.0, 1.0),
            LinearConstraint(gpus, 0.0, [float(pool.gpus) for pool in pools]),
        ],
    )
    taken = zip(options, found.x, strict=True)
    return Placement(
        tuple(Group(shape, (model,)) for (model, _, shape), share in taken if share > 0.5)
    ).sorted()
