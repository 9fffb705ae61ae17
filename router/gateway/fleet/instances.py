"""Makes the scheduler's settings, targets and instances from a fleet file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from backends import KINDS
from router.config import FleetConfig, InstanceConfig, KeyConfig
from router.core.profile import EngineProfile
from router.core.settings import SchedulerSettings
from router.core.state import Instance
from router.core.types import Candidate, Targets

#: Looks up an engine profile by name (`MODEL@HARDWARE`); None if there is none.
ProfileLookup = Callable[[str], EngineProfile | None]


def scheduler_settings(config: FleetConfig) -> SchedulerSettings:
    """The scheduler's settings in a fleet file."""
    scheduling = config.scheduling
    return SchedulerSettings(
        confidence=scheduling.confidence,
        max_queue=config.limits.max_queue,
        max_attempts=config.limits.max_attempts,
        eject_after=config.probes.eject_after,
        return_after=config.probes.return_after,
        hedge_share=scheduling.hedge.max_share if scheduling.hedge.enabled else 0.0,
        explore=scheduling.explore,
        streams_when_needed=config.upstream_stream == "when_needed",
        streamed_share=scheduling.streamed_share,
    )


def targets_of(
    config: FleetConfig,
    keys: Iterable[KeyConfig],
    changes: Mapping[str | None, Mapping[str, float | None]] | None = None,
) -> dict[str | None, Targets]:
    """The targets of quality and attainment of the fleet (None) and of each key, by the keys' effective settings.

    Operators' `changes` replace a scope's `quality` (None: the policy's default) or `attainment`. A key has the fleet's
    targets where neither its settings nor a change have its own.
    """
    changes, cost = changes or {}, config.scheduling.cost
    fleet = Targets(cost.quality, cost.quality_slack, cost.attainment, cost.window_requests)
    fleet = replace(fleet, **changes.get(None, {}))  # type: ignore[arg-type]
    targets: dict[str | None, Targets] = {None: fleet}
    for key in keys:
        own = {name: value for name in ("quality", "attainment") if (value := getattr(key, name)) is not None}
        targets[key.name] = replace(fleet, **{**own, **changes.get(key.name, {})})
    return targets


def instance_of(
    config: InstanceConfig,
    candidates: dict[str, Candidate],
    profile: ProfileLookup,
    old: Instance | None = None,
) -> Instance:
    """The scheduler's instance. `old` is changed in place and keeps its counters."""
    kind = KINDS[config.protocol]
    instance = old or Instance(name=config.name, kind=kind.name, candidates=candidates)
    instance.kind = kind.name
    instance.candidates = candidates
    instance.max_concurrency = config.max_concurrency
    instance.hardware = config.hardware_name
    instance.speed = config.speed
    instance.profiles = config.engine_profiles(profile)
    instance.usd_per_hour = config.usd_per_hour
    instance.unsupported = kind.unsupported
    instance.tokenizes = kind.tokenizes
    instance.fixed_slots = kind.fixed_slots
    return instance


def placeholders(config: FleetConfig, profile: ProfileLookup) -> list[Instance]:
    """One instance for each pool whose requests wait for an instance: it has the pool's name, and is starting forever."""
    found = []
    for pool in config.scaling.holding():
        settings = pool.instance.at(pool.name, "http://127.0.0.1")  # no engine: nothing is sent to it
        instance = instance_of(settings, config.candidates(settings), profile)
        instance.healthy, instance.starting = False, True
        found.append(instance)
    return found
