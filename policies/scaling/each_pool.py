"""Scalers that decide for each pool by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from policies.scaling.types import ModelLoad, Observation, PoolLoad, Scaler, ScalingPool


class PoolScaler(Protocol):
    def desired(self, now_s: float, load: PoolLoad, queued: float) -> int:
        """The number of instances for one pool. `queued`: the waiting requests that count for it."""


class EachPool(Scaler):
    """Makes a scaler for each pool, from the pool and the settings. Where several pools serve one model, each is to carry a share
    of its queue, by what its instances take at most."""

    def __init__(
        self, make: Callable[[ScalingPool, Any], PoolScaler], pools: Sequence[ScalingPool], settings: Any
    ) -> None:
        most = [pool.max_instances * pool.concurrency for pool in pools]
        totals: Counter[str] = Counter()
        for pool, own in zip(pools, most, strict=True):
            totals[pool.model] += own
        self._pools = [
            (pool, own / totals[pool.model], make(pool, settings))
            for pool, own in zip(pools, most, strict=True)
        ]

    def desired(self, observation: Observation) -> Mapping[str, int]:
        queued = {
            pool.model: observation.models.get(pool.model, ModelLoad()).queued for pool, *_ in self._pools
        }
        return {
            pool.name: scaler.desired(
                observation.now_s, observation.pools[pool.name], queued[pool.model] * share
            )
            for pool, share, scaler in self._pools
        }
