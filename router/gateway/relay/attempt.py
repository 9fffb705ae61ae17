"""One attempt at an engine: its stream, and its result so far.

What comes before the first token is held back, so that after a failure the request can still go to another candidate, and
the status line is right. With the first token the response begins; from then on there is one write for each read. For a client
that does not stream, the answer is put together and sent at the end.

The engine's stream is paused while the client is slower than the engine, and while an event waits for money. It resumes when
neither is the case any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from backends import sse_events
from backends.scanning import Assembler
from router.compiled import compiled_init
from router.core.errors import AnswerTooLarge, OutOfSockets, UpstreamError, UpstreamRejected
from router.core.events import (
    Allow,
    Dispatch,
    Ended,
    Failure,
    FailureKind,
    FirstToken,
    GivenUp,
    Metered,
    RequestEvent,
)
from router.core.interfaces import Backend, Batch, Call, OpenCall
from router.core.types import EndedHow, Request
from router.gateway.codecs.codec import ApiCodec
from router.gateway.http.client_request import ClientRequest
from router.gateway.relay.event_tokens import choices_of, tokens_of
from router.gateway.relay.metered import MeteredStream
from router.gateway.runner import Runner

logger = logging.getLogger("headway")


class Listener(Protocol):
    """Who follows an attempt: its request's relay."""

    runner: Runner
    client: ClientRequest
    api: str
    codec: ApiCodec
    request: Request

    def report(self, event: RequestEvent, now: float | None = None) -> None:
        """Feed an event to the scheduler. A fault of ours in its handling ends the request."""
        ...

    def begin_stream(self, attempt: Attempt, data: bytes) -> None:
        """Send the head of the response and its first bytes."""
        ...


