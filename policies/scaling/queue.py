"""`queue`: steps by the length of the queue.

Above a threshold of waiting requests for each instance a pool grows by a step; after a time without any it shrinks by
one instance. This is what the vLLM production stack's KEDA rule on `vllm:num_requests_waiting` amounts to (threshold 5,
docs.vllm.ai/projects/production-stack, "Autoscaling with KEDA"), with one replica a step as Kubernetes' scaling policy
`type: Pods, value: 1` allows (kubernetes.io, "Horizontal Pod Autoscaling", scaling policies).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.scaling.types import PoolLoad, ScalingPool


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


class QueueScaler:
    def __init__(self, pool: ScalingPool, settings: QueueSettings) -> None:
        self._settings = settings
        self._grew_at = -math.inf
        self._empty_since: float | None = None

    def desired(self, now_s: float, load: PoolLoad, queued: float) -> int:
        settings, current = self._settings, load.current
        if queued > 0:
            self._empty_since = None
            due_s = self._grew_at + settings.up_every_s
            if (not current or queued > settings.threshold * current) and now_s >= due_s:
                self._grew_at = now_s
                return current + settings.step
            return current
        if self._empty_since is None:
            self._empty_since = now_s
        if now_s - self._empty_since < settings.down_after_s or (current == 1 and load.in_flight):
            return current
        self._empty_since = now_s
        return current - 1
