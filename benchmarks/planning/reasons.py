"""Why no placement of all models is possible, and the smallest changes after which one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.planning.problem import PlanningProblem
from policies.placement.feasibility import obstacles, weights_name
from policies.placement.packing import pack
from policies.placement.types import Cluster, Model


def reasons(problem: PlanningProblem) -> list[str]:
    """One line each; none if all models can be placed. Each change is tried with the groups of unlike GPUs that it allows."""
    if pack(problem.models, problem.cluster) is not None:
        return []
    equal = replace(problem, unlike=())
    places = {model.name: place for place, model in enumerate(equal.models)}

    def fits(models: Sequence[Model], cluster: Cluster) -> bool:
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
            equal, cluster_config=config_of_all, model_configs=tuple(configs)
        ).with_unlike_groups()
        return pack(changed.models, changed.cluster) is not None

    found = obstacles(equal.models, equal.cluster, fits)
    if problem.unlike and all(len(each.models) > 1 for each in found):
        groups = ", ".join(f"{group.model} takes {group.name}" for group in problem.unlike)
        found = [replace(each, limit=f"too few GPUs are left where {groups}") for each in found]
    return list(map(str, found))