@compiled_init
@dataclass(slots=True, eq=False)
class Attempt:
    """What one `Dispatch` starts; `router.core.interfaces.Sink`. Times are on the driver's clock in seconds.

    `assembler` makes the answer for a client that does not stream (`Call.collector`; None where events are passed on).
    `aborted` says that it was given up, `cut` that its money ended it, `was_sent` that the engine was given the request,
    `held_up` that the engine was not read for a while. `answer` is what it gave, if it was not streamed to the client.
    """

    _listener: Listener
    dispatch: Dispatch
    assembler: Assembler | None
    _metered: MeteredStream | None
    _call: OpenCall | None = None
    _task: asyncio.Task[None] | None = None  # adjusts an answer that may be large
    _held: list[bytes] = field(default_factory=list)  # what came before the first token
    _passing: bool = False  # the response has begun with it
    _taking: bool = False  # a batch is being taken
    _behind: bool = False  # the client reads more slowly than the engine writes
    _last_at: float = 0.0
    span_id: int | None = None
    first_at: float | None = None
    tokens: int = 0
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    itl_max_s: float = 0.0
    aborted: bool = False
    cut: bool = False
    was_sent: bool = False
    held_up: bool = False
    answer: dict[str, Any] | None = None

    # --- its life ------------------------------------------------------------------------------------
    def start(self, find: Callable[[str], Backend], call: Call) -> None:
        """Send the request. `find` gives an instance's adapter, or raises UpstreamError."""
        try:
            self._call = find(call.candidate.instance).start(call, self)
        except Exception as error:  # noqa: BLE001 (a fault of ours ends the request)
            self.failed(error)

    def abort(self) -> None:
        """End it at once; nothing of it is passed on from here on."""
        self.aborted = True
        self._close()
        if self._task is not None:
            self._task.cancel()

    def allow(self, instruction: Allow) -> None:
        """It may cost more now, or it ends."""
        metered = self._metered
        if metered is None or self.aborted:
            return
        metered.meter.allow(instruction.allowance)
        if not metered.waiting or self._taking:
            return  # `_take_metered` looks at it
        try:
            if not self._pass(metered, metered.go_on()):
                self._resume()
        except Exception as error:  # noqa: BLE001 (a fault of ours ends the request)
            self.failed(error)

    # --- what its engine reports --------------------------------------------------------------------------
    def sent(self) -> None:
        """The engine was given the request."""
        self.was_sent = True

    def ended(self, answer: dict[str, Any] | None) -> None:
        """The answer is complete: `answer`, or the stream until here."""
        if self.aborted:
            return
        self._close()
        if answer is not None and self._listener.codec.adjust is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._adjusted(answer, self._listener.codec.adjust(answer))
            )
            return
        try:
            if answer is not None:
                self._keep(answer)
            elif self.assembler is not None:
                self._assembled(self.assembler)
        except Exception as error:  # noqa: BLE001 (of the engine's answer, or a fault of ours)
            self.failed(error)
        else:
            self._succeeded()

    def failed(self, error: Exception) -> None:
        """It has failed: by an UpstreamError, or by a fault of ours."""
        if self.aborted:
            return
        self._close()
        if isinstance(error, UpstreamError):
            self.report_end(EndedHow.FAILED, failure_of(error))
            return
        request_id = self.dispatch.request_id
        log_fault(request_id, error)
        self._listener.report(GivenUp(request_id, "internal_error"))

    def report_end(self, how: EndedHow, failure: Failure | None = None) -> None:
        """Report how it ended."""
        self._listener.report(
            Ended(
                self.dispatch.request_id,
                self.dispatch.attempt,
                how,
                self.output_tokens,
                self.prompt_tokens,
                self.was_sent,
                self.finish_reason == "length",
                # A cut may also be by the client's own bound.
                self.cut and self._metered is not None and self._metered.meter.by_money,
                failure,
                self._listener.request.check is not None and self._is_empty(),
                self.held_up,
            )
        )

    def _succeeded(self) -> None:
        """Report its end after this turn of the event loop, together with the others'."""
        self._listener.runner.end_of_turn.add(self._report_success)

    def _report_success(self) -> None:
        if not self.aborted:
            self.report_end(EndedHow.OK)

    async def _adjusted(self, answer: dict[str, Any], adjusting: Awaitable[None]) -> None:
        try:
            await adjusting
            self._keep(answer)
        except Exception as error:  # noqa: BLE001 (the task's root)
            self.failed(error)
        else:
            self._succeeded()

    def _close(self) -> None:
        """Drop the call, which breaks a reference cycle."""
        call, self._call = self._call, None
        if call is not None:
            call.abort()  # does nothing after a clean end

    def _keep(self, answer: dict[str, Any]) -> None:
        """Keep an answer that came in one piece."""
        usage = answer.get("usage")
        self.usage = usage if isinstance(usage, dict) else None
        if reasons := [choice.get("finish_reason") for choice in choices_of(answer)]:
            self.finish_reason = "length" if "length" in reasons else reasons[-1]
        if not (self.usage or {}).get("completion_tokens") and self._listener.request.max_tokens != 0:
            self.tokens = tokens_of(answer)
        answer["model"] = self.dispatch.candidate.model
        answer["usage"] = self.usage_or_count()
        self.answer = answer

    def _assembled(self, assembler: Assembler) -> None:
        """Keep the answer that was put together."""
        if self.cut:
            assembler.feed(self.length_event())
        self.answer = assembler.result()
        self.answer["model"] = self.dispatch.candidate.model
        self.answer["usage"] = self.usage_or_count()

    # --- the stream ----------------------------------------------------------------------------------
    def take(self, batch: Batch, paid: bool = False) -> bool:
        """Pass one batch on at once, or what of it is paid for; True if nothing more is to come now. `paid`: all of it is."""
        if self._metered is not None and not paid:
            return self._take_metered(self._metered, batch)
        data = batch.data
        first = False
        if batch.tokens:
            now = self._listener.runner.clock()
            self.tokens += batch.tokens
            if self.first_at is None:
                self.first_at = now
                first = True
            else:
                gap_s = now - self._last_at
                if gap_s > self.itl_max_s:  # noqa: PLR1730 (`max` takes longer)
                    self.itl_max_s = gap_s
            self._last_at = now
        if batch.usage is not None:
            self.usage = batch.usage
        if batch.finish_reason is not None:
            self.finish_reason = batch.finish_reason
        client = self._listener.client
        if self.assembler is not None:
            if data:
                self.assembler.feed(data)
        elif self._passing:
            out = self._listener.codec.events(data)
            if out:
                client.write(out)
        else:
            self._held.append(data)
            if first:
                self.begin(b"")
        if first:  # reported after it is on its way
            self._listener.report(FirstToken(self.dispatch.request_id, self.dispatch.attempt), self.first_at)
        if self._passing and client.paused:
            self._behind = self.held_up = True
            client.on_writable = self._caught_up
            return True
        return False

    def _take_metered(self, metered: MeteredStream, batch: Batch) -> bool:
        self._taking = True
        try:
            return self._pass(metered, metered.take(batch))
        finally:
            self._taking = False

    def _pass(self, metered: MeteredStream, kept: Batch) -> bool:
        """Pass on the part of a batch that is paid for; True if nothing more is to come now."""
        paused = bool(kept.data or self.assembler or kept.usage is not None) and self.take(kept, True)
        meter = metered.meter
        self.tokens, self.usage = meter.tokens, metered.usage
        if metered.stopped:
            self._cut_off()
            return True
        if meter.report_usd is not None and not self.aborted:
            allowance, cost_usd, meter.report_usd = meter.allowance, meter.report_usd, None
            self._listener.report(Metered(self.dispatch.request_id, self.dispatch.attempt, cost_usd))
            if metered.waiting and meter.allowance is not allowance and not self.aborted:
                return self._pass(metered, metered.go_on())
        if metered.waiting:
            self.held_up = True
            return True
        return paused

    def _cut_off(self) -> None:
        """The answer has reached what its money pays for: it ends here."""
        if self.aborted:
            return
        self.cut = True
        self.finish_reason = "length"
        self.ended(None)

    def _resume(self) -> None:
        waiting = self._metered is not None and self._metered.waiting
        if self._call is not None and not self._behind and not waiting:
            self._call.resume()

    def _caught_up(self) -> None:
        """The client has read what was written. The server cuts off one that does not read (`limits.client_stall_s`),
        which ends the request."""
        self._behind = False
        self._resume()

    def begin(self, last: bytes) -> None:
        """Begin the response with what was held back, and `last`."""
        self._passing = True
        self._listener.begin_stream(self, self._listener.codec.first(b"".join(self._held) + last))

    # --- its result --------------------------------------------------------------------------------
    def length_event(self) -> bytes:
        """The event that ends every choice of an answer which the router cut at its bound."""
        chat, request = self._listener.api == "chat", self._listener.request
        said: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        chunk = {
            "id": request.id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": self.dispatch.candidate.model,
            "choices": [
                {"index": index, **said, "finish_reason": "length"} for index in range(request.choices)
            ],
        }
        return sse_events.event(orjson.dumps(chunk))

    def _is_empty(self) -> bool:
        """Whether its answer has no text and no tool call."""
        return self.answer is not None and not tokens_of(self.answer)

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
        """The engine's usage; a count that it did not give is the one that is recorded and billed."""
        usage, request = self.usage or {}, self._listener.request
        try:
            if usage["prompt_tokens"] and usage["completion_tokens"] and usage["total_tokens"]:
                return usage
        except KeyError:
            pass
        prompt, output = self.prompt_tokens or request.prompt_tokens, self.output_tokens
        counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        if not request.decodes:
            del counts["completion_tokens"]
        return {**usage, **counts}


def log_fault(request_id: str, error: Exception) -> None:
    """Log a fault of ours that ends a request."""
    logger.error(
        "request %s failed inside the gateway",
        request_id,
        exc_info=error,
        extra={"fields": {"request_id": request_id}},
    )


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
    return Failure(kind, str(error), error.status, retry_after_s=error.retry_after_s)
