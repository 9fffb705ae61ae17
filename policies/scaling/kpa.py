"""`kpa`: Knative's pod autoscaler on concurrency.

The mean concurrency of the stable window (60 s) over the target (70 % of what an instance takes) is the wish. If that of
the panic window (a tenth: 6 s) comes to twice the ready instances, the scaler panics: it takes the larger wish and does
not shrink until a stable window has passed without that. A step grows to 1000 times and shrinks to half of the ready
instances at most. The last instance stays for the grace period of scaling to zero (30 s).
Source: github.com/knative/serving pkg/autoscaler/scaling/autoscaler.go (`Scale`, `New`) and the defaults of
config/core/configmaps/autoscaler.yaml. It decides every 2 s there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.scaling.types import PoolLoad, ScalingPool
from policies.scaling.windows import Window


@dataclass(frozen=True, slots=True)
class KpaSettings:
    """With Knative's defaults and, after their names, its own names for them."""

    utilization: float = 0.7  # container-concurrency-target-percentage
    stable_window_s: float = 60.0  # stable-window
    panic_window_share: float = 0.1  # panic-window-percentage
    panic_threshold: float = 2.0  # panic-threshold-percentage
    max_scale_up_rate: float = 1000.0  # max-scale-up-rate
    max_scale_down_rate: float = 2.0  # max-scale-down-rate
    scale_down_delay_s: float = 0.0  # scale-down-delay
    zero_grace_s: float = 30.0  # scale-to-zero-grace-period

    def __post_init__(self) -> None:
        if self.utilization <= 0 or self.max_scale_up_rate <= 1 or self.max_scale_down_rate <= 1:
            raise ValueError("utilization must be above 0, and the rates above 1")


class KpaScaler:
    """`panic_at`: when it was last over the panic threshold; None while stable."""

    def __init__(self, pool: ScalingPool, settings: KpaSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._stable = Window(settings.stable_window_s)
        self._panic = Window(settings.stable_window_s * settings.panic_window_share)
        self._delayed = Window(settings.scale_down_delay_s)
        self._panic_at: float | None = None
        self._panic_instances = 0
        self._zero_since: float | None = None
        self._began = False

    def desired(self, now_s: float, load: PoolLoad, queued: float) -> int:
        if not self._began:
            self._began = True
            if load.ready > 1:  # it has no history yet, and keeps what there is
                self._panic_at, self._panic_instances = now_s, load.ready
        for window in (self._stable, self._panic):
            window.add(now_s, load.in_flight + queued)
        wanted = self._wanted(load, now_s)
        self._delayed.add(now_s, wanted)
        return self._not_yet_zero(int(self._delayed.greatest), load, now_s)

    def _wanted(self, load: PoolLoad, now_s: float) -> int:
        settings = self._settings
        target = settings.utilization * self._pool.concurrency
        ready = max(1, load.ready)
        most = math.ceil(settings.max_scale_up_rate * ready)
        least = math.floor(ready / settings.max_scale_down_rate)
        by_stable, by_panic = (
            math.ceil(window.mean / target - 1e-9) for window in (self._stable, self._panic)
        )
        stable, panic = (min(max(wish, least), most) for wish in (by_stable, by_panic))
        if by_panic / ready >= settings.panic_threshold:
            self._panic_at = now_s
        elif self._panic_at is not None and self._panic_at + settings.stable_window_s < now_s:
            self._panic_at, self._panic_instances = None, 0
        if self._panic_at is None:
            return stable
        self._panic_instances = max(self._panic_instances, stable, panic)
        return self._panic_instances

    def _not_yet_zero(self, wanted: int, load: PoolLoad, now_s: float) -> int:
        """Keep one instance until the grace period has passed."""
        if wanted or not load.current:
            self._zero_since = None
            return wanted
        if self._zero_since is None:
            self._zero_since = now_s
        return 0 if now_s - self._zero_since >= self._settings.zero_grace_s else 1
