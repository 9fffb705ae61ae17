"""A relay on virtual time: the real runner and scheduler, engines that follow a script, a client in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from router.core.errors import UpstreamError
from router.core.interfaces import Batch, Call, Sink
from router.core.money.reservation import Funding
from router.core.scheduler import Scheduler
from router.core.types import Request
from router.gateway.codecs.openai.codec import OpenAICodec
from router.gateway.relay.exchange import Exchange
from router.gateway.relay.relay import Relay
from router.gateway.relay.runner import Runner
from router.store.records import RequestRecord
from tests import virtual_time

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'

#: What an engine does after some seconds: it says a word, or breaks off.
Step = tuple[float, bytes | UpstreamError]


class Engine:
    """A backend and its streams: each follows the script to its end. `calls` are those that were sent, `aborted` counts
    streams that were given up."""

    kind = "vllm"
    busy = 0

    def __init__(self, *steps: Step, opens: Callable[[], Awaitable[None]] | None = None) -> None:
        self.steps = steps
        self.calls: list[Call] = []
        self.aborted = 0
        self._opens = opens

    async def stream(self, call: Call) -> EngineStream:
        self.calls.append(call)
        if self._opens is not None:
            await self._opens()
        if call.sent is not None:
            call.sent()
        return EngineStream(self)


class EngineStream:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._given_up = asyncio.Event()
        self._goes_on = asyncio.Event()
        self._ended = False

    async def pump(self, sink: Sink) -> None:
        for after_s, what in self._engine.steps:
            await self._wait(after_s)
            if isinstance(what, UpstreamError):
                self._ended = True
                raise what
            self._goes_on.clear()
            if sink(Batch(TOKEN % what, 1)):
                await self._wait_for(self._goes_on)
        sink(Batch(END, 0, None, "stop"))
        self._ended = True

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._given_up.wait()
        except TimeoutError:
            return
        raise UpstreamError("given up")

    async def _wait_for(self, event: asyncio.Event) -> None:
        waiting = [asyncio.ensure_future(each.wait()) for each in (event, self._given_up)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        if self._given_up.is_set():
            raise UpstreamError("given up")

    def resume(self) -> None:
        self._goes_on.set()

    def abort(self) -> None:
        if not self._ended and not self._given_up.is_set():
            self._engine.aborted += 1
        self._given_up.set()


class Client:
    """A responder in memory. `status` is that of the answer (None: nothing was sent)."""

    paused = False

    def __init__(self) -> None:
        self.status: int | None = None
        self.written = b""
        self.ended = self.left = self.broken = False

    @property
    def started(self) -> bool:
        return self.status is not None

    def begin(self, status: int, headers: bytes, data: bytes) -> None:
        assert not self.started
        self.status = status
        self.written += data

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.written += data

    def end(self, data: bytes) -> None:
        self.write(data)
        self.ended = True

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        self.begin(status, headers, body)
        self.ended = True

    def gone(self) -> None:
        self.left = True

    def abort(self) -> None:
        self.broken = True

    def words(self) -> list[bytes]:
        """What the engines said, as far as it was passed on."""
        return [part.split(b'"')[0] for part in self.written.split(b'"content":"')[1:]]


class Purse:
    """A key's reservation: the budgets answer `grow` from `answers` (nothing when those are used up), each after a
    second."""

    def __init__(self, funding: Funding, *answers: float) -> None:
        self.funding = funding
        self.answers = list(answers)
        self.asked: list[float] = []
        self.closed: list[tuple[float, float, int | None]] = []

    def grow(self, usd: float, then: Callable[[float, float | None], None]) -> None:
        self.asked.append(usd)
        granted = self.answers.pop(0) if self.answers else 0.0
        asyncio.get_running_loop().call_later(1.0, then, granted, granted)

    def close(self, reserved_usd: float, spent_usd: float, used_tokens: int | None = None) -> None:
        self.closed.append((reserved_usd, spent_usd, used_tokens))

    def cancel(self) -> None:
        self.close(self.funding.reserved_usd, 0.0, 0)


@dataclass
class Relayed:
    """One request on its way. `records` are those that were finished: one, at the end."""

    runner: Runner
    task: asyncio.Task[None]
    client: Client
    connection: Any
    records: list[RequestRecord] = field(default_factory=list)

    @property
    def record(self) -> RequestRecord:
        (record,) = self.records
        return record


def start(
    runner: Runner,
    engines: Mapping[str, Engine],
    request: Request,
    *,
    reservation: Purse | None = None,
) -> Relayed:
    """Bring a request in."""
    records: list[RequestRecord] = []
    services: Any = SimpleNamespace(
        runner=runner,
        fleet=SimpleNamespace(backend=engines.__getitem__, candidate_headers=lambda candidate: b""),
        artifacts=SimpleNamespace(name=""),
        finish=records.append,
    )
    record = RequestRecord(id=request.id, received_at=0.0, api="chat", arrived_at=request.arrived_at)
    exchange = Exchange("chat", {}, OpenAICodec(False), request, record, [], reservation)  # type: ignore[arg-type]
    client = Client()
    connection = SimpleNamespace(on_disconnect=None)
    relay = Relay(services, exchange, client)  # type: ignore[arg-type]
    task = asyncio.ensure_future(relay.run(connection))
    return Relayed(runner, task, client, connection, records)


def relayed(
    scheduler: Scheduler,
    engines: Mapping[str, Engine],
    request: Request,
    *later: tuple[float, Callable[[Relayed], Any]],
    reservation: Purse | None = None,
) -> Relayed:
    """One request from its arrival to its record; at each time of `later` something is done to it."""

    async def main() -> Relayed:
        loop = asyncio.get_running_loop()
        runner = Runner(scheduler, loop.time)
        found = start(runner, engines, request, reservation=reservation)
        for at, what in later:
            loop.call_at(at, what, found)
        await found.task
        runner.stop()
        await asyncio.sleep(10.0)  # nothing comes after it
        return found

    return virtual_time.run(main())


def saying(*words: bytes, after_s: float = 0.0) -> Sequence[Step]:
    """An engine that says words, the first one after some seconds, the others a second apart."""
    return [(after_s if at == 0 else 1.0, word) for at, word in enumerate(words)]
