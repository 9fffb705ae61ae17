"""The runner and a relay on a scripted scheduler: what goes where, and when the timer is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from router.core.errors import UpstreamError
from router.core.events import (
    Arrived,
    Cancel,
    Decision,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Instruction,
    Refuse,
    Tick,
)
from router.core.interfaces import Batch
from router.core.refusals import failed
from router.core.types import Candidate, EndedHow, Prediction, Request
from router.gateway.codecs.openai.codec import OpenAICodec
from router.gateway.relay.relay import Exchange, Relay
from router.gateway.relay.runner import Runner
from router.store.records import RequestRecord
from tests import virtual_time

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'


class Scripted:
    """A scheduler that answers by script."""

    def __init__(self, answer: Callable[[Event], list[Instruction]]) -> None:
        self.answer = answer
        self.heard: list[tuple[Event, float]] = []
        self.queue_depth = 0
        self.wake_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Instruction]:
        self.heard.append((event, now))
        return self.answer(event)

    def knows(self, request_id: str) -> bool:
        return False


def dispatch(attempt: int, *, hedge: bool = False) -> Dispatch:
    candidate = Candidate(f"i{attempt}", "m", "m")
    decision = Decision("p", 0.0, 0, (), None, ())
    return Dispatch("r", attempt, candidate, None, False, Prediction(), decision, hedge=hedge)


def request() -> Request:
    return Request("r", 0.0, "p", ("m",), prompt_tokens=3)


async def idle() -> None:
    await asyncio.Event().wait()


def test_hedges_and_cancels_are_not_waited_for() -> None:
    async def main() -> None:
        answers: dict[type, list[Instruction]] = {
            Arrived: [dispatch(1)],
            Tick: [dispatch(2, hedge=True)],
            FirstToken: [Cancel("r", 1)],
            Ended: [Refuse("r", failed(2))],
        }
        scheduler = Scripted(lambda event: answers[type(event)])
        runner = Runner(scheduler, asyncio.get_running_loop().time)  # type: ignore[arg-type]
        task = asyncio.ensure_future(idle())
        beside: list[Instruction] = []
        ticket = runner.submit(request(), task, beside.append)
        assert await ticket.next() == dispatch(1)
        runner.apply(Tick())
        assert beside == [dispatch(2, hedge=True)]
        runner.apply(FirstToken("r", 2), ticket)  # also when it answers the ticket's own event
        assert beside[1:] == [Cancel("r", 1)]
        runner.apply(Ended("r", 2, EndedHow.FAILED), ticket)
        assert isinstance(await ticket.next(), Refuse)
        assert not task.cancelling()
        runner.apply(Ended("r", 2, EndedHow.FAILED))  # in nobody's name: it interrupts
        assert ticket.interrupted
        assert task.cancelling()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    virtual_time.run(main())


def test_a_dispatch_may_bring_an_earlier_wake_up() -> None:
    """A slot frees and the queue's last request goes out, which may be hedged soon."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def answer(event: Event) -> list[Instruction]:
            if isinstance(event, Ended):
                scheduler.queue_depth, scheduler.wake_at = 0, loop.time() + 0.5
                return [dispatch(1)]
            if isinstance(event, Tick):
                scheduler.wake_at = None if loop.time() > 60 else 100.0
            return []

        scheduler = Scripted(answer)
        scheduler.queue_depth, scheduler.wake_at = 1, 100.0
        runner = Runner(scheduler, loop.time)  # type: ignore[arg-type]
        task = asyncio.ensure_future(idle())
        runner.submit(request(), task, lambda _: None)
        await asyncio.sleep(2.0)
        runner.apply(Ended("other", 1, EndedHow.OK))
        await asyncio.sleep(120.0)
        assert [at for event, at in scheduler.heard if isinstance(event, Tick)] == [2.5, 100.0]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    virtual_time.run(main())


class Engine:
    """A backend and its stream: a token after a while, then the end; None: it breaks off."""

    def __init__(self, said: bytes | None, after_s: float = 0.0) -> None:
        self.said, self.after_s = said, after_s
        self.calls = 0
        self.aborted = asyncio.Event()

    async def stream(self, call: Any) -> Engine:
        self.calls += 1
        return self

    async def pump(self, sink: Callable[[Batch], bool]) -> None:
        try:
            async with asyncio.timeout(self.after_s):
                await self.aborted.wait()
        except TimeoutError:
            if self.said is None:
                raise UpstreamError("broken") from None
            sink(Batch(TOKEN % self.said, 1))
        else:
            raise UpstreamError("aborted")

    def abort(self) -> None:
        self.aborted.set()


