"""A fleet file as the simulator runs it: one scheduler, and an engine model for each instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import policies
from backends.engine import profiles
from benchmarks.simulator.engines import SimulatedEngine
from benchmarks.workloads.format import WorkloadError
from predictors.online.predictor import OnlinePredictor
from router.config import FleetConfig, InstanceConfig
from router.core.events import FleetChanged
from router.core.profile import EngineProfile
from router.core.scheduler import Scheduler
from router.core.state import Instance
from router.gateway.fleet.instances import instance_of
from router.gateway.fleet.rules import Rules
from router.wiring import create_predictor, create_scheduler


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet that can be simulated. `time_factor` is the compression that emulated instances of the file run
    at: the simulator takes it out, so that its seconds are those of real hardware. `config` has all instances that the
    pools may have; `places` are their names by pool."""

    config: FleetConfig
    rules: Rules
    profiles: dict[str, EngineProfile]
    time_factor: float
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def scheduler(self, seed: int, predictor: OnlinePredictor | None = None) -> Scheduler:
        """A scheduler in its first state, as the gateway builds it; `predictor` in place of the fleet file's."""
        scheduler = create_scheduler(self.config, predictor or create_predictor(self.config), Random(seed))
        instances = tuple(self.instance(name) for name in self.names)
        scheduler.handle(FleetChanged(instances, scheduler.settings), 0.0)
        return scheduler

    def engines(self) -> dict[str, SimulatedEngine]:
        """An empty engine for each instance, by name. Raises WorkloadError for one that does not hold its models."""
        found = {}
        for name in self.names:
            instance = self.instance(name)
            try:
                found[name] = SimulatedEngine(
                    name, instance.fixed_slots, instance.candidates, instance.profiles, instance.speed
                )
            except ValueError as error:
                raise WorkloadError(f"instance {name}: {error}") from None
        return found

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.config.instances]

    def instance(self, name: str) -> Instance:
        """The scheduler's instance of this name, in its first state."""
        config = self.config.instance(name)
        assert config is not None  # noqa: S101 (names are the config's own)
        instance = instance_of(config, self.config.candidates(config), self.profiles.get)
        instance.speed = config.speed / self.time_factor
        return instance


def open_fleet(
    config: FleetConfig, given: dict[str, EngineProfile] | None = None, time_factor: float | None = None
) -> Fleet:
    """The fleet of a file. `given` profiles (calibrated ones) come before the registry's. `time_factor` None
    takes out what all emulated instances have in common. Raises WorkloadError when an instance has no engine
    profile or cannot hold its models."""
    config, places = _with_places(config)
    found = dict(given or {})
    for each in config.instances:
        for name in (each.profile, *map(each.profile_name, each.serves)):
            if name is not None and name not in found and (profile := profiles.find(name)):
                found[name] = profile
        missing = each.serves.keys() - each.engine_profiles(found.get)
        if missing:
            model = min(missing)
            name = each.profile_name(model)
            raise WorkloadError(
                f"instance {each.name}: no engine profile for {model} (name its hardware or its profile)"
                if name is None
                else f"instance {each.name}: there is no engine profile {name!r}"
            )
    if not config.instances:
        raise WorkloadError("the fleet has no instances")
    if time_factor is None:
        speeds = {each.speed for each in config.instances if each.is_emulated}
        time_factor = speeds.pop() if len(speeds) == 1 else 1.0
    rules = Rules.of(config, tuple(policies.POLICIES))
    fleet = Fleet(config, rules, found, time_factor, places)
    fleet.engines()
    return fleet


def _with_places(config: FleetConfig) -> tuple[FleetConfig, Mapping[str, tuple[str, ...]]]:
    """The fleet with all instances that its pools may have, and their names by pool: those of the file first."""
    added: list[InstanceConfig] = []
    places: dict[str, tuple[str, ...]] = {}
    for pool in config.scaling.pools:
        names = [each.name for each in config.instances if pool.has(each)]
        new = [f"{pool.name}-{number}" for number in range(pool.max_instances)]
        new = [name for name in new if name not in names][: max(0, pool.max_instances - len(names))]
        added += [pool.instance.at(name, "http://simulated") for name in new]
        places[pool.name] = (*names, *new)
    return config.model_copy(update={"instances": (*config.instances, *added)}), places
