"""`none`: no scaling. Each pool keeps the instances that it has, within its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.scaling.types import Observation, Scaler, ScalingPool


@dataclass(frozen=True, slots=True)
class FixedSettings:
    """`instances` for each pool; None: as many as it has."""

    instances: int | None = None


class FixedScaler(Scaler):
    """Wants the same number of instances always."""

    def __init__(self, pools: Sequence[ScalingPool], settings: FixedSettings) -> None:
        self._pools = pools
        self._instances = settings.instances

    def desired(self, observation: Observation) -> Mapping[str, int]:
        if self._instances is not None:
            return {pool.name: self._instances for pool in self._pools}
        return {pool.name: observation.pools[pool.name].current for pool in self._pools}
