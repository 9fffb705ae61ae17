"""How many instances each model needs: as its pools' scaler has decided, else by its requests in flight and queued, over
what one instance takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from router.config import ScalingConfig
from router.core.scheduler import Scheduler
from router.core.state import Instance

if TYPE_CHECKING:
    from policies.scaling.types import Observation

#: Share of its concurrency at which a replica is well used and has room for bursts.
TARGET_UTILISATION = 0.7


def concurrency(instance: Instance, model: str) -> int | None:
    """Requests that an instance takes at a time: as configured, else by its engine profile; None if unknown."""
    return instance.seats(model) if instance.max_concurrency is None else instance.max_concurrency


@dataclass(frozen=True, slots=True)
class Decision:
    """What a scaler has decided: the number of instances `wanted` by pool, on an observation. `here`: at this replica."""

    observation: Observation
    wanted: Mapping[str, int]
    here: bool


@dataclass(frozen=True, slots=True)
class Scaling:
    """One model's replicas. `desired_replicas` is the sum over the model's pools. Without pools it comes from the requests,
    and is None if no replica's concurrency is known."""

    model: str
    replicas: int
    healthy: int
    in_flight: int
    queued: int
    desired_replicas: int | None


def scaling(
    scheduler: Scheduler,
    models: list[str],
    queued: Mapping[str, int],
    wanted: Mapping[str, int],
) -> list[Scaling]:
    """One entry a model, for the work of all replicas of the router. `queued` are their waiting requests by model; those
    in flight are counted at the instances. `wanted` are the decided numbers of instances by model."""
    found = []
    for model in models:
        instances = [each for each in scheduler.fleet.serving(model) if not (each.draining or each.starting)]
        healthy = [instance for instance in instances if instance.healthy]
        known = [slots for instance in instances if (slots := concurrency(instance, model)) is not None]
        in_flight = sum(instance.in_flight for instance in instances)
        desired = wanted.get(model)
        if desired is None and known:
            work = in_flight + queued.get(model, 0)
            desired = max(1, math.ceil(work / (TARGET_UTILISATION * sum(known) / len(known))))
        found.append(Scaling(model, len(instances), len(healthy), in_flight, queued.get(model, 0), desired))
    return found


def wanted_by_model(config: ScalingConfig, decision: Decision | None) -> dict[str, int]:
    """The decided numbers of instances, summed over the pools of each model."""
    sums: dict[str, int] = {}
    if decision is not None:
        for pool in config.pools:
            sums[pool.model] = sums.get(pool.model, 0) + decision.wanted.get(pool.name, 0)
    return sums


def pools(config: ScalingConfig, decision: Decision | None) -> list[dict[str, Any]]:
    """One entry a pool, as of the last decision."""
    if decision is None:
        return []
    loads = decision.observation.pools
    return [
        {
            "pool": pool.name,
            "model": pool.model,
            "hardware": pool.instance.hardware,
            "desired": decision.wanted[pool.name],
            **asdict(loads[pool.name]),
            "min_instances": pool.min_instances,
            "max_instances": pool.max_instances,
        }
        for pool in config.pools
        if pool.name in loads and pool.name in decision.wanted
    ]
