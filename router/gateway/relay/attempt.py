"""One attempt at an engine: its stream, and what has come of it so far.

What comes before the first token is held back, so that a failure can still go to another candidate and the status line is
true when it leaves. With the first token the response begins; from then on there is one write for each read. A client that
wants no stream gets the answer put together at the end.

The engine's stream is paused while the client is slower than the engine, and while an event waits for money. It goes on when
neither holds any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from router.core.errors import AnswerTooLarge, OutOfSockets, UpstreamError, UpstreamRejected
from router.core.events import Allow, Dispatch, Failure, FailureKind
from router.core.interfaces import Backend, Batch, Call, Stream
from router.gateway.codecs.codec import ApiCodec
from router.gateway.codecs.openai.assemble import Assembler
from router.gateway.http.responder import Responder
from router.gateway.relay.exchange import Exchange
from router.gateway.relay.metered import MeteredStream, tokens_of

logger = logging.getLogger("headway")


class Listener(Protocol):
    """Who follows an attempt."""

    def clock(self) -> float:
        """Seconds; the clock of all times here."""
        ...

    def begin_stream(self, attempt: Attempt, data: bytes) -> None:
        """Send the head of the response and its first bytes."""
        ...

    def first_token(self, attempt: Attempt) -> None:
        """Its first token is here. Another attempt is aborted before this returns."""
        ...

    def metered(self, attempt: Attempt, cost_usd: float) -> None:
        """Its cost has passed what its allowance wants reported."""
        ...

    def succeeded(self, attempt: Attempt) -> None:
        """It has given its whole answer."""
        ...

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """It has failed."""
        ...

    def broken(self) -> None:
        """A fault of ours ended it."""
        ...


class _Cut(Exception):
    """The answer has reached what its money pays for."""


class Attempt:
    """What one `Dispatch` starts. Times are on the driver's clock in seconds.

    `aborted` says that it was given up: whatever it still raises or returns is of no interest. `cut` says that its money
    ended it, `sent` that the engine was given the request. `answer` is what it gave, if it was not streamed to the
    client.
    """

    __slots__ = (
        "_assembler",
        "_catching_up",
        "_codec",
        "_exchange",
        "_held",
        "_last_at",
        "_listener",
        "_metered",
        "_passing",
        "_responder",
        "_stopped",
        "_stream",
        "_taking",
        "_task",
        "aborted",
        "answer",
        "cut",
        "dispatch",
        "finish_reason",
        "first_at",
        "itl_max_s",
        "sent",
        "span_id",
        "tokens",
        "usage",
    )

    def __init__(
        self,
        listener: Listener,
        exchange: Exchange,
        responder: Responder,
        dispatch: Dispatch,
        metered: MeteredStream | None,
    ) -> None:
        self._listener = listener
        self._exchange = exchange
        self._responder = responder
        self._codec: ApiCodec = exchange.codec
        self._metered = metered
        self._task: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self._assembler: Assembler | None = None
        self._held: list[bytes] = []  # what came before the first token
        self._passing = False  # the response has begun with it
        self._taking = False  # a batch is being taken
        self._catching_up: asyncio.Future[None] | None = None
        self._stopped: Exception | None = None  # what ended it while it was paused
        self._last_at = 0.0
        self.dispatch = dispatch
        self.span_id: int | None = None
        self.first_at: float | None = None
        self.tokens = 0
        self.usage: Mapping[str, Any] | None = None
        self.finish_reason: str | None = None
        self.itl_max_s = 0.0
        self.aborted = self.cut = self.sent = False
        self.answer: dict[str, Any] | None = None

    # --- its life ------------------------------------------------------------------------------------
    def start(self, find: Callable[[str], Backend], call: Call) -> None:
        """Send the request and follow the answer, in a task of its own. `find` gives an instance's adapter, or raises
        UpstreamError."""
        self._task = asyncio.get_running_loop().create_task(self._run(find, call))

    def abort(self) -> None:
        """End it at once; nothing of it is passed on from here on, whatever its task still does."""
        self.aborted = True
        if self._stream is not None:
            self._stream.abort()
        elif self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()  # it waits for the engine to begin

    def allow(self, instruction: Allow) -> None:
        """It may cost more now, or it ends."""
        metered = self._metered
        if metered is None or self.aborted:
            return
        metered.meter.allow(instruction.allowance)
        if not metered.waiting or self._taking or self._stream is None:
            return  # `_take_metered` looks at it
        try:
            paused = self._go_on(metered)
        except Exception as error:  # noqa: BLE001 (raised again by `_follow`, whose task it belongs to)
            self._stopped = error
            self._stream.abort()
            return
        if not paused:
            self._resume()

    async def _run(self, find: Callable[[str], Backend], call: Call) -> None:
        try:
            backend = find(call.candidate.instance)
            if self._exchange.request.engine_streams:
                await self._follow(backend, call)
            else:
                await self._wait(backend, call)
        except UpstreamError as error:
            if not self.aborted:
                self._listener.failed(self, failure_of(error))
        except Exception:
            if not self.aborted:
                logger.exception("request %s failed inside the gateway", self.dispatch.request_id)
                self._listener.broken()
        else:
            if not self.aborted:
                self._listener.succeeded(self)

    async def _wait(self, backend: Backend, call: Call) -> None:
        """Take an answer in one piece."""
        answer = await backend.complete(call)
        if self._codec.adjust is not None:
            await self._codec.adjust(answer)
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
        answer["model"] = self.dispatch.candidate.model
        self.answer = answer

    async def _follow(self, backend: Backend, call: Call) -> None:
        """Stream it to its end, to the client or into an assembler."""
        exchange = self._exchange
        if not exchange.request.client_streams:
            self._assembler = Assembler("chat" if exchange.api == "chat" else "completions")
        stream = self._stream = await backend.stream(call)
        try:
            await stream.pump(self._take if self._metered is None else self._take_metered)
        except _Cut:
            self._cut_here()
        except UpstreamError:
            if self._stopped is None:
                raise
            if not isinstance(self._stopped, _Cut):
                raise self._stopped from None
            self._cut_here()
        finally:
            self._stream = None
            stream.abort()  # does nothing after a clean end
            if self._catching_up is not None:
                self._catching_up.cancel()
        if self._assembler is not None and not self.aborted:
            if self.cut:
                self._assembler.feed(exchange.length_event(self.dispatch.candidate.model))
            self.answer = self._assembler.result()
            self.answer["usage"] = self.usage_or_count()

    def _cut_here(self) -> None:
        self.cut = True
        self.finish_reason = "length"

    # --- the stream ----------------------------------------------------------------------------------
    def _take(self, batch: Batch) -> bool:
        """Pass one batch on in the moment it arrives; True if the client is too slow to take more now."""
        data, tokens, usage, finish_reason = batch
        first = False
        if tokens:
            now = self._listener.clock()
            self.tokens += tokens
            if self.first_at is None:
                self.first_at = now
                first = True
            else:
                self.itl_max_s = max(self.itl_max_s, now - self._last_at)
            self._last_at = now
        if usage is not None:
            self.usage = usage
        if finish_reason is not None:
            self.finish_reason = finish_reason
        responder = self._responder
        if self._assembler is not None:
            self._assembler.feed(data)
        elif self._passing:
            out = self._codec.events(data)
            if out:
                responder.write(out)
        else:
            self._held.append(data)
            if first:
                self.begin(b"")
        if first:  # reported after it is on its way
            self._listener.first_token(self)
        if responder.paused:
            if self._catching_up is None:
                self._catching_up = asyncio.ensure_future(self._catch_up())
            return True
        return False

    def _take_metered(self, batch: Batch) -> bool:
        """The same as far as the money reaches."""
        metered = self._metered
        assert metered is not None  # noqa: S101 (it is the sink for nothing else)
        self._taking = True
        try:
            return self._pass(metered, metered.take(batch))
        finally:
            self._taking = False

    def _go_on(self, metered: MeteredStream) -> bool:
        """Pass on what waited for money."""
        return self._pass(metered, metered.go_on())

    def _pass(self, metered: MeteredStream, kept: Batch) -> bool:
        paused = self._take(kept) if kept.data or kept.usage is not None else False
        meter = metered.meter
        self.tokens, self.usage = meter.tokens, metered.usage
        if metered.stopped:
            raise _Cut
        if meter.report_usd is not None and not self.aborted:
            allowance, cost_usd, meter.report_usd = meter.allowance, meter.report_usd, None
            self._listener.metered(self, cost_usd)
            if metered.waiting and meter.allowance is not allowance:
                return self._go_on(metered)
        return paused or metered.waiting

    def _resume(self) -> None:
        waiting = self._metered is not None and self._metered.waiting
        if self._stream is not None and self._catching_up is None and not waiting:
            self._stream.resume()

    def begin(self, last: bytes) -> None:
        """Begin the response with what was held back, and `last`."""
        self._passing = True
        self._listener.begin_stream(self, self._codec.first(b"".join(self._held) + last))

    async def _catch_up(self) -> None:
        """Let the engine's stream go on when the client has read what was written. The server cuts off one that does
        not read (`limits.client_stall_s`), which ends the request."""
        await self._responder.drain()
        self._catching_up = None
        self._resume()

    # --- what it gave --------------------------------------------------------------------------------
    @property
    def cut_by_money(self) -> bool:
        """Whether it was cut, and by its money rather than by the client's own bound."""
        return self.cut and self._metered is not None and self._metered.meter.by_money

    @property
    def output_tokens(self) -> int:
        """The engine's count, else the tokens seen."""
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
        prompt, output = self._exchange.request.prompt_tokens, self.tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def failure_of(error: UpstreamError) -> Failure:
    """An attempt's error as the scheduler takes it."""
    if isinstance(error, UpstreamRejected):
        return Failure(FailureKind.REJECTED, str(error), error.status, error.param, error.code)
    kind = FailureKind.ERROR
    if isinstance(error, AnswerTooLarge):
        kind = FailureKind.TOO_LARGE
    elif isinstance(error, OutOfSockets):
        kind = FailureKind.NO_SOCKET
    elif error.unreachable:
        kind = FailureKind.UNREACHABLE
    return Failure(kind, str(error), error.status)
