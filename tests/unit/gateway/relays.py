"""A relay on virtual time: the real runner and scheduler, engines that follow a script, a client in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from router.core.interfaces import Batch, Call, Sink
from router.core.scheduler import Scheduler
from router.core.types import Request
from router.gateway.codecs.openai import OpenAICodec
from router.gateway.keys.admission import KeyReservation
from router.gateway.relay.relay import Relay
from router.gateway.runner import Runner
from router.store.records import RequestRecord
from tests import virtual_time

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'

#: A word that an engine says after some seconds.
Step = tuple[float, bytes]


class Engine:
    """A backend: each call follows the script to its end. `calls` are those that were sent. `opens` says after how many
    seconds a request is sent (None: never)."""

    busy = 0

    def __init__(self, *steps: Step, opens: float | None = 0.0) -> None:
        self.steps = steps
        self.calls: list[Call] = []
        self.opens = opens

    def start(self, call: Call, sink: Sink) -> ScriptedCall:
        return ScriptedCall(self, call, sink)


class ScriptedCall:
    def __init__(self, engine: Engine, call: Call, sink: Sink) -> None:
        self._engine = engine
        self._call = call
        self._sink = sink
        self._steps = iter(engine.steps)
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        if engine.opens is not None:
            self._later(engine.opens, self._open)

    def _later(self, seconds: float, then: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def _open(self) -> None:
        self._engine.calls.append(self._call)
        self._sink.sent()
        self._next()

    def _next(self) -> None:
        after_s, what = next(self._steps, (0.0, None))
        if after_s:
            self._later(after_s, lambda: self._step(what))
        else:
            self._step(what)

    def _step(self, what: bytes | None) -> None:
        if what is not None:
            if not self._sink.take(Batch(TOKEN % what, 1)) and not self._ended:
                self._next()
            return
        self._sink.take(Batch(END, 0, None, "stop"))
        if not self._ended:
            self._ended = True
            self._sink.ended(None)

    def resume(self) -> None:
        self._next()

    def abort(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()


class Client:
    """A responder in memory. `status` is that of the answer (None: nothing was sent)."""

    paused = False

    def __init__(self) -> None:
        self.status: int | None = None
        self.written = b""
        self.ended = self.left = self.broken = False
        self.on_left: Callable[[], None] | None = None
        self.on_shutdown: Callable[[], None] | None = None

    @property
    def response_started(self) -> bool:
        return self.status is not None

    def begin(self, status: int, headers: bytes, data: bytes) -> None:
        assert not self.response_started
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


@dataclass
class Relayed:
    """One request on its way. `records` are those that were finished: one, at the end."""

    runner: Runner
    client: Client
    finished: asyncio.Event
    records: list[RequestRecord] = field(default_factory=list)

    def leave(self) -> None:
        """Its client leaves."""
        self.client.on_left()

    @property
    def record(self) -> RequestRecord:
        (record,) = self.records
        return record


def start(
    runner: Runner, engines: Mapping[str, Engine], request: Request, reservation: KeyReservation | None = None
) -> Relayed:
    """Bring a request in."""
    records: list[RequestRecord] = []
    finished = asyncio.Event()

    def finish(record: RequestRecord) -> None:
        record.complete()
        records.append(record)
        finished.set()

    gateway: Any = SimpleNamespace(
        runner=runner,
        fleet=SimpleNamespace(backend=engines.__getitem__),
        predictor=SimpleNamespace(models=SimpleNamespace(name="")),
        finish=finish,
    )
    record = RequestRecord(id=request.id, received_at=0.0, api="chat", arrived_at=request.arrived_at)
    client = Client()
    codec = OpenAICodec(False)
    Relay(gateway, client, "chat", {}, codec, request, record, [], reservation).start()  # type: ignore[arg-type]
    return Relayed(runner, client, finished, records)


def relayed(
    scheduler: Scheduler,
    engines: Mapping[str, Engine],
    request: Request,
    *later: tuple[float, Callable[[Relayed], Any]],
    reservation: KeyReservation | None = None,
) -> Relayed:
    """One request from its arrival to its record; at each time of `later` something is done to it."""

    async def main() -> Relayed:
        loop = asyncio.get_running_loop()
        runner = Runner(scheduler, loop.time)
        found = start(runner, engines, request, reservation)
        for at, what in later:
            loop.call_at(at, what, found)
        await found.finished.wait()
        runner.stop()
        await asyncio.sleep(10.0)  # nothing comes after it
        return found

    return virtual_time.run(main())


def saying(*words: bytes, after_s: float = 0.0) -> Sequence[Step]:
    """An engine that says words, the first one after some seconds, the others a second apart."""
    return [(after_s if at == 0 else 1.0, word) for at, word in enumerate(words)]