class Responder:
    paused = False

    def __init__(self) -> None:
        self.started = False
        self.written = b""

    def begin(self, status: int, headers: bytes, data: bytes) -> None:
        assert not self.started
        self.started = True
        self.written += data

    def write(self, data: bytes) -> None:
        self.written += data

    def end(self, data: bytes) -> None:
        self.written += data


def relayed(scheduler: Scripted, engines: dict[str, Engine], later: Callable[[Runner], None]) -> Any:
    """Record and bytes of one request; `later` is called with the runner a second after its arrival."""

    async def main() -> tuple[RequestRecord, bytes]:
        loop = asyncio.get_running_loop()
        runner = Runner(scheduler, loop.time)  # type: ignore[arg-type]
        gateway: Any = SimpleNamespace(
            runner=runner,
            fleet=SimpleNamespace(backend=engines.__getitem__, candidate_headers=lambda candidate: b""),
            finish=lambda record: None,
            artifacts=SimpleNamespace(name=""),
        )
        record = RequestRecord(id="r", received_at=0.0, api="chat", arrived_at=0.0)
        exchange = Exchange("chat", {}, OpenAICodec(False), True, False, request(), record, [])
        responder = Responder()
        connection = SimpleNamespace(transport=SimpleNamespace(is_closing=lambda: False), on_disconnect=None)
        loop.call_later(1.0, later, runner)
        await Relay(gateway, exchange, responder).run(connection)  # type: ignore[arg-type]
        return record, responder.written

    return virtual_time.run(main())


def test_an_attempt_that_is_given_up_before_it_began() -> None:
    """All in one turn: the queued request is dispatched, hedged, and its first attempt cancelled."""
    queued: list[Instruction] = [dispatch(1), dispatch(2, hedge=True), Cancel("r", 1)]
    scheduler = Scripted(lambda event: queued if isinstance(event, Tick) else [])
    engines = {"i1": Engine(b"a"), "i2": Engine(b"b", 1.0)}
    record, written = relayed(scheduler, engines, lambda runner: runner.apply(Tick()))
    assert (record.outcome, record.instance, record.hedged) == ("ok", "i2", True)
    assert [attempt.number for attempt in record.attempt_records] == [2]
    assert (TOKEN % b"b" in written, TOKEN % b"a" in written, engines["i1"].calls) == (True, False, 0)


def test_a_scheduler_that_forgets_to_cancel() -> None:
    """Even then nothing of the slower one is passed on."""
    answers: dict[type, list[Instruction]] = {Arrived: [dispatch(1)], Tick: [dispatch(2, hedge=True)]}
    scheduler = Scripted(lambda event: answers.get(type(event), []))
    engines = {"i1": Engine(b"a", 5.0), "i2": Engine(b"b", 1.0)}
    record, written = relayed(scheduler, engines, lambda runner: runner.apply(Tick()))
    assert (record.outcome, record.instance) == ("ok", "i2")
    assert TOKEN % b"a" not in written
    hows = {attempt.instance: attempt.ended_how for attempt in record.attempt_records}
    assert hows == {"i1": EndedHow.HEDGE_LOST, "i2": EndedHow.OK}


def test_a_hedge_that_is_given_up_before_its_first_step() -> None:
    """Its task never ran; the request goes on as if there had been none."""
    answers: dict[type, list[Instruction]] = {
        Arrived: [dispatch(1)],
        Tick: [dispatch(2, hedge=True), Cancel("r", 2)],
    }

    def answer(event: Event) -> list[Instruction]:
        if isinstance(event, Ended) and event.how is EndedHow.FAILED:
            return [dispatch(3)]
        return answers.get(type(event), [])

    engines = {"i1": Engine(None, 2.0), "i2": Engine(b"b"), "i3": Engine(b"c")}
    record, written = relayed(Scripted(answer), engines, lambda runner: runner.apply(Tick()))
    assert (record.outcome, record.instance, engines["i2"].calls) == ("ok", "i3", 0)
    assert TOKEN % b"c" in written
    hows = [attempt.ended_how for attempt in record.attempt_records]
    assert hows == [EndedHow.FAILED, EndedHow.HEDGE_LOST, EndedHow.OK]
