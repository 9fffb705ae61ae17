"""A fleet file as the simulator runs it: one scheduler, and an engine model for each instance."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import policies
from backends import KINDS
from backends.engine import profiles
from benchmarks.simulator.engines import SimulatedEngine
from benchmarks.workloads.format import WorkloadError
from predictors.online.predictor import OnlinePredictor
from router.config import FleetConfig
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
    at: the simulator takes it out, so that its seconds are those of real hardware."""

    config: FleetConfig
    rules: Rules
    profiles: dict[str, EngineProfile]
    time_factor: float

    def scheduler(self, seed: int, predictor: OnlinePredictor | None = None) -> Scheduler:
        """A scheduler in its first state, as the gateway builds it; `predictor` in place of the fleet file's."""
        scheduler = create_scheduler(self.config, predictor or create_predictor(self.config), Random(seed))
        instances = tuple(self._instance(name) for name in self.names)
        scheduler.handle(FleetChanged(instances, scheduler.settings), 0.0)
        return scheduler

    def engines(self) -> dict[str, SimulatedEngine]:
        """An empty engine for each instance, by name."""
        found = {}
        for name in self.names:
            instance = self._instance(name)
            found[name] = SimulatedEngine(
                name, instance.fixed_slots, instance.candidates, instance.profiles, instance.speed
            )
        return found

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.config.instances]

    def _instance(self, name: str) -> Instance:
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
    profile or serves models in a way that its kind cannot."""
    known = set(profiles.names())
    found = dict(given or {})
    for each in config.instances:
        if not KINDS[each.protocol].fixed_slots and len(each.serves) != 1:
            raise WorkloadError(
                f"instance {each.name}: the simulator batches one model an instance; it serves {len(each.serves)}"
            )
        for model in each.serves:
            name = each.profile_name(model)
            if name is None:
                raise WorkloadError(
                    f"instance {each.name}: no engine profile for {model} (name its hardware or its profile)"
                )
            if name not in found:
                if name not in known:
                    raise WorkloadError(f"instance {each.name}: there is no engine profile {name!r}")
                found[name] = profiles.profile(name)
    if not config.instances:
        raise WorkloadError("the fleet has no instances")
    if time_factor is None:
        speeds = {each.speed for each in config.instances if each.is_emulated}
        time_factor = speeds.pop() if len(speeds) == 1 else 1.0
    rules = Rules.of(config, tuple(policies.POLICIES))
    return Fleet(config, rules, found, time_factor)
