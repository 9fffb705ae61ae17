"""`queue`: steps by the length of the queue.

Above a threshold of waiting requests for each instance a pool grows by a step; after a time without any it shrinks by
one instance. This is what the vLLM production stack's KEDA rule on `vllm:num_requests_waiting` amounts to (threshold 5,
docs.vllm.ai/projects/production-stack, "Autoscaling with KEDA"), with one replica a step as Kubernetes' scaling policy
`type: Pods, value: 1` allows (kubernetes.io, "Horizontal Pod Autoscaling", scaling policies).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.scaling.demand import queue_shares, queued
from policies.scaling.types import Observation, Scaler, ScalingPool


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """More than `threshold` waiting requests for each instance: the pool grows by `step`, at most once in `up_every_s`.
    None for `down_after_s`: it shrinks by one, and the time begins anew."""

    threshold: float = 5.0
    step: int = 1
    up_every_s: float = 15.0
    down_after_s: float = 300.0

    def __post_init__(self) -> None:
        if self.threshold < 0 or self.step < 1:
            raise ValueError("threshold must not be negative, and step at least 1")


class QueueScaler(Scaler):
    def __init__(self, pools: Sequence[ScalingPool], settings: QueueSettings) -> None:
        self._pools = pools
        self._settings = settings
        self._shares = queue_shares(pools)
        self._grew_at: dict[str, float] = {}
        self._empty_since: dict[str, float] = {}

    def desired(self, observation: Observation) -> Mapping[str, int]:
        return {pool.name: self._of(pool, observation) for pool in self._pools}

    def _of(self, pool: ScalingPool, observation: Observation) -> int:
        now_s, settings = observation.now_s, self._settings
        load = observation.pools[pool.name]
        current = load.current
        waiting = queued(observation, pool, self._shares[pool.name])
        if waiting > 0:
            self._empty_since.pop(pool.name, None)
            due_s = self._grew_at.get(pool.name, -math.inf) + settings.up_every_s
            if (not current or waiting > settings.threshold * current) and now_s >= due_s:
                self._grew_at[pool.name] = now_s
                return current + settings.step
            return current
        since_s = self._empty_since.setdefault(pool.name, now_s)
        if now_s - since_s < settings.down_after_s or (current == 1 and load.in_flight):
            return current
        self._empty_since[pool.name] = now_s
        return current - 1
