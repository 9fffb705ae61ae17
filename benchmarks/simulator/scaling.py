"""Instances that come and go in a simulation, as the gateway's scaler decides ("Scaling" in docs/simulator.md).

A new instance joins the scheduler's fleet as starting. One that drains stays if it is wanted again before its last request has
ended. A pool without instances keeps one in the fleet as starting, so that requests wait for it. Its last instance is stopped
only when it is idle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from benchmarks.simulator.engines import SimulatedEngine
from benchmarks.simulator.outcomes import Change, Usage
from policies.scaling.bounds import Bounded
from policies.scaling.types import ModelLoad, Observation, PoolLoad, ScalingPool
from router.core.events import DrainChanged, Event, FleetChanged, Probed
from router.core.scheduler import Scheduler
from router.core.state import Instance

#: For this long the weights of a stopped instance stay in its machine's page cache.
WARM_FOR_S = 900.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a simulated fleet is scaled. `scaler` is in its first state. `places` are the names of each pool's instances, as
    many as it may have. All are there at the start. `epoch_s` is the time since the epoch at the simulation's 0."""

    scaler: Bounded
    pools: tuple[ScalingPool, ...]
    places: Mapping[str, tuple[str, ...]]
    interval_s: float = 15.0
    epoch_s: float = 0.0


class LoadCounter:
    """Counts arrivals and ends by model, and makes each time's `Observation` of them. A request that may go to several
    models counts for the first one, as it does in the queue."""

    def __init__(self, began_s: float) -> None:
        self._since_s = began_s
        #: By model, then field of `ModelLoad`.
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def arrived(self, model: str, prompt_tokens: int) -> None:
        """A request for `model` arrived."""
        self._counts[model].update(arrivals=1, prompt_tokens=prompt_tokens)

    def ended(self, model: str, output_tokens: int | None, slo_met: bool | None) -> None:
        """A request for `model` ended: with an answer of `output_tokens` (None: with none). `slo_met` is None without an
        SLO."""
        counts = self._counts[model]
        if output_tokens is not None:
            counts.update(answers=1, output_tokens=output_tokens)
        counts["slo_misses"] += slo_met is False

    def observe(self, now_s: float, pools: Mapping[str, PoolLoad], queued: Mapping[str, int]) -> Observation:
        """What a scaler sees now. The counts begin anew. `queued` are the waiting requests by model."""
        models = {
            name: ModelLoad(**counts, queued=queued.get(name, 0)) for name, counts in self._counts.items()
        }
        found = Observation(now_s, now_s - self._since_s, pools, models)
        self._since_s = now_s
        for counts in self._counts.values():
            counts.clear()
        return found


class _State(Enum):
    OFF = auto()
    STARTING = auto()
    READY = auto()
    DRAINING = auto()


@dataclass(slots=True)
class _Place:
    """Where one instance of a pool runs. `since_s`: since when it is paid; `off_s`: when it last stopped."""

    pool: ScalingPool
    name: str
    state: _State = _State.READY
    since_s: float = 0.0
    off_s: float = -inf


