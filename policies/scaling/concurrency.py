"""`concurrency`: the formula of Kubernetes' horizontal pod autoscaler on requests in flight.

desired = ceil(current * value / target), where the value is the mean number of requests for each ready instance. A ratio
within the tolerance of 1 changes nothing. A pool shrinks only to the largest wish of the stabilisation window. In 15 s it
grows by 4 instances or to twice its number, whichever is more.
Source: kubernetes.io, "Horizontal Pod Autoscaling": algorithm details, stabilization window, default behavior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.scaling.types import PoolLoad, ScalingPool
from policies.scaling.windows import Window

#: The default policies of growth: within this time 4 pods or 100 %.
_PERIOD_S, _PODS, _FACTOR = 15.0, 4, 2


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """`utilization`: the target as a share of what an instance takes at a time. `window_s`: the stabilisation window."""

    utilization: float = 0.7
    tolerance: float = 0.1
    window_s: float = 300.0

    def __post_init__(self) -> None:
        if self.utilization <= 0:
            raise ValueError("utilization must be above 0")


class ConcurrencyScaler:
    def __init__(self, pool: ScalingPool, settings: ConcurrencySettings) -> None:
        self._target = settings.utilization * pool.concurrency
        self._tolerance = settings.tolerance
        self._wishes, self._counts = Window(settings.window_s), Window(_PERIOD_S)

    def desired(self, now_s: float, load: PoolLoad, queued: float) -> int:
        total, current = load.in_flight + queued, load.current
        ratio = total / (self._target * (load.ready or 1))
        wish = current
        if abs(ratio - 1) > self._tolerance:
            wish = math.ceil(total / self._target - 1e-9)
        self._wishes.add(now_s, wish)
        self._counts.add(now_s, current)
        if wish <= current:
            return min(current, int(self._wishes.greatest))
        before = int(self._counts.least)
        return max(current, min(wish, max(before + _PODS, before * _FACTOR)))
