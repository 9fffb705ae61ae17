"""The running gateway: the parts that requests share, and their life."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from predictors.online.predictor import OnlinePredictor
from router.background import Tasks, close_all, surviving
from router.config import FleetConfig
from router.gateway.fleet.changes import FleetChanges
from router.gateway.fleet.peers import PeerLink
from router.gateway.fleet.rules import Rules
from router.gateway.fleet.scaling import Decision, Scaling, scaling, wanted_by_model
from router.gateway.fleet.served import ServedFleet
from router.gateway.fleet.token_count import TokenCounter
from router.gateway.intake.callers import admin_needs_key
from router.gateway.keys.admission import BudgetAdmission
from router.gateway.keys.client_keys import ClientKeys
from router.gateway.keys.recorded_spending import load_late_spending, load_spending
from router.gateway.records import Feedback
from router.gateway.runner import Runner
from router.gateway.telemetry.metrics import Metrics
from router.gateway.telemetry.stalls import StallWatch
from router.gateway.telemetry.tracing import Tracing
from router.logs import log_request
from router.store.queries import Store
from router.store.records import RequestRecord
from router.store.state import State

logger = logging.getLogger("headway")


@dataclass(slots=True, eq=False, kw_only=True)
class Gateway:
    """What all requests share. `router.wiring` builds it; `start` and `stop` frame its life.

    `admin_key` is None where none is set, `tracing` where no request is traced. `decision` is the last one about the number
    of instances. `judged` counts judged answers by result, `checked` those that were checked before their clients got them
    (None: the fleet file asks for neither). `connections` gives the open connections of clients and, by reason, the number
    that the server closed. `tasks` run until a drain begins.
    """

    runner: Runner
    store: Store
    state: State
    metrics: Metrics
    stalls: StallWatch
    tracing: Tracing | None
    admin_key: str | None
    predictor: OnlinePredictor
    feedback: Feedback
    keys: ClientKeys
    budget_admission: BudgetAdmission
    fleet: ServedFleet
    changes: FleetChanges
    peers: PeerLink
    tokens: TokenCounter
    decision: Decision | None = None
    judged: Mapping[str, int] | None = None
    checked: Mapping[str, int] | None = None
    connections: Callable[[], tuple[int, Mapping[str, int]]] | None = None
    tasks: Tasks = field(default_factory=Tasks)
    draining: bool = False
    _randomness: list[str] = field(default_factory=list)

    @property
    def rules(self) -> Rules:
        return self.fleet.rules

    @property
    def config(self) -> FleetConfig:
        return self.fleet.rules.config

    # --- life ----------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Serve the fleet. Raises ConfigError, StoreError."""
        await self.keys.start(self.config)
        if self.admin_key is None:
            nobody = admin_needs_key(self.rules, None)
            logger.log(
                logging.WARNING if nobody else logging.INFO,
                "there is no admin key: /admin answers %s",
                "nobody until there is one" if nobody else "programs on this machine only",
            )
        await load_spending(self.store, self.state, self.rules.tenants)
        late = load_late_spending(self.store, self.state, lambda: self.rules.tenants)
        self.tasks.start(late, "late-spending")
        await self.feedback.learn_recorded()
        await self.fleet.start()
        await self.peers.start()
        await self.changes.catch_up()

    async def stop(self) -> None:
        """Stop watching, close the engines' connections, flush the records."""
        self.peers.followers.clear()  # documents that change from here on are ignored
        await close_all(
            "shutdown",
            self.keys.stop,
            self.tasks.stop,
            self.changes.stop,
            self.budget_admission.aclose,
            self.fleet.stop,
            self.state.aclose,  # all spending has been reported by now
        )
        self.runner.stop()
        self.stalls.stop()
        await close_all("shutdown", self.store.close)

    def readiness(self) -> tuple[int, dict[str, str]]:
        """(status, content) of `/readyz`: whether the gateway can serve requests, or hold them until an instance is ready,
        and record them. It stays ready while a database server is away: the content then says so."""
        if self.draining:
            return 503, {"status": "draining"}
        instances = self.runner.scheduler.instances.values()
        if not any((each.healthy or each.starting) and not each.draining for each in instances):
            return 503, {"status": "no live instance"}
        fault = self.store.fault
        if fault is None and self.store.full and self.config.store.when_full == "refuse":
            fault = "no room is left for records"
        if fault is not None:
            return 503, {"status": "store fault", "reason": fault}
        away = {"store": "does not answer; records wait"} if self.store.away else {}
        return 200, {"status": "ready", **away}

    def scaling(self) -> list[Scaling]:
        """The instances that each model has and needs."""
        return scaling(
            self.runner.scheduler,
            [model.name for model in self.config.models],
            self.peers.queued(),
            wanted_by_model(self.config.scaling, self.decision),
        )

    # --- requests ------------------------------------------------------------------------------------
    def new_request_id(self, now: float) -> str:
        """Time-ordered and unguessable. `now` is in seconds since the epoch."""
        if not self._randomness:
            noise = secrets.token_hex(8 * 256)  # one system call for many ids
            self._randomness = [noise[at : at + 16] for at in range(0, len(noise), 16)]
        return f"req_{int(now * 1000):011x}{self._randomness.pop()}"

    def finish(self, record: RequestRecord) -> None:
        """A request has ended: count it and keep it."""
        self.metrics.record(record)
        traced = record.trace is not None and record.trace.sampled
        logged = self.fleet.rules.log_requests
        if traced or logged:
            record.complete()
        if traced and self.tracing is not None:
            with surviving("tracing"):
                self.tracing.end(record, record.trace, self.metrics.kind)
        if logged:
            log_request(record)
        self.store.writer.put(record)
