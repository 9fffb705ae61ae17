"""A live gateway on virtual time: `Gateway`, `Runner`, `Relay` and `Monitor` as they serve, with clients that
are written to in memory and engines that are reached without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from backends import KINDS
from benchmarks.simulator import Arrival, Fleet, InstanceLoss
from predictors.online.predictor import OnlinePredictor
from router.config import FleetConfig, InstanceConfig
from router.core.interfaces import Backend
from router.core.types import Request
from router.gateway.codecs.openai.codec import OpenAICodec
from router.gateway.fleet.targets import LiveTargets
from router.gateway.http.responder import Responder
from router.gateway.relay.relay import Exchange, Relay
from router.gateway.relay.runner import Runner
from router.gateway.service import Gateway
from router.store.queries import Store
from router.store.records import RequestRecord
from router.store.state import MemoryState
from router.wiring import create_gateway, create_predictor, create_scheduler
from tests import virtual_time
from tests.integration.parity.live_engine import LiveBackend, LiveEngine
from tests.integration.parity.traces import Listener, Run, listen, row_of_record


class _NoKeys:
    """The table of made keys: empty."""

    async def version(self) -> tuple[int, int, float]:
        return 0, 0, 0.0

    async def rows(self) -> tuple[()]:
        return ()

    def held_keys(self) -> bool:
        return False


class _Records:
    """The store, as far as requests use it: a list."""

    full = False

    def __init__(self) -> None:
        self.keys = _NoKeys()
        self.records: list[RequestRecord] = []
        self.writer = SimpleNamespace(put=self.records.append)

    def counts(self) -> None:
        raise AssertionError("nobody reads metrics here")

    async def spent(self) -> dict[tuple[str, str], dict[str, float]]:
        return {}

    async def taken_up(self) -> bool:
        return False

    async def feedback_to_learn(self) -> list[Any]:
        return []

    async def close(self) -> None:
        """Nothing is open."""


class Client:
    """One client: uvicorn's side of a response (cycle, transport, flow) and of its connection."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.transport = self.flow = self
        self.on_disconnect: Callable[[], None] | None = None
        self.scope = {"http_version": "1.1"}
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.disconnected = self.write_paused = self.closed = False
        self.keep_alive = True
        self.response_started = self.response_complete = self.waiting_for_100_continue = False
        self.message_event = asyncio.Event()

    async def send(self, message: Any) -> None:
        raise AssertionError("the responder writes to the transport")

    def write(self, data: bytes) -> None:
        assert not self.response_complete
        self.received.append(data)

    def is_closing(self) -> bool:
        return False

    def on_response(self) -> None:
        self.closed = True


class LiveRun:
    """One run of a fleet's gateway. `listener` hears its scheduler, `prepare` may change the gateway before it
    starts, `make_engine` makes the engine of an instance, `predictor` serves in place of the fleet file's."""

    def __init__(
        self,
        fleet: Fleet,
        seed: int,
        losses: Sequence[InstanceLoss] = (),
        *,
        listener: Listener | None = None,
        prepare: Callable[[Gateway], None] | None = None,
        make_engine: Callable[..., LiveEngine] = LiveEngine,
        predictor: OnlinePredictor | None = None,
    ) -> None:
        self._fleet = fleet
        self._seed = seed
        self._losses = losses
        self._listener = listener
        self._prepare = prepare
        self._make_engine = make_engine
        self._predictor = predictor
        self._truths: dict[str, Arrival] = {}
        self._engines: dict[str, LiveEngine] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.clients: dict[str, Client] = {}
        self.gateway: Gateway

    def run(self, arrivals: Iterable[Arrival]) -> list[RequestRecord]:
        """The records of all requests, in the order in which they ended."""
        return virtual_time.run(self._run(list(arrivals)))

    async def _run(self, arrivals: list[Arrival]) -> list[RequestRecord]:
        self._truths = {arrival.request.id: arrival for arrival in arrivals}
        loop = asyncio.get_running_loop()
        config, fleet = self._fleet.config, self._fleet
        predictor = self._predictor or create_predictor(config)
        scheduler = create_scheduler(config, predictor, Random(self._seed))
        if self._listener is not None:
            listen(scheduler, self._listener)
        store = _Records()
        gateway = self.gateway = create_gateway(
            config,
            Runner(scheduler, loop.time),
            cast(Store, store),
            MemoryState(),
            predictor,
            LiveTargets(config),
            make_backend=self._make_backend,
            profile=fleet.profiles.get,
            load_tokenizers=lambda _: {},
            load_artifacts=lambda _: predictor.models,
        )
        if self._prepare is not None:
            self._prepare(gateway)
        await gateway.start()
        for loss in self._losses:
            engine = self._engines[loss.instance]
            loop.call_at(loss.at_s, engine.kill)
            loop.call_at(loss.at_s + loss.for_s, engine.revive)
        for arrival in arrivals:
            loop.call_at(arrival.request.arrived_at, self._arrive, arrival.request)
        if arrivals:
            await asyncio.sleep(arrivals[-1].request.arrived_at - loop.time())
            await asyncio.sleep(0)  # the last arrival's timer comes first, its task is here a turn later
        await asyncio.gather(*self._tasks)
        await gateway.stop()
        return store.records

    async def _make_backend(self, instance: InstanceConfig, config: FleetConfig) -> Backend:
        candidates = config.candidates(instance)
        found = {}
        for model in instance.serves:
            name = instance.profile_name(model)
            assert name is not None
            found[model] = self._fleet.profiles[name]
        engine = self._engines[instance.name] = self._make_engine(
            KINDS[instance.protocol].fixed_slots, candidates, found, instance.speed
        )
        return LiveBackend(instance.protocol, engine, self._truths)

    def _arrive(self, request: Request) -> None:
        client = self.clients[request.id] = Client()
        record = RequestRecord(
            id=request.id,
            received_at=0.0,
            api="chat",
            policy=request.policy,
            max_tokens=request.max_tokens,
            max_cost_usd=request.max_cost_usd,
            arrived_at=request.arrived_at,
        )
        exchange = Exchange("chat", {}, OpenAICodec(True), True, False, request, record, [])
        relay = Relay(self.gateway, exchange, Responder(client.send))
        self._tasks.append(asyncio.get_running_loop().create_task(relay.run(client)))


def live_run(fleet: Fleet, arrivals: Iterable[Arrival], seed: int, **options: Any) -> Run:
    """What a live gateway does with a workload."""
    run = Run()
    records = LiveRun(fleet, seed, listener=run.hear, **options).run(arrivals)
    run.rows = {record.id: row_of_record(record) for record in records}
    assert len(run.rows) == len(records), "a request has ended twice"
    return run
