"""How many replicas a model needs now: its requests in flight and queued, over what one replica takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from router.core.scheduler import Scheduler
from router.core.state import Instance

#: Share of its concurrency at which a replica is well used and has room for bursts.
TARGET_UTILISATION = 0.7


def concurrency(instance: Instance, model: str) -> int | None:
    """Requests that an instance takes at a time: as configured, else by its engine profile; None if unknown."""
    return instance.seats(model) if instance.max_concurrency is None else instance.max_concurrency


@dataclass(frozen=True, slots=True)
class Scaling:
    """One model's replicas. `desired_replicas` is None if no replica's concurrency is known."""

    model: str
    replicas: int
    healthy: int
    in_flight: int
    queued: int
    desired_replicas: int | None


def scaling(
    scheduler: Scheduler, models: list[str], queued_elsewhere: Mapping[str, int] | None = None
) -> list[Scaling]:
    """One entry a model, for the work of all replicas of the router. `queued_elsewhere` are requests queued at the others,
    by model; their requests in flight are counted at the instances."""
    queued = scheduler.queued_by_model()
    queued.update(queued_elsewhere or {})
    found = []
    for model in models:
        instances = [instance for instance in scheduler.fleet.serving(model) if not instance.draining]
        healthy = [instance for instance in instances if instance.healthy]
        known = [slots for instance in instances if (slots := concurrency(instance, model)) is not None]
        in_flight = sum(instance.in_flight for instance in instances)
        desired = None
        if known:
            work = in_flight + queued.get(model, 0)
            desired = max(1, math.ceil(work / (TARGET_UTILISATION * sum(known) / len(known))))
        found.append(Scaling(model, len(instances), len(healthy), in_flight, queued.get(model, 0), desired))
    return found


def desired_replicas(
    scheduler: Scheduler, models: list[str], queued_elsewhere: Mapping[str, int] | None = None
) -> dict[str, int]:
    """`Scaling.desired_replicas` by model, where it is known."""
    wanted = scaling(scheduler, models, queued_elsewhere)
    return {each.model: each.desired_replicas for each in wanted if each.desired_replicas is not None}
