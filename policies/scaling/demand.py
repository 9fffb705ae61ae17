"""The load of one pool, where several pools serve one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies.scaling.types import Observation, ScalingPool


def queue_shares(pools: Sequence[ScalingPool]) -> Mapping[str, float]:
    """The share of its model's queue that each pool is to carry, by what its instances take at most."""
    totals: dict[str, int] = {}
    for pool in pools:
        totals[pool.model] = totals.get(pool.model, 0) + pool.max_instances * pool.concurrency
    return {pool.name: pool.max_instances * pool.concurrency / totals[pool.model] for pool in pools}


def queued(observation: Observation, pool: ScalingPool, share: float) -> float:
    """The waiting requests that count for a pool."""
    model = observation.models.get(pool.model)
    return 0.0 if model is None else model.queued * share


def concurrency(observation: Observation, pool: ScalingPool, share: float) -> float:
    """The requests that are at a pool or wait for it."""
    return observation.pools[pool.name].in_flight + queued(observation, pool, share)
