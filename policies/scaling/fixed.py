"""`none`: no scaling. Each pool keeps the instances that it has, within its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from policies.scaling.types import PoolLoad, ScalingPool


@dataclass(frozen=True, slots=True)
class FixedSettings:
    """`instances` for each pool; None: as many as it has."""

    instances: int | None = None


class FixedScaler:
    """Wants the same number of instances always."""

    def __init__(self, pool: ScalingPool, settings: FixedSettings) -> None:
        self._instances = settings.instances

    def desired(self, now_s: float, load: PoolLoad, queued: float) -> int:
        return load.current if self._instances is None else self._instances
