"""How many instances each pool is to have: the registry of scalers, by the names of the fleet file.

`types` is the vocabulary. Each method is one file. `bounds` keeps the pools' bounds and cool-down for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from policies.scaling.bounds import Bounded
from policies.scaling.concurrency import ConcurrencyScaler, ConcurrencySettings
from policies.scaling.each_pool import EachPool
from policies.scaling.fixed import FixedScaler, FixedSettings
from policies.scaling.headway import HeadwayScaler, HeadwaySettings
from policies.scaling.kpa import KpaScaler, KpaSettings
from policies.scaling.queue import QueueScaler, QueueSettings
from policies.scaling.types import Scaler, ScalingPool

#: The largest value of a setting.
_LARGEST = 1e9

#: For each name the scaler and its settings.
SCALERS: dict[str, tuple[Callable[[Sequence[ScalingPool], Any], Scaler], type[Any]]] = {
    "queue": (partial(EachPool, QueueScaler), QueueSettings),
    "concurrency": (partial(EachPool, ConcurrencyScaler), ConcurrencySettings),
    "kpa": (partial(EachPool, KpaScaler), KpaSettings),
    "headway": (HeadwayScaler, HeadwaySettings),
    "none": (partial(EachPool, FixedScaler), FixedSettings),
}


def create(name: str, pools: Sequence[ScalingPool], settings: Mapping[str, Any] | None = None) -> Bounded:
    """A scaler in its first state. Raises ValueError for an unknown name, and for settings that it does not have or cannot
    take: all are numbers from 0 to 1e9, some of them whole."""
    if name not in SCALERS:
        raise ValueError(f"unknown scaler {name!r} (known: {', '.join(SCALERS)})")
    scaler, settings_of = SCALERS[name]
    known = {field.name: str(field.type) for field in fields(settings_of)}
    checked: dict[str, float | None] = {}
    for key, value in (settings or {}).items():
        if key not in known:
            raise ValueError(f"scaler {name}: no setting {key!r} (it has: {', '.join(known)})")
        try:
            checked[key] = _checked(value, known[key])
        except ValueError as error:
            raise ValueError(f"scaler {name}: {key}: {error}") from None
    return Bounded(scaler(pools, settings_of(**checked)), pools)


def _checked(value: Any, kind: str) -> float | None:
    if value is None and "None" in kind:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise ValueError(f"expected a number from 0 to {_LARGEST:g}, not {value!r}")
    if kind.startswith("int"):
        if value != int(value):
            raise ValueError(f"expected a whole number, not {value!r}")
        return int(value)
    return value


__all__ = ["SCALERS", "Bounded", "create"]
