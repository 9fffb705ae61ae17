"""The pools of a fleet file as scalers see them."""

from __future__ import annotations

from backends import KINDS
from backends.engine import profiles
from policies.scaling.types import ScalingPool
from router.config import ConfigError, FleetConfig, PoolConfig, Problem
from router.core.types import Slo


def scaling_pools(config: FleetConfig, slo: Slo | None = None) -> tuple[ScalingPool, ...]:
    """The pools of a fleet file, with the targets of their models: the model's own, else `slo`, else the server's default.
    Raises ConfigError for a pool without a known engine profile."""
    if slo is None and config.defaults.slo is not None:
        slo = config.defaults.slo.slo()
    slos = {model.name: slo if model.slo is None else model.slo.slo() for model in config.models}
    pools = enumerate(config.scaling.pools)
    return tuple(_scaling_pool(number, each, slos[each.model]) for number, each in pools)


def _scaling_pool(number: int, pool: PoolConfig, slo: Slo | None) -> ScalingPool:
    name = pool.profile_name
    try:
        profile = profiles.profile(name)
    except profiles.UnknownProfile as error:
        reason = f"{error}; name one for the pool"
        raise ConfigError("scaling", [Problem(("pools", number, "profile"), reason)]) from None
    template = pool.instance
    return ScalingPool(
        name=pool.name,
        model=pool.model,
        profile=profile,
        concurrency=template.max_concurrency or profile.seats(KINDS[template.kind].fixed_slots),
        gpus=profiles.gpus_of(name),
        usd_per_hour=template.usd_per_hour or 0.0,
        min_instances=pool.min_instances,
        max_instances=pool.max_instances,
        cold_start_s=pool.cold_start_s,
        warm_start_s=pool.warm_start_s,
        cooldown_s=pool.cooldown_s,
        slo=slo,
    )
