"""How many instances each pool is to have: the registry of scalers, by the names of the fleet file.

`types` is the vocabulary. Each method is one file. `bounds` keeps the pools' bounds and cool-down for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from policies.scaling.bounds import Bounded
from policies.scaling.concurrency import ConcurrencyScaler, ConcurrencySettings
from policies.scaling.fixed import FixedScaler, FixedSettings
from policies.scaling.headway import HeadwayScaler, HeadwaySettings
from policies.scaling.kpa import KpaScaler, KpaSettings
from policies.scaling.queue import QueueScaler, QueueSettings
from policies.scaling.types import Scaler, ScalingPool

#: For each name the scaler and its settings.
SCALERS: dict[str, tuple[Callable[[Sequence[ScalingPool], Any], Scaler], Callable[..., Any]]] = {
    "queue": (QueueScaler, QueueSettings),
    "concurrency": (ConcurrencyScaler, ConcurrencySettings),
    "kpa": (KpaScaler, KpaSettings),
    "headway": (HeadwayScaler, HeadwaySettings),
    "none": (FixedScaler, FixedSettings),
}


def create(name: str, pools: Sequence[ScalingPool], settings: Mapping[str, Any] | None = None) -> Bounded:
    """A scaler in its first state. Raises ValueError for an unknown name, and for settings that it does not have."""
    if name not in SCALERS:
        raise ValueError(f"unknown scaler {name!r} (known: {', '.join(SCALERS)})")
    scaler, settings_of = SCALERS[name]
    try:
        return Bounded(scaler(pools, settings_of(**(settings or {}))), pools)
    except TypeError as error:
        raise ValueError(f"scaler {name}: {error}") from None


__all__ = ["SCALERS", "Bounded", "create"]
