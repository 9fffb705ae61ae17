"""One attempt at an engine: its stream, and what has come of it so far.

An attempt runs in the task of its request; a hedge, the second attempt beside a late one, in a task of its own.
What comes before the first token is held back. With it the request's relay decides whose answer goes to the
client (`Relay.first_token`): an attempt that has lost is aborted in the same turn, and passes nothing on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from router.core.errors import UpstreamError
from router.core.events import Dispatch
from router.core.interfaces import Backend, Batch, Call, Stream
from router.core.types import EndedHow
from router.gateway.codecs.openai.assemble import Assembler
from router.gateway.relay.meter import TokenMeter, tokens_of
from router.store.records import AttemptRecord

if TYPE_CHECKING:
    from router.gateway.relay.relay import Relay


class _Cut(Exception):
    """The answer has reached what its money pays for."""


class Attempt:
    """What one `Dispatch` sets going; `await run(...)` once, or `took_whole` for an answer in one piece.

    Times are on the runner's clock in seconds. `lost` says that it was given up: whatever it still raises or
    returns is of no interest. `cut` says that its money ended it, `sent` that the engine was given the
    request, `answered` that what it answered was more than is read.

    The engine's stream is paused while the client is slower than the engine, and while an event waits for money; it
    goes on when neither holds any more.
    """

    __slots__ = (
        "_assembler",
        "_catching_up",
        "_clock",
        "_front",
        "_held",
        "_last_at",
        "_paid",
        "_passing",
        "_paying",
        "_relay",
        "_responder",
        "_stopped",
        "_stream",
        "answered",
        "cut",
        "dispatch",
        "finish_reason",
        "first_at",
        "itl_max_s",
        "lost",
        "record",
        "sent",
        "settled",
        "task",
        "tokens",
        "usage",
    )

    def __init__(self, relay: Relay, dispatch: Dispatch, task: asyncio.Task[Any] | None) -> None:
        self._relay = relay
        self._responder = relay.responder
        self._front = relay.exchange.codec
        self._clock = relay.clock
        self._stream: Stream | None = None
        self._assembler: Assembler | None = None
        self._held: list[bytes] = []  # what came before the first token
        self._passing = False  # the response has begun with it
        self._paid: TokenMeter | None = None
        self._catching_up: asyncio.Future[None] | None = None
        self._paying: asyncio.Future[None] | None = None
        self._stopped: Exception | None = None  # what ended it while it was paused
        self._last_at = 0.0
        self.task = task
        self.dispatch = dispatch
        self.first_at: float | None = None
        self.tokens = 0
        self.usage: Mapping[str, Any] | None = None
        self.finish_reason: str | None = None
        self.itl_max_s = 0.0
        self.lost = self.cut = self.settled = self.sent = self.answered = False
        candidate = dispatch.candidate
        self.record = AttemptRecord(
            number=dispatch.attempt,
            instance=candidate.instance,
            model=candidate.model,
            started_at=time.time(),
        )

    # --- the stream ----------------------------------------------------------------------------------
    async def run(self, backend: Backend, call: Call, paid: TokenMeter | None) -> None:
        """Stream it to its end, to the client or into an assembler. Raises UpstreamError."""
        exchange = self._relay.exchange
        if not exchange.stream:
            self._assembler = Assembler("chat" if exchange.api == "chat" else "completions")
        self._paid = paid
        stream = self._stream = await backend.stream(call)
        try:
            await stream.pump(self._take if paid is None else self._take_paid)
        except _Cut:
            self._end_here()
        except UpstreamError:
            if self._stopped is None:
                raise
            if not isinstance(self._stopped, _Cut):
                raise self._stopped from None
            self._end_here()
        finally:
            self._stream = None
            stream.abort()  # does nothing after a clean end
            for pause in (self._catching_up, self._paying):
                if pause is not None:
                    pause.cancel()

    def _end_here(self) -> None:
        self.cut = True
        self.finish_reason = "length"

    def _take(self, batch: Batch) -> bool:
        """Pass one batch on in the moment it arrives; True if the client is too slow to take more now."""
        data, tokens, usage, finish_reason = batch
        first = False
        if tokens:
            now = self._clock()
            self.tokens += tokens
            if self.first_at is None:
                self.first_at = now
                first = True
            else:
                gap_s = now - self._last_at
                self.itl_max_s = max(self.itl_max_s, gap_s)
            self._last_at = now
        if usage is not None:
            self.usage = usage
        if finish_reason is not None:
            self.finish_reason = finish_reason
        responder = self._responder
        if self._assembler is not None:
            self._assembler.feed(data)
        elif self._passing:
            out = self._front.events(data)
            if out:
                responder.write(out)
        else:
            self._held.append(data)
            if first:
                self.begin(b"")
        if first:  # told after it is on its way
            self._relay.first_token(self)
        if responder.paused:
            if self._catching_up is None:
                self._catching_up = asyncio.ensure_future(self._catch_up())
            return True
        return False

    def _take_paid(self, batch: Batch) -> bool:
        """The same as far as the money reaches."""
        paid = self._paid
        assert paid is not None  # noqa: S101 (it is the sink for nothing else)
        return self._pass_paid(paid, paid.take(batch))

    def _pass_paid(self, paid: TokenMeter, kept: Batch) -> bool:
        pause = self._take(kept) if kept.data or kept.usage is not None else False
        self.tokens, self.usage = paid.tokens, paid.usage
        if paid.spent:
            raise _Cut
        if paid.waiting:
            self._paying = asyncio.ensure_future(self._pay(paid))
            return True
        return pause

    async def _pay(self, paid: TokenMeter) -> None:
        """Wait for the money of what was kept back; then the stream goes on, or ends."""
        reservation = self._relay.exchange.reservation
        assert reservation is not None  # noqa: S101 (nothing waits without one)
        try:
            covered = await reservation.cover(self.dispatch.attempt, paid.needs_usd)
            self._paying = None
            if self.lost or self._stream is None:
                return
            pause = self._pass_paid(paid, paid.go_on(covered))
        except Exception as error:  # noqa: BLE001 (raised again by `run`, whose task it belongs to)
            self._stopped = error
            if self._stream is not None:
                self._stream.abort()
            return
        if not pause:
            self._go_on()

    def _go_on(self) -> None:
        if self._stream is not None and self._catching_up is None and self._paying is None:
            self._stream.resume()

    def begin(self, last: bytes) -> None:
        """Begin the response with what was held back, and `last`."""
        self._passing = True
        self._relay.begin_stream(self, self._front.first(b"".join(self._held) + last))

    async def _catch_up(self) -> None:
        """Let the engine's stream go on when the client has read what was written. The server cuts off one that does
        not read (`limits.client_stall_s`), which ends the request."""
        await self._responder.drain()
        self._catching_up = None
        self._go_on()

    def took_whole(self, answer: Mapping[str, Any]) -> None:
        """Take over what an answer in one piece says."""
        usage, choices = answer.get("usage"), answer.get("choices")
        self.usage = usage if isinstance(usage, dict) else None
        reasons = [
            choice.get("finish_reason")
            for choice in (choices if isinstance(choices, list) else ())
            if isinstance(choice, dict)
        ]
        if reasons:
            self.finish_reason = "length" if "length" in reasons else reasons[-1]
        if self.usage is None or not self.usage.get("completion_tokens"):
            self.tokens = tokens_of(answer)

    def assembled(self, last: bytes) -> dict[str, Any] | None:
        """The whole answer with `last` at its end; None if it went out as it came."""
        if self._assembler is None:
            return None
        self._assembler.feed(last)
        answer = self._assembler.result()
        answer["usage"] = self.usage_or_count()
        return answer

    def _made_unseen(self) -> int:
        """Tokens of an answer that was not waited for, as predicted for the time since it was begun."""
        request, dispatch, told = self._relay.exchange.request, self.dispatch, self.dispatch.prediction
        if not request.decodes or not told.tpot_s:
            return 0
        decoding_s = time.time() - self.record.started_at - (told.engine_ttft_s or 0.0)
        most = dispatch.max_output_tokens or dispatch.candidate.context_tokens or request.prompt_tokens
        return request.choices * max(0, int(min(most, decoding_s / told.tpot_s)))

    # --- its end -------------------------------------------------------------------------------------
    def give_up(self) -> None:
        """End it at once; nothing of it is passed on from here on, whatever its task still does."""
        if self.lost:
            return
        self.lost = True
        if self._stream is not None:
            self._stream.abort()
        elif self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()  # it waits for the engine to begin

    @property
    def cut_by_money(self) -> bool:
        """Whether it was cut, and by its money rather than by the client's own bound."""
        return self.cut and self._paid is not None and self._paid.by_money

    @property
    def output_tokens(self) -> int:
        """What the engine says, else the tokens seen."""
        usage = self.usage
        return self.tokens if usage is None else usage.get("completion_tokens") or self.tokens

    @property
    def prompt_tokens(self) -> int | None:
        """The engine's own count, if it gave one."""
        return None if self.usage is None else self.usage.get("prompt_tokens") or None

    def usage_or_count(self) -> Mapping[str, Any]:
        """The engine's usage, else one made of what is known."""
        if self.usage is not None:
            return self.usage
        prompt, output = self._relay.exchange.request.prompt_tokens, self.tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    @property
    def cost_usd(self) -> float:
        """What its prompt and the tokens so far cost."""
        prompt_tokens = self.prompt_tokens or self._relay.exchange.request.prompt_tokens
        return self.dispatch.candidate.price.cost_usd(prompt_tokens, self.output_tokens)

    def settle(self, how: EndedHow, error: str | None) -> None:
        """Close its record: tokens and what they cost. An engine that was given the prompt of an attempt that was given up
        is paid for it, whoever gave up: nobody knows how far it came. If it was to answer in one piece, it is also paid
        for the tokens that it usually makes in that time."""
        if self.settled:
            return
        self.settled = True
        if how is EndedHow.CANCELLED and self.sent and self._relay.exchange.whole:
            self.tokens = self._made_unseen()
        record, output_tokens = self.record, self.output_tokens
        record.ended_at = time.time()
        record.ended_how = how
        record.error = error
        record.output_tokens = output_tokens
        worked = self.answered or (how is not EndedHow.FAILED and self.sent)
        record.billed = how is EndedHow.OK or worked or output_tokens > 0
        record.cost_usd = self.cost_usd if record.billed else 0.0
        reservation = self._relay.exchange.reservation
        if reservation is not None:
            reservation.bill(self.dispatch.attempt, record.cost_usd)
