"""Engines of a live gateway without sockets: the engine models on the loop's own time, as the emulator drives
them, behind `router.core.interfaces.Backend`.

They take one step at a time and tell every token, unlike the simulator's, which jump.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from backends.emulator.vllm_metrics import VllmMetrics
from backends.engine import (
    Engine,
    PromptTooLong,
    QueueFull,
    Sequence,
    SlotEngine,
    profiles,
)
from backends.engine.sequence import Finish
from backends.metrics import MetricsReader
from benchmarks.simulator import Arrival
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS
from router.core.errors import UpstreamError, UpstreamRejected
from router.core.interfaces import Batch, Call, Sink
from router.core.profile import EngineProfile
from router.core.types import Candidate, LoadReport

#: What the adapter asks an Ollama for where the fleet names no context.
_OLLAMA_CONTEXT_TOKENS = 32_768


def _event(call: Call, finish_reason: str | None = None) -> bytes:
    delta = {"content": "a "} if finish_reason is None else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {
        "id": call.request_id,
        "object": "chat.completion.chunk",
        "model": call.candidate.model,
        "choices": [choice],
    }
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


class LiveStream:
    """`router.core.interfaces.Stream` over one sequence of a live engine."""

    def __init__(self, engine: LiveEngine, call: Call, sequence: Sequence, order: float) -> None:
        self.order = order
        self._engine = engine
        self._call = call
        self._sequence = sequence
        self._token = _event(call)
        self._tokens = 0
        self._sink: Sink | None = None
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def pump(self, sink: Sink) -> None:
        self._sink = sink
        try:
            await self._finished
        except BaseException:
            self.abort()
            raise

    def resume(self) -> None:
        raise AssertionError("nobody pauses here")

    async def read(self) -> Batch | None:
        raise AssertionError("the relay pumps")

    def abort(self) -> None:
        self._engine.abort(self._sequence.id)
        self.fail(UpstreamError("given up"))  # for another task that may pump

    def take(self, new_tokens: int, finish: str | None) -> None:
        """Hand on what a step gave. The relay's task hears of an end one turn of the loop later."""
        if self._finished.done():
            return
        assert self._sink is not None
        self._tokens += new_tokens
        data = self._token * new_tokens
        usage: dict[str, Any] | None = None
        if finish is not None:
            data += _event(self._call, finish)
            prompt_tokens = self._sequence.prompt_tokens
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": self._tokens}
        try:
            assert not self._sink(Batch(data, new_tokens, usage, finish))
        except BaseException as error:  # noqa: BLE001 (raised again by `pump`)
            self._finished.set_exception(error)
        else:
            if finish is not None:
                self._finished.set_result(None)

    def fail(self, error: UpstreamError) -> None:
        if not self._finished.done():
            self._finished.set_exception(error)


