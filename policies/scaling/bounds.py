"""Applies a pool's bounds and its cool-down to the decisions of any scaler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from policies.scaling.types import Observation, Scaler, ScalingPool


class Bounded(Scaler):
    """A scaler whose decisions are kept between `min_instances` and `max_instances`. A pool that grew does not shrink for
    `cooldown_s`. If requests wait for a model without instances, its cheapest pool gets one."""

    def __init__(self, scaler: Scaler, pools: Sequence[ScalingPool]) -> None:
        self._scaler = scaler
        self._pools = pools
        self._grew_at: dict[str, float] = {}
        self._before: dict[str, int] = {}

    def learn(self, past: Observation) -> None:
        """Pass the past on."""
        self._scaler.learn(past)

    def desired(self, observation: Observation) -> Mapping[str, int]:
        """The number of instances for each pool by name, within its bounds."""
        wanted = dict(self._scaler.desired(observation))
        self._wake(wanted, observation)
        return {pool.name: self._bounded(pool, wanted[pool.name], observation) for pool in self._pools}

    def _bounded(self, pool: ScalingPool, wanted: int, observation: Observation) -> int:
        now_s, current = observation.now_s, observation.pools[pool.name].current
        if current > self._before.get(pool.name, 0):  # it may have grown by other hands
            self._grew_at[pool.name] = now_s
        cooling = now_s - self._grew_at.get(pool.name, -math.inf) < pool.cooldown_s
        number = max(wanted, current) if cooling else wanted
        number = min(max(number, pool.min_instances), pool.max_instances)
        if number > current:
            self._grew_at[pool.name] = now_s
        self._before[pool.name] = max(number, current)
        return number

    def _wake(self, wanted: dict[str, int], observation: Observation) -> None:
        for model, load in observation.models.items():
            pools = [pool for pool in self._pools if pool.model == model]
            if load.queued and pools and not any(wanted[pool.name] for pool in pools):
                first = min(pools, key=lambda pool: (pool.usd_per_hour, pool.gpus, pool.name))
                wanted[first.name] = 1
