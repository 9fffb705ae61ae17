"""The relay: carries one generation request from its first decision to its record.

1. The request goes to the runner; the ticket gives `Dispatch` or `Refuse`.
2. An attempt streams from the engine. What comes before the first token is held back, so that a failure
   can still go to the next candidate and the client still gets a status line that is true.
3. With the first token the status line, the headers and the bytes go out; from then on one write for each
   read. A client that wants no stream gets the answer put together at the end.
4. However it ends, one record is written and one set of metrics counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.core.errors import Refusal, UpstreamError, UpstreamRejected
from router.core.events import Dispatch, Ended, FirstToken, Refuse
from router.core.interfaces import Batch, Call, Stream
from router.core.outcome import answered, tpot_s
from router.core.types import EndedHow, Outcome, Request
from router.gateway.answer import header_lines, headway_object, length_event, respond_refusal
from router.gateway.assemble import Assembler
from router.gateway.fronts import Front
from router.gateway.runner import Ticket
from router.gateway.server import Responder
from router.store.records import AttemptRecord, RequestRecord

if TYPE_CHECKING:
    from router.gateway.service import Gateway


@dataclass(slots=True)
class Exchange:
    """One request on its way: what the client sent and how to answer it.

    `api` is "chat", "completions" or "embeddings"; `body` is OpenAI-shaped, without `routing`; `whole`
    says that the engine cannot stream this one. `headers` are extra response headers.
    """

    api: str
    body: Mapping[str, Any]
    front: Front
    stream: bool
    whole: bool
    request: Request
    record: RequestRecord
    headers: list[tuple[bytes, bytes]]


#: Statuses that say something of the request or of the load, not of the instance's health.
NO_FAULT = frozenset({408, 413, 414, 415, 429, 431, 503})


class _Cut(Exception):
    """The answer has reached the bound that its money cap sets."""


class Relay:
    """One request's journey. Used once: `await Relay(...).run()`."""

    def __init__(self, gateway: Gateway, exchange: Exchange, responder: Responder) -> None:
        self._gateway = gateway
        self._runner = gateway.runner
        self._clock = gateway.runner.clock
        self._exchange = exchange
        self._request = exchange.request
        self._record = exchange.record
        self._responder = responder
        self._ticket: Ticket | None = None
        self._stream: Stream | None = None
        self._noted = False  # the record says how it ended
        self._dispatch: Dispatch | None = None
        self._attempt: AttemptRecord | None = None
        # of the attempt under way
        self._first_at: float | None = None
        self._tokens = 0
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._itl_max_s = 0.0
        self._last_at = 0.0
        self._bound: int | None = None
        self._held: list[bytes] = []  # what came before the first token
        self._assembler: Assembler | None = None
        self._catching_up: asyncio.Future[None] | None = None

    async def run(self, connection: Any) -> None:
        """Relay to the end; `connection.on_disconnect` is set meanwhile."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (ASGI applications run in tasks)
        if connection.transport.is_closing():  # gone while its prompt was counted: the hook would never fire
            self._note(Outcome.CLIENT_CANCELLED, None)
            self._gateway.finish(self._record)
            return
        try:
            ticket = self._ticket = self._runner.submit(self._request, task)
        except Exception:
            self._note(Outcome.BACKEND_ERROR, "internal_error")
            self._gateway.finish(self._record)
            raise
        connection.on_disconnect = lambda: self._runner.leave(ticket)
        try:
            await self._attempt_until_done(ticket)
        except Refusal as refusal:
            self._refuse(refusal)
        except asyncio.CancelledError:
            self._give_up_attempt(EndedHow.CANCELLED, None)
            if ticket.interrupted:
                task.uncancel()
            if ticket.refusal is not None and not ticket.left:
                self._refuse(ticket.refusal)
            elif ticket.left:
                self._responder.gone()
                self._note(Outcome.CLIENT_CANCELLED, None)
            else:  # the server is shutting down and has run out of patience
                self._note(Outcome.BACKEND_ERROR, "shutdown")
                raise
        finally:
            if self._catching_up is not None:
                self._catching_up.cancel()
            connection.on_disconnect = None
            self._runner.close(ticket)
            if not self._noted:  # a fault of ours; the server logs it
                self._note(Outcome.BACKEND_ERROR, "internal_error")
            self._gateway.finish(self._record)

    async def _attempt_until_done(self, ticket: Ticket) -> None:
        while True:
            instruction = await ticket.next()
            if isinstance(instruction, Refuse):
                raise instruction.refusal
            self._begin(instruction)
            try:
                if self._exchange.whole:
                    await self._pass_whole(instruction)
                else:
                    await self._pass_stream(instruction)
            except UpstreamError as error:
                self._failed(instruction, error)
            else:
                return

    # --- one attempt ---------------------------------------------------------------------------------
    def _begin(self, dispatch: Dispatch) -> None:
        record, now = self._record, time.time()
        if self._dispatch is None:
            record.queue_wait_s = self._clock() - self._request.arrived_at
        self._dispatch = dispatch
        self._first_at = self._usage = self._finish_reason = None
        self._tokens = 0
        self._itl_max_s = 0.0
        candidate = dispatch.candidate
        self._attempt = AttemptRecord(
            number=dispatch.attempt,
            instance=candidate.instance,
            model=candidate.model,
            started_at=now,
        )
        record.attempt_records.append(self._attempt)
        record.decisions.append(dispatch.decision)

    def _call(self, dispatch: Dispatch) -> Call:
        exchange = self._exchange
        return Call(
            exchange.api, exchange.body, dispatch.candidate, self._request.id, dispatch.max_output_tokens
        )

    async def _pass_stream(self, dispatch: Dispatch) -> None:
        """Stream one attempt; to the client if it wants a stream, else into an assembler."""
        exchange, responder = self._exchange, self._responder
        front = exchange.front
        if not exchange.stream:
            self._assembler = Assembler("chat" if exchange.api == "chat" else "completions")
        self._held.clear()
        self._bound = None
        if dispatch.budget_bound and dispatch.max_output_tokens is not None:
            self._bound = dispatch.max_output_tokens * self._request.choices
        backend = self._gateway.backend(dispatch.candidate.instance)
        stream = self._stream = await backend.stream(self._call(dispatch))
        last = b""
        try:
            await stream.pump(self._take)
        except _Cut:
            self._finish_reason = "length"
            last = length_event(exchange.api, dispatch.candidate.model, self._request)
        finally:
            self._stream = None
            stream.abort()  # does nothing after a clean end
        if self._assembler is not None:
            self._assembler.feed(last)
            answer = self._assembler.result()
            answer["usage"] = self._usage_or_count()
            self._succeeded(dispatch)
            self._respond(front.whole(answer, self._headway()), dispatch)
            return
        # An answer may be without a single token: then nothing has been sent yet.
        rest = front.events(last) if responder.started else front.first(b"".join(self._held) + last)
        self._succeeded(dispatch)
        if not responder.started:
            self._begin_stream(rest, dispatch)
            rest = b""
        responder.end(rest + front.finish(self._usage_or_count(), self._finish_reason, self._headway()))

    def _take(self, batch: Batch) -> bool:
        """Pass one batch on in the moment it arrives; True if the client is too slow to take more now."""
        data, tokens, usage, finish_reason = batch
        first = False
        if tokens:
            now = self._clock()
            self._tokens += tokens
            if self._first_at is None:
                self._first_at = now
                first = True
            else:
                gap_s = now - self._last_at
                self._itl_max_s = max(self._itl_max_s, gap_s)
            self._last_at = now
        if usage is not None:
            self._usage = usage
        if finish_reason is not None:
            self._finish_reason = finish_reason
        responder = self._responder
        if self._assembler is not None:
            self._assembler.feed(data)
        elif responder.started:
            out = self._exchange.front.events(data)
            if out:
                responder.write(out)
        else:
            self._held.append(data)
            if self._first_at is not None and self._dispatch is not None:
                self._begin_stream(self._exchange.front.first(b"".join(self._held)), self._dispatch)
        if first:  # told after it is on its way
            self._first_token()
        if self._bound is not None and self._tokens > self._bound:
            raise _Cut  # the engine took no notice of the bound it was given
        if responder.paused:
            self._catching_up = asyncio.ensure_future(self._catch_up())
            return True
        return False

    async def _catch_up(self) -> None:
        """Let the engine's stream go on when the client has read what was written."""
        try:
            async with asyncio.timeout(self._gateway.config.limits.request_timeout_s):
                await self._responder.drain()
        except TimeoutError:
            self._responder.abort()  # it has stopped reading; its connection's end ends the request
        if self._stream is not None:
            self._stream.resume()

    async def _pass_whole(self, dispatch: Dispatch) -> None:
        """One attempt that the engine answers in one piece."""
        answer = await self._gateway.backend(dispatch.candidate.instance).complete(self._call(dispatch))
        answer["model"] = dispatch.candidate.model
        self._usage = answer.get("usage")
        choices = answer.get("choices")
        if choices:
            self._finish_reason = choices[0].get("finish_reason")
        self._succeeded(dispatch)
        front = self._exchange.front
        self._respond(front.whole(answer, self._headway()), dispatch)

    def _first_token(self) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.first_token_at = time.time()
            self._runner.apply(FirstToken(self._request.id, attempt.number), self._ticket)

    # --- ends ----------------------------------------------------------------------------------------
    def _output_tokens(self) -> int:
        if self._usage is not None and isinstance(tokens := self._usage.get("completion_tokens"), int):
            return max(tokens, self._tokens) if self._tokens and tokens == 0 else tokens
        return self._tokens

    def _prompt_tokens(self) -> int | None:
        tokens = self._usage.get("prompt_tokens") if self._usage is not None else None
        return tokens if isinstance(tokens, int) and tokens > 0 else None

    def _usage_or_count(self) -> Mapping[str, Any]:
        if self._usage is not None:
            return self._usage
        prompt, output = self._request.prompt_tokens, self._tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _settle(self, dispatch: Dispatch, how: EndedHow, error: str | None) -> None:
        """Close the attempt's record: tokens and what they cost."""
        attempt = self._attempt
        if attempt is None:
            return
        output_tokens = self._output_tokens()
        attempt.ended_at = time.time()
        attempt.ended_how = how
        attempt.error = error
        attempt.output_tokens = output_tokens
        billed = how is EndedHow.OK or output_tokens > 0
        prompt_tokens = self._prompt_tokens() or self._request.prompt_tokens
        attempt.cost_usd = dispatch.candidate.price.cost_usd(prompt_tokens, output_tokens) if billed else 0.0
        self._attempt = None

    def _succeeded(self, dispatch: Dispatch) -> None:
        """The engine has given everything; the client may still be reading."""
        request, record = self._request, self._record
        now = self._clock()
        output_tokens = self._output_tokens()
        self._settle(dispatch, EndedHow.OK, None)
        self._runner.apply(
            Ended(request.id, dispatch.attempt, EndedHow.OK, output_tokens, self._prompt_tokens()),
            self._ticket,
        )
        bound = dispatch.max_output_tokens
        cut = (
            dispatch.budget_bound
            and self._finish_reason == "length"
            and bound is not None
            and output_tokens >= bound
        )
        e2e_s = now - request.arrived_at
        first_at = now if self._first_at is None else self._first_at
        outcome, met = answered(
            request.slo, first_at - request.arrived_at, e2e_s, output_tokens, cut_by_budget=cut
        )
        record.slo_met = met
        self._note(outcome, None, e2e_s)

    def _failed(self, dispatch: Dispatch, error: UpstreamError) -> None:
        """An attempt failed: tell the scheduler; raises Refusal where nothing more can be done."""
        ticket = self._ticket
        if ticket is not None and ticket.interrupted:
            raise asyncio.CancelledError
        refusal = None
        if isinstance(error, UpstreamRejected) and not self._responder.started:
            refusal = Refusal(
                error.status or 400,
                error.code or "invalid_request",
                str(error),
                Outcome.REJECTED_INVALID,
                param=error.param,
            )
        restartable = not self._responder.started and refusal is None
        status = error.status
        told = str(error)[:300]
        if isinstance(error, UpstreamRejected):  # its words are for the client: they may quote the request
            told = f"the engine refused the request ({status})"
        self._settle(dispatch, EndedHow.FAILED, told)
        self._runner.apply(
            Ended(
                self._request.id,
                dispatch.attempt,
                EndedHow.FAILED,
                self._output_tokens(),
                self._prompt_tokens(),
                restartable=restartable,
                refusal=None,
                fault=refusal is None and status not in NO_FAULT,
            ),
            ticket,
        )
        if refusal is not None:
            raise refusal
        if restartable:
            self._first_at = None  # the client has seen nothing of it
        else:
            raise Refusal(502, "upstream_error", "The engine failed in mid-answer.", Outcome.BACKEND_ERROR)

    def _give_up_attempt(self, how: EndedHow, error: str | None) -> None:
        if self._stream is not None:
            self._stream.abort()
            self._stream = None
        if self._dispatch is not None and self._attempt is not None:
            self._settle(self._dispatch, how, error)

    def _refuse(self, refusal: Refusal) -> None:
        self._give_up_attempt(EndedHow.CANCELLED, None)
        outcome = refusal.outcome
        self._note(outcome, refusal.code)
        if self._request.slo is not None and outcome not in (
            Outcome.REJECTED_INVALID,
            Outcome.CLIENT_CANCELLED,
        ):
            self._record.slo_met = False
        front = self._exchange.front
        if self._responder.started:
            end = front.stream_error(refusal)
            self._responder.end(end)
        else:
            respond_refusal(self._responder, front, refusal, self._request.id, self._exchange.headers)

    def _note(self, outcome: Outcome, error_code: str | None, e2e_s: float | None = None) -> None:
        """Fill the record with what is known at the end."""
        record, request, dispatch = self._record, self._request, self._dispatch
        self._noted = True
        record.outcome = outcome
        record.error_code = error_code
        record.e2e_s = self._clock() - request.arrived_at if e2e_s is None else e2e_s
        if self._first_at is not None:
            record.ttft_s = self._first_at - request.arrived_at
        record.decoded = any(attempt.first_token_at is not None for attempt in record.attempt_records)
        record.attempts = len(record.attempt_records)
        record.cost_usd = sum(a.cost_usd or 0.0 for a in record.attempt_records)
        if request.max_cost_usd is not None:
            record.budget_overrun_usd = max(0.0, record.cost_usd - request.max_cost_usd)
        if dispatch is None:
            record.queue_wait_s = record.e2e_s
            return
        output_tokens = self._output_tokens()
        prediction = dispatch.prediction
        record.model = dispatch.candidate.model
        record.instance = dispatch.candidate.instance
        record.prompt_tokens = self._prompt_tokens() or request.prompt_tokens
        record.output_tokens = output_tokens
        record.tpot_s = tpot_s(record.ttft_s, record.e2e_s, output_tokens)
        record.itl_max_s = self._itl_max_s or None
        record.finish_reason = self._finish_reason
        record.set_prediction(prediction)
        record.artifact = self._gateway.artifact
        record.propensity = dispatch.decision.propensity

    def _headway(self) -> dict[str, Any]:
        return headway_object(self._record, self._dispatch)

    # --- response ------------------------------------------------------------------------------------
    def _head(self, content_type: bytes, dispatch: Dispatch) -> bytes:
        request, prediction = self._request, dispatch.prediction
        ttft_s, cost_usd = prediction.ttft_s_p50, prediction.cost_usd
        return (
            b"content-type: %b\r\nx-request-id: %b\r\nx-headway-policy: %b\r\n%bopenai-processing-ms: %d\r\n%b%b%b"
            % (
                content_type,
                request.id.encode(),
                request.policy.encode(),
                self._gateway.candidate_headers(dispatch.candidate),
                int((self._clock() - request.arrived_at) * 1000),
                b"" if ttft_s is None else b"x-headway-predicted-ttft-ms: %.1f\r\n" % (ttft_s * 1000),
                b"" if cost_usd is None else b"x-headway-predicted-cost-usd: %.8f\r\n" % cost_usd,
                header_lines(self._exchange.headers),
            )
        )

    def _begin_stream(self, data: bytes, dispatch: Dispatch) -> None:
        headers = self._head(self._exchange.front.stream_type, dispatch)
        self._responder.begin(200, headers + b"cache-control: no-cache\r\n", data)

    def _respond(self, body: bytes, dispatch: Dispatch) -> None:
        self._responder.whole(200, self._head(self._exchange.front.body_type, dispatch), body)
