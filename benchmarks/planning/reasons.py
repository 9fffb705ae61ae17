"""Why no placement of all models is possible, and the smallest changes after which one is."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from backends.engine.profiles import MIN_CONTEXT_TOKENS
from benchmarks.planning.problem import PlanningProblem
from policies.placement.feasibility import Obstacle, obstacles, weights_name
from policies.placement.packing import pack
from policies.placement.types import Cluster, Model, Pool


def reasons(problem: PlanningProblem, *, pipelines: bool = True) -> list[str]:
    """One line each; none if all models can be placed. Each change is tried with the groups of unlike GPUs that it allows. Without
    `pipelines` (for a batch) a group has one stage."""

    def cluster_of(some: PlanningProblem) -> Cluster:
        pools = some.cluster.pools
        return some.cluster if pipelines else Cluster(tuple(map(_without_pipelines, pools)))

    if pack(problem.models, cluster_of(problem)) is not None:
        return []
    equal = replace(problem, unlike=())
    places = {model.name: place for place, model in enumerate(equal.models)}

    def fits(models: Sequence[Model], cluster: Cluster, most_tokens: int = sys.maxsize) -> bool:
        configs = []
        for model in models:
            config = equal.model_configs[places[model.name]]
            if model.precision != equal.models[places[model.name]].precision:
                config = config.model_copy(update={"weights": weights_name(model.precision)})
            configs.append(config)
        pools = tuple(
            pool.model_copy(update={"gpus": changed.gpus})
            for pool, changed in zip(equal.cluster_config.pools, cluster.pools, strict=True)
        )
        config_of_all = equal.cluster_config.model_copy(update={"pools": pools})
        changed = replace(
            equal,
            cluster_config=config_of_all,
            model_configs=tuple(configs),
            longest_tokens={
                name: min(longest, most_tokens) for name, longest in equal.longest_tokens.items()
            },
        )
        if pipelines:
            changed = changed.with_unlike_groups()
        return pack(changed.models, cluster_of(changed)) is not None

    def shorter(obstacle: Obstacle) -> Obstacle:
        """With the longest context that fits as a change, where one does."""
        models = [equal.models[places[name]] for name in obstacle.models]
        longest = max(equal.longest_tokens.get(name, 0) for name in obstacle.models)
        tokens = range(MIN_CONTEXT_TOKENS, longest)
        most = bisect_left(tokens, True, key=lambda each: not fits(models, equal.cluster, each)) - 1
        if most < 0:
            return obstacle
        change = f"context_tokens: {tokens[most]} (requests have up to {longest})"
        return replace(obstacle, changes=(change, *obstacle.changes))

    found = obstacles(equal.models, cluster_of(equal), fits)
    if pipelines:
        found = [shorter(each) for each in found]
    if problem.unlike and all(len(each.models) > 1 for each in found):
        groups = ", ".join(f"{group.model} takes {group.name}" for group in problem.unlike)
        found = [replace(each, limit=f"too few GPUs are left where {groups}") for each in found]
    return list(map(str, found))


def _without_pipelines(pool: Pool) -> Pool:
    return replace(pool, kind=replace(pool.kind, max_pipeline=1))
