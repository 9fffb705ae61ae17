"""Decides at intervals how many instances each pool has. An actuator carries it out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from policies import scaling as scalers
from policies.scaling.types import Observation, Scaler
from router.background import Tasks, surviving
from router.config import ConfigError, FleetConfig, Problem, ScalingConfig
from router.gateway.fleet.scaling import Decision
from router.gateway.service import Gateway
from router.scaling.actuator import Actuator
from router.scaling.load import Totals, model_loads, pool_load, totals
from router.scaling.pools import scaling_pools
from router.scaling.turns import DOCUMENT, Turn, Turns
from router.store.state import StateError

logger = logging.getLogger("headway")

#: Seconds between two checks whether a request waits for a model without instances.
_LOOK_S = 0.1
#: For this many intervals and seconds only the replica that decided last may decide.
_LEASE_INTERVALS, _LEASE_S = 2.0, 1.0


class ScalingLoop:
    """Runs while it is entered. It is made before `gateway` is started. `run` names this run of the process. After a
    reload, changed pools, scalers and settings apply from the next decision on."""

    def __init__(self, gateway: Gateway, actuator: Actuator, run: str) -> None:
        """Raises ConfigError."""
        self._gateway = gateway
        self._actuator = actuator
        self._run = run
        self._config = gateway.config.scaling
        self._pools = scaling_pools(gateway.config)
        self._scaler = create_scaler(gateway.config)
        self._turns = Turns(gateway.state, run, _lease_s(self._config), self._decided_elsewhere)
        self._totals: Mapping[str, Mapping[str, Totals]] = {run: self._own_totals()}
        # When the last decision was made, in the scaler's time, and when that was by a clock that is never set.
        self._at_s, self._seen_at = time.time(), time.monotonic()
        self._again = asyncio.Event()
        self._tasks = Tasks()
        actuator.on_change = self._again.set
        gateway.peers.followers[DOCUMENT] = self._turns.document_changed

    async def __aenter__(self) -> Self:
        self._tasks.start(self._follow(), "scaling")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.stop()
        try:
            await self._turns.leave()
        except StateError:
            logger.warning(
                "the shared state does not answer: another replica scales the fleet a little later"
            )
        with surviving("scaling"):
            await self._actuator.aclose()

    async def _follow(self) -> None:
        while True:
            self._again.clear()
            with surviving("scaling"):
                await self._turn()
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next decision is due: at the end of the interval, when an instance has come or gone, or when a
        request waits for a model without instances."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.interval_s
        while (left_s := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(min(left_s, _LOOK_S)):
                    await self._again.wait()
                return
            except TimeoutError:
                if self._asleep():
                    return

    def _asleep(self) -> bool:
        """Whether a request waits for a model of which no pool is to have an instance."""
        if not self._turns.due:
            return False
        queued, wanted = self._gateway.peers.queued(), self._turns.last.wanted
        awake = {pool.model for pool in self._config.pools if wanted.get(pool.name)}
        return any(queued.get(pool.model) and pool.model not in awake for pool in self._config.pools)

    # --- one decision ----------------------------------------------------------------------------------
    async def _turn(self) -> None:
        self._use(self._gateway.config)
        counted = {self._run: self._own_totals()}
        self._gateway.peers.counts = counted[self._run]
        if not self._turns.due:
            return
        pools = {pool.name: pool for pool in self._config.pools}
        await self._actuator.look(pools)
        counted |= {run: _totals_of(counts) for run, counts in self._gateway.peers.counts_elsewhere.items()}
        observation = self._observe(counted)
        wanted = dict(self._scaler.desired(observation))
        self._totals, self._at_s = counted, observation.now_s
        self._seen_at += observation.seconds
        turn = Turn(self._turns.last.number + 1, self._run, observation, wanted, counted)
        try:
            if not await self._turns.take(turn):
                return
        except StateError:  # it has said so itself, once
            return
        self._show(turn)
        await self._actuator.scale(pools, wanted)

    def _observe(self, counted: Mapping[str, Mapping[str, Totals]]) -> Observation:
        gateway, seconds = self._gateway, time.monotonic() - self._seen_at
        scheduler, instances = gateway.runner.scheduler, gateway.config.instances
        return Observation(
            # The clock may be set back, and another replica's may be ahead.
            now_s=max(time.time(), self._at_s + seconds),
            seconds=seconds,
            pools={
                pool.name: pool_load(pool, instances, scheduler, self._actuator.starting(pool.name))
                for pool in self._config.pools
            },
            models=model_loads(self._totals, counted, self._gateway.peers.queued()),
        )

    def _own_totals(self) -> dict[str, Totals]:
        gateway = self._gateway
        return totals(gateway.metrics, gateway.runner.scheduler, gateway.rules.names)

    def _use(self, config: FleetConfig) -> None:
        """Follow a reload of the fleet file."""
        pools = scaling_pools(config)  # with the targets of the models
        if config.scaling != self._config or pools != self._pools:
            self._scaler = create_scaler(config)
            self._config, self._pools = config.scaling, pools
            self._turns.lease_s = _lease_s(self._config)
            logger.info("the pools have changed: the scaler begins anew")

    def _decided_elsewhere(self, turn: Turn) -> None:
        """Another replica has decided: bring this one's scaler to the same state."""
        observation = turn.observation
        if turn.run:
            self._actuator.stand_back()
            if observation and {pool.name for pool in self._config.pools} <= observation.pools.keys():
                with surviving("scaling"):
                    self._scaler.desired(observation)
                self._totals, self._at_s = turn.totals, observation.now_s
                self._seen_at = time.monotonic()
        self._show(turn)

    def _show(self, turn: Turn) -> None:
        if turn.observation is not None:
            self._gateway.decision = Decision(turn.observation, turn.wanted, self._turns.mine)


def _lease_s(config: ScalingConfig) -> float:
    return _LEASE_INTERVALS * config.interval_s + _LEASE_S


def create_scaler(config: FleetConfig) -> Scaler:
    """The scaler of a fleet file. Raises ConfigError for a setting that it does not have, and for a pool without an engine
    profile."""
    pools = scaling_pools(config)
    try:
        return scalers.create(config.scaling.scaler, pools, config.scaling.settings)
    except (ValueError, TypeError) as error:
        raise ConfigError("scaling", [Problem(("settings",), str(error))]) from None


def _totals_of(counts: Mapping[str, Sequence[int]]) -> dict[str, Totals]:
    return {model: Totals(*values) for model, values in counts.items()}