class SimulatedPools:
    """The pools of one run. `apply` gives the scheduler an event, `at` does something at a time."""

    def __init__(
        self,
        scaling: Scaling,
        scheduler: Scheduler,
        engines: Mapping[str, SimulatedEngine],
        new_instance: Callable[[str], Instance],
        apply: Callable[[Event, float], None],
        at: Callable[[float, Callable[[float], None]], None],
    ) -> None:
        self._scaling = scaling
        self._scaler = scaling.scaler
        self._scheduler = scheduler
        self._engines = engines
        self._new_instance = new_instance
        self._apply = apply
        self._at = at
        self._places = {
            pool.name: [_Place(pool, name) for name in scaling.places[pool.name]] for pool in scaling.pools
        }
        self._by_name = {place.name: place for places in self._places.values() for place in places}
        self.load = LoadCounter(scaling.epoch_s)
        self.usage = Usage()
        at(scaling.interval_s, self._decide)

    def serves(self, name: str) -> bool:
        """Whether an instance is there and probed. One that no pool has always is."""
        place = self._by_name.get(name)
        return place is None or place.state in (_State.READY, _State.DRAINING)

    def attempt_ended(self, name: str, now: float) -> None:
        place = self._by_name.get(name)
        if place is None or place.state is not _State.DRAINING:
            return
        if not self._scheduler.instances[name].in_flight:
            self._leave(place, now)

    def close(self, now: float) -> Usage:
        for place in self._by_name.values():
            if place.state is not _State.OFF:
                self._pay(place, now)
        return self.usage

    def _decide(self, now: float) -> None:
        loads = {pool.name: self._load(pool) for pool in self._scaling.pools}
        queued = self._scheduler.queued_by_model()
        desired = self._scaler.desired(self.load.observe(self._scaling.epoch_s + now, loads, queued))
        for pool in self._scaling.pools:
            load = loads[pool.name]
            self.usage.decided(Change(now, pool.name, desired[pool.name], load.ready))
            for _ in range(desired[pool.name] - load.current):
                self._start(pool, now)
            for _ in range(load.current - desired[pool.name]):
                self._stop(pool, now)
        self._at(now + self._scaling.interval_s, self._decide)

    def _load(self, pool: ScalingPool) -> PoolLoad:
        instances = self._scheduler.instances
        names = [place.name for place in self._places[pool.name] if place.name in instances]
        return PoolLoad(
            ready=len(self._in(pool, _State.READY)),
            starting=len(self._in(pool, _State.STARTING)),
            draining=len(self._in(pool, _State.DRAINING)),
            in_flight=sum(instances[name].in_flight for name in names),
        )

    def _in(self, pool: ScalingPool, *states: _State) -> list[_Place]:
        return [place for place in self._places[pool.name] if place.state in states]

    def _start(self, pool: ScalingPool, now: float) -> None:
        """Keep an instance that drains, else start one in the place that stopped last."""
        draining = self._in(pool, _State.DRAINING)
        if draining:
            draining[0].state = _State.READY
            self._apply(DrainChanged(draining[0].name, False), now)
            return
        place = max(self._in(pool, _State.OFF), key=lambda each: each.off_s)
        warm = now - place.off_s < WARM_FOR_S
        self.usage.warm_starts += warm
        self.usage.cold_starts += not warm
        place.state, place.since_s = _State.STARTING, now
        self._fleet_changed(pool, now)

        def ready(at_s: float) -> None:
            if place.state is _State.STARTING and place.since_s == now:
                place.state = _State.READY
                self._engines[place.name].down = False
                self._apply(Probed(place.name, True), at_s)

        self._at(now + (pool.warm_start_s if warm else pool.cold_start_s), ready)

    def _stop(self, pool: ScalingPool, now: float) -> None:
        """Give up an instance: one that is starting, else the one with the least work."""
        starting, ready = self._in(pool, _State.STARTING), self._in(pool, _State.READY)
        if starting:
            self._leave(starting[-1], now)
            return
        instances = self._scheduler.instances
        place = min(reversed(ready), key=lambda each: instances[each.name].in_flight)
        if not instances[place.name].in_flight:
            self._leave(place, now)
        elif len(ready) > 1:
            place.state = _State.DRAINING
            self.usage.drained += 1
            self._apply(DrainChanged(place.name, True), now)

    def _leave(self, place: _Place, now: float) -> None:
        self._pay(place, now)
        place.state, place.off_s = _State.OFF, now
        engine = self._engines[place.name]
        engine.restart()
        engine.down, engine.due = True, None
        self._fleet_changed(place.pool, now)

    def _fleet_changed(self, pool: ScalingPool, now: float) -> None:
        """Give the scheduler the instances of the pool as they are: with none that serves or starts, one that is off
        stands for all."""
        wanted = self._in(pool, _State.STARTING, _State.READY) or self._in(pool, _State.OFF)[:1]
        wanted += self._in(pool, _State.DRAINING)
        names = {place.name for place in wanted}
        gone = {place.name for place in self._places[pool.name]} - names
        before = self._scheduler.instances
        instances = [each for name, each in before.items() if name not in gone]
        for place in wanted:
            if place.name not in before:
                instances.append(self._waking(place.name))
            elif place.state is _State.OFF:
                instances[instances.index(before[place.name])] = self._waking(place.name)
        self._apply(FleetChanged(tuple(instances), self._scheduler.settings), now)

    def _waking(self, name: str) -> Instance:
        instance = self._new_instance(name)
        instance.healthy, instance.starting = False, True
        return instance

    def _pay(self, place: _Place, now: float) -> None:
        pool = place.pool
        self.usage.pay(pool.name, now - place.since_s, pool.gpus, pool.usd_per_hour)