class LiveEngine:
    """One engine model with one timer, at its next moment. Built from the fleet file alone."""

    def __init__(
        self,
        fixed_slots: bool,
        candidates: Mapping[str, Candidate],
        found: Mapping[str, EngineProfile],
        speed: float = 1.0,
    ) -> None:
        self._fixed_slots = fixed_slots
        self.speed = speed
        self.down = False
        self._loop = asyncio.get_running_loop()
        self._candidates = candidates
        self._profiles = found
        self._streams: dict[str, LiveStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s: float | None = None  # of the model's time, when the timer fires
        self._reached_s = 0.0
        self._restart()

    def _restart(self) -> None:
        self.slots: SlotEngine | None = None
        self.batching: Engine | None = None
        if self._fixed_slots:
            known = all(profile.name in profiles.names() for profile in self._profiles.values())
            self.slots = SlotEngine(
                self._profiles,
                context_tokens=max(
                    each.context_tokens or _OLLAMA_CONTEXT_TOKENS for each in self._candidates.values()
                ),
                model_bytes={
                    model: profiles.weights_bytes(profile.name)
                    for model, profile in self._profiles.items()
                    if known
                },
                memory_bytes=max(profiles.memory_bytes(profile.name) for profile in self._profiles.values())
                if known
                else None,
                keep_alive_s=300.0 * self.speed,
            )
        else:
            ((model, profile),) = self._profiles.items()
            context_tokens = self._candidates[model].context_tokens
            self.batching = Engine(profile, context_tokens=context_tokens)
            self._metrics = VllmMetrics(self.batching, model, context_tokens or 1_000_000, self.speed)
            self._reader = MetricsReader()

    @property
    def model(self) -> Engine | SlotEngine:
        model = self.batching or self.slots
        assert model is not None
        return model

    @property
    def busy(self) -> int:
        return len(self._streams)

    def submit(self, sequence: Sequence, call: Call, order: float) -> LiveStream:
        """Start a sequence. Raises what the engine does."""
        try:
            self.model.submit(sequence, self._hand_out())
        finally:
            self._arm()
        stream = self._streams[sequence.id] = LiveStream(self, call, sequence, order)
        return stream

    def abort(self, seq_id: str) -> None:
        if seq_id in self._streams:
            now_s = self._hand_out()
            self._streams.pop(seq_id, None)
            self.model.abort(seq_id, now_s)
            self._arm()

    def kill(self) -> None:
        """The process dies: all streams break, in order of their requests' arrival."""
        self._hand_out()
        broken = sorted(self._streams.values(), key=lambda stream: stream.order)
        self._streams.clear()
        self._restart()
        self._arm()
        self.down = True
        for stream in broken:
            stream.fail(UpstreamError("the connection was reset"))

    def revive(self) -> None:
        """It is back, with nothing in memory."""
        self.down = False

    def report(self) -> LoadReport:
        """What the adapters read: vLLM's metrics page, Ollama's list of loaded models."""
        now_s = self._hand_out()
        self._arm()
        if self.slots is not None:
            loaded = {self._candidates[each.model].upstream_model for each in self.slots.loaded(now_s)}
            return LoadReport(loaded_models=frozenset(loaded))
        return self._reader.read(self._metrics.page())

    def _fire(self) -> None:
        self._timer = None
        if self._due_s is not None:
            self._reached_s = self._due_s  # divided and multiplied by the speed it need not be the same
        self._hand_out()
        self._arm()

    def _hand_out(self) -> float:
        """Tell what there is by now, and the model's time."""
        now_s = self._reached_s = max(self._reached_s, self._loop.time() * self.speed)
        for progress in self.model.advance(now_s):
            finish = progress.finished
            seq_id = progress.seq_id
            stream = self._streams.get(seq_id) if finish is None else self._streams.pop(seq_id, None)
            if stream is not None:
                stream.take(progress.new_tokens, finish)
        return now_s

    def _arm(self) -> None:
        due_s = self.model.next_at()
        if self._timer is not None:
            if self._due_s == due_s:
                return
            self._timer.cancel()
            self._timer = None
        self._due_s = due_s
        if due_s is not None:
            self._timer = self._loop.call_at(due_s / self.speed, self._fire)


class LiveBackend:
    """`router.core.interfaces.Backend` over a live engine. `truths` say by request how long answers are."""

    def __init__(self, kind: str, engine: LiveEngine, truths: Mapping[str, Arrival]) -> None:
        self.kind = kind
        self.engine = engine
        self._truths = truths

    @property
    def busy(self) -> int:
        return self.engine.busy

    async def stream(self, call: Call) -> LiveStream:
        await asyncio.sleep(0)  # a connection takes a turn of the loop, whether it is made or refused
        if self.engine.down:
            raise UpstreamError("the connection was refused", unreachable=True)
        request, lengths, _, prefix_hashes = self._truths[call.request_id]
        output_tokens = lengths[call.candidate.model]
        prompt_tokens = request.prompt_tokens
        finish: Finish = "stop"
        if call.max_output_tokens is not None and output_tokens > call.max_output_tokens:
            output_tokens, finish = call.max_output_tokens, "length"
        slots = self.engine.slots
        if slots is not None and prompt_tokens >= (limit := slots.slot_context_tokens(call.candidate.model)):
            # An Ollama cuts a prompt's head and keeps some room for the answer (`fit_context`).
            prompt_tokens = max(1, limit - min(output_tokens, max(1, limit // 2)))
            prefix_hashes = ()
        sequence = Sequence(
            call.request_id,
            prompt_tokens,
            output_tokens,
            prefix_hashes,
            call.candidate.model,
            finish,
            prefix_tokens=PREFIX_BLOCK_TOKENS,
        )
        try:
            stream = self.engine.submit(sequence, call, request.arrived_at)
        except QueueFull as error:
            raise UpstreamError(str(error), 503) from None
        except PromptTooLong as error:
            raise UpstreamRejected(str(error), code="context_length_exceeded") from None
        if call.sent is not None:
            call.sent()
        return stream

    async def complete(self, call: Call) -> dict[str, Any]:
        raise AssertionError("everything streams here")

    async def count_tokens(self, call: Call) -> int | None:
        return None

    async def probe(self) -> bool:
        await asyncio.sleep(0)
        return not self.engine.down

    async def load(self) -> LoadReport:
        for _ in range(2):  # it is asked, and it answers: what was sent to it before is there
            await asyncio.sleep(0)
        if self.engine.down:
            raise UpstreamError("the connection was refused")
        return self.engine.report()

    async def aclose(self) -> None:
        """Nothing is open."""
