"""The gateway's driver on virtual time: its runner, relay and monitor, over the simulator's engines, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from backends.engine import PromptTooLong, QueueFull
from benchmarks.simulator import Arrival, Fleet, InstanceLoss
from benchmarks.simulator.engines import SimulatedEngine
from predictors.online.predictor import OnlinePredictor
from router.core.errors import UpstreamError, UpstreamRejected
from router.core.interfaces import Batch, Call, Sink
from router.core.types import LoadReport
from router.gateway.fleet.monitor import Monitor
from router.gateway.runner import Runner
from tests import virtual_time
from tests.integration.parity.traces import Trace
from tests.unit.core.ledger import listen
from tests.unit.gateway.relays import END, TOKEN, Relayed, start


class LiveEngine:
    """`router.core.interfaces.Backend` over one of the simulator's engines, which gives each token by itself."""

    def __init__(self, engine: SimulatedEngine, truths: Mapping[str, Arrival]) -> None:
        self._engine = engine
        self._truths = truths
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, LiveStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        engine._engine.every_token = True

    @property
    def busy(self) -> int:
        return len(self._streams)

    def start(self, call: Call, sink: Sink) -> LiveStream:
        request, lengths, _, _ = self._truths[call.request_id]
        full = lengths[call.candidate.model]
        wanted = full if call.max_output_tokens is None else min(full, call.max_output_tokens)
        reason = "length" if wanted < full else "stop"
        stream = LiveStream(self, call, sink, reason, wanted, request.arrived_at)
        # A connection takes a turn of the loop, whether it is made or refused.
        self._loop.call_soon(stream.open)
        return stream

    def submit(self, stream: LiveStream) -> None:
        """Send a call. Raises UpstreamError."""
        if self._engine.down:
            raise UpstreamError("the connection was refused", unreachable=True)
        call = stream.call
        request, _, _, prefix_hashes = self._truths[call.request_id]
        self.hand_out()
        try:
            stream.prompt_tokens = self._engine.submit(
                stream.id,
                call.candidate.model,
                request.prompt_tokens,
                stream.wanted,
                prefix_hashes,
                self._loop.time(),
            )
        except QueueFull as error:
            raise UpstreamError(str(error), 503) from None
        except PromptTooLong as error:
            raise UpstreamRejected(str(error), code="context_length_exceeded") from None
        finally:
            self._arm()
        self._streams[stream.id] = stream

    def abort(self, stream: LiveStream) -> None:
        if self._streams.get(stream.id) is stream:
            self.hand_out()
            self._streams.pop(stream.id, None)
            self._engine.abort(stream.id, self._loop.time())
            self._arm()

    def kill(self) -> None:
        """The process dies: all streams break, in order of their requests' arrival."""
        self.hand_out()
        broken = sorted(self._streams.values(), key=lambda stream: stream.arrived_at)
        self._streams.clear()
        self._engine.restart()
        self._engine._engine.every_token = True
        self._engine.down = True
        self._arm()
        for stream in broken:
            stream.fail(UpstreamError("the connection was reset"))

    def revive(self) -> None:
        self._engine.down = False

    def hand_out(self) -> None:
        """Pass on what there is by now."""
        for progress in self._engine.advance(self._loop.time()):
            stream = self._streams.get(progress.seq_id)
            if progress.finished is not None:
                self._streams.pop(progress.seq_id, None)
            if stream is not None:
                stream.take(progress.new_tokens, ended=progress.finished is not None)

    def _fire(self) -> None:
        self._timer = None
        self.hand_out()
        self._arm()

    def _arm(self) -> None:
        before, due = self._engine.due, self._engine.next_at()
        if self._timer is not None:
            if due == before:
                return  # timers of one moment fire in the order in which they were set
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._fire)

    async def probe(self) -> bool:
        await asyncio.sleep(0)
        return not self._engine.down

    async def load(self) -> LoadReport:
        for _ in range(2):  # it is asked, and it answers: what was sent to it before is there
            await asyncio.sleep(0)
        if self._engine.down:
            raise UpstreamError("the connection was refused")
        self.hand_out()
        self._arm()
        return self._engine.report(self._loop.time())

    async def mismatches(self) -> list[str]:
        return []


class LiveStream:
    """`router.core.interfaces.OpenCall` over one sequence of a live engine."""

    def __init__(
        self, engine: LiveEngine, call: Call, sink: Sink, reason: str, wanted: int, arrived_at: float
    ) -> None:
        self.id = f"{call.request_id} {call.candidate.model}"
        self.call = call
        self.wanted = wanted
        self.arrived_at = arrived_at
        self.prompt_tokens = 0
        self._engine = engine
        self._sink = sink
        self._reason = reason
        self._tokens = 0
        self._ended = False

    def open(self) -> None:
        """Send it."""
        if self._ended:
            return
        try:
            self._engine.submit(self)
        except UpstreamError as error:
            self.fail(error)
        else:
            self._sink.sent()

    def resume(self) -> None:
        raise AssertionError("it never pauses")

    def abort(self) -> None:
        self._ended = True
        self._engine.abort(self)

    def take(self, new_tokens: int, *, ended: bool) -> None:
        """Pass on what a step gave. An answer's end mark comes a turn of the loop later."""
        if self._ended:
            return
        self._tokens += new_tokens
        batch = Batch((TOKEN % b"a ") * new_tokens, new_tokens)
        if ended:
            usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self._tokens}
            batch = batch._replace(data=batch.data + END, usage=usage, finish_reason=self._reason)
        assert not self._sink.take(batch)
        if ended:
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._sink.ended(None)

    def fail(self, error: UpstreamError) -> None:
        asyncio.get_running_loop().call_soon(self._fail, error)

    def _fail(self, error: UpstreamError) -> None:
        if not self._ended:
            self._ended = True
            self._sink.failed(error)


def live_run(
    fleet: Fleet,
    arrivals: Iterable[Arrival],
    seed: int,
    losses: Sequence[InstanceLoss] = (),
    predictor: OnlinePredictor | None = None,
) -> Trace:
    """What the gateway's driver does with a workload."""
    return virtual_time.run(_run(fleet, list(arrivals), seed, losses, predictor))


async def _run(
    fleet: Fleet,
    arrivals: list[Arrival],
    seed: int,
    losses: Sequence[InstanceLoss],
    predictor: OnlinePredictor | None,
) -> Trace:
    loop, trace = asyncio.get_running_loop(), Trace()
    scheduler = fleet.scheduler(seed, predictor)
    listen(scheduler, trace.take)
    runner = Runner(scheduler, loop.time)
    truths = {arrival.request.id: arrival for arrival in arrivals}
    engines: dict[str, Any] = {name: LiveEngine(each, truths) for name, each in fleet.engines().items()}
    probes = fleet.config.probes
    monitor = Monitor(runner, probes.interval_s, probes.timeout_s)
    await monitor.probe_all(engines)
    monitor.watch(engines)
    for loss in losses:
        loop.call_at(loss.at_s, engines[loss.instance].kill)
        loop.call_at(loss.at_s + loss.for_s, engines[loss.instance].revive)
    under_way: list[Relayed] = []
    for arrival in arrivals:
        at, request = arrival.request.arrived_at, arrival.request
        loop.call_at(at, lambda request=request: under_way.append(start(runner, engines, request)))
    await asyncio.sleep(arrivals[-1].request.arrived_at - loop.time())
    await asyncio.sleep(0)  # the last arrival's timer comes first
    await asyncio.gather(*(each.finished.wait() for each in under_way))
    await monitor.stop()
    runner.stop()
    trace.add_records(each.record for each in under_way)
    return trace
