"""`concurrency`: the formula of Kubernetes' horizontal pod autoscaler on requests in flight.

desired = ceil(current * value / target), where the value is the mean number of requests for each ready instance. A ratio
within the tolerance of 1 changes nothing. A pool shrinks only to the largest wish of the stabilisation window. In 15 s it
grows by 4 instances or to twice its number, whichever is more.
Source: kubernetes.io, "Horizontal Pod Autoscaling": algorithm details, stabilization window, default behavior.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.scaling.demand import concurrency, queue_shares
from policies.scaling.types import Observation, Scaler, ScalingPool
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


class ConcurrencyScaler(Scaler):
    def __init__(self, pools: Sequence[ScalingPool], settings: ConcurrencySettings) -> None:
        self._pools = pools
        self._settings = settings
        self._shares = queue_shares(pools)
        self._wishes = {pool.name: Window(settings.window_s) for pool in pools}
        self._counts = {pool.name: Window(_PERIOD_S) for pool in pools}

    def desired(self, observation: Observation) -> Mapping[str, int]:
        return {pool.name: self._of(pool, observation) for pool in self._pools}

    def _of(self, pool: ScalingPool, observation: Observation) -> int:
        settings, load = self._settings, observation.pools[pool.name]
        total = concurrency(observation, pool, self._shares[pool.name])
        current, target = load.current, settings.utilization * pool.concurrency
        ratio = total / (target * (load.ready or 1))
        wish = current
        if abs(ratio - 1) > settings.tolerance:
            wish = math.ceil(total / target - 1e-9)
        self._wishes[pool.name].add(observation.now_s, wish)
        self._counts[pool.name].add(observation.now_s, current)
        if wish <= current:
            return min(current, int(self._wishes[pool.name].greatest))
        before = int(self._counts[pool.name].least)
        return max(current, min(wish, max(before + _PODS, before * _FACTOR)))
