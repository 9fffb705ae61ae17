"""Changes of a cluster: `+1xl4`, `-2xt4`, `1xa100-80g=1xh100-80g@4.0` (one for another, at 4 USD an hour)."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.planning.files import ClusterConfig
from benchmarks.workloads.format import WorkloadError, checked

_GPUS = r"([1-9]\d*)x([a-z0-9-]+?)(?:@(\d+(?:\.\d+)?))?"
_ADDED, _TAKEN = re.compile(rf"\+{_GPUS}"), re.compile(rf"-{_GPUS}")
_SWAPPED = re.compile(rf"{_GPUS}={_GPUS}")
_NODES = (1, 2, 4, 8, 16)
#: GPUs that a change may add: the search of a cluster with more takes minutes.
_MOST_ADDED = 128


def changed(cluster: ClusterConfig, change: str) -> ClusterConfig:
    """The cluster after a change. Raises WorkloadError."""
    pools: list[dict[str, Any]] = [pool.model_dump() for pool in cluster.pools]
    if match := _ADDED.fullmatch(change):
        _add(pools, match.groups(), change)
    elif match := _TAKEN.fullmatch(change):
        _take(pools, match.groups(), change)
    elif match := _SWAPPED.fullmatch(change):
        _take(pools, match.groups()[:3], change)
        _add(pools, match.groups()[3:], change)
    else:
        raise WorkloadError(f"--what-if {change}: expected +1xl4, -1xl4 or 1xa100-80g=1xh100-80g@USD")
    if not any(pool["gpus"] for pool in pools):
        raise WorkloadError(f"--what-if {change}: no GPU of the cluster is left")
    left = {"pools": [pool for pool in pools if pool["gpus"]]}
    return checked(ClusterConfig.model_validate, left, f"--what-if {change}")


def _add(pools: list[dict[str, Any]], gpus: tuple[str | None, ...], change: str) -> None:
    count, gpu, price = int(gpus[0] or 0), gpus[1], gpus[2]
    if count > _MOST_ADDED:
        raise WorkloadError(f"--what-if {change}: at most {_MOST_ADDED} GPUs can be added")
    if same := _meant(pools, gpus):
        same[0]["gpus"] += count
        return
    priced = pools[0]["usd_per_hour"] is not None
    if priced and price is None:
        raise WorkloadError(
            f"--what-if {change}: what {gpu} costs is unknown; write {count}x{gpu}@USD (an hour, of one)"
        )
    node_gpus = min((size for size in _NODES if size >= count), default=_NODES[-1])
    usd = float(price) if priced and price is not None else None
    pools.append({"gpu": gpu, "gpus": count, "node_gpus": node_gpus, "usd_per_hour": usd})


def _take(pools: list[dict[str, Any]], gpus: tuple[str | None, ...], change: str) -> None:
    left = int(gpus[0] or 0)
    for pool in _meant(pools, gpus):
        taken = min(left, pool["gpus"])
        pool["gpus"] -= taken
        left -= taken
    if left:
        wanted = gpus[1] if gpus[2] is None else f"{gpus[1]}@{gpus[2]}"
        raise WorkloadError(f"--what-if {change}: the cluster has {int(gpus[0] or 0) - left} of {wanted}")


def _meant(pools: list[dict[str, Any]], gpus: tuple[str | None, ...]) -> list[dict[str, Any]]:
    """The pools of a change's GPUs: of its price, or of any where it says none."""
    _, gpu, price = gpus
    return [
        pool
        for pool in pools
        if pool["gpu"] == gpu and (price is None or pool["usd_per_hour"] in (None, float(price)))
    ]
