"""The relay: carries out the scheduler's instructions for one request, from its arrival to its record.

The scheduler decides (`router.core.scheduler`): which candidate, a second attempt, a retry, what it may cost, how it
ends. The relay sends, aborts, answers and records:

1. `Dispatch` starts an attempt (`router.gateway.relay.attempt`). Its first token, its cost and its end are events.
2. `Cancel` aborts one. `Reserve` takes more money from the key's budgets, `Allow` lets an attempt cost more. `Check` has
   a complete answer checked before the client gets it.
3. `Finish` comes once, when all attempts have ended: the client gets its answer or its error, the record its row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from backends.scanning import Assembler
from router.background import surviving
from router.core.errors import Refusal
from router.core.events import (
    Allow,
    Cancel,
    Check,
    Checked,
    Dispatch,
    Finish,
    GivenUp,
    Granted,
    Instruction,
    Left,
    RequestEvent,
    Reserve,
)
from router.core.interfaces import Call
from router.core.money.meter import TokenMeter
from router.core.refusals import internal_error
from router.core.settlement import Settlement
from router.core.types import EndedHow, Outcome, Request
from router.gateway.codecs.codec import ApiCodec
from router.gateway.http.client_request import ClientRequest
from router.gateway.keys.admission import KeyReservation
from router.gateway.relay.answer import candidate_lines, header_lines, headway_object, respond_refusal
from router.gateway.relay.attempt import Attempt, log_fault
from router.gateway.relay.metered import MeteredStream
from router.gateway.service import Gateway
from router.gateway.telemetry.tracing import new_span_id
from router.store.records import RequestRecord

#: Header lines of a streamed answer. nginx would collect some kilobytes before it passes them on, unless it is told not to.
_STREAMED = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
#: Says how good the answer to a relay's request is, 0 to 1, or None if it cannot say.
CheckAnswer = Callable[["Relay", Mapping[str, Any]], Awaitable[float | None]]


class Relay:
    """One request's way through the gateway. Used once: `start` submits the request, and nothing waits for its end.

    `api` is "chat", "completions" or "embeddings"; `body` is OpenAI-shaped, without `routing`, and empty from the first bytes
    of a streamed answer on. `headers` are extra response headers, `reservation` is what it has taken of its key's limits
    (None: no key).
    """

    def __init__(
        self,
        gateway: Gateway,
        client: ClientRequest,
        api: str,
        body: Mapping[str, Any],
        codec: ApiCodec,
        request: Request,
        record: RequestRecord,
        headers: list[tuple[bytes, bytes]],
        reservation: KeyReservation | None = None,
        check: CheckAnswer | None = None,
    ) -> None:
        self._gateway = gateway
        self.runner = gateway.runner
        self.client = client
        self.api = api
        self.body = body
        self.codec = codec
        self.request = request
        self.record = record
        self._headers = headers
        self._reservation = reservation
        self._attempts: dict[int, Attempt] = {}  # by number
        self._ended_already = False
        self._check = check
        self._checking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Submit the request. The hooks of its client are set until its end. A fault of ours ends it."""
        self.client.on_left = self._client_left
        self.client.on_shutdown = self._shut_down
        try:
            funding = None if self._reservation is None else self._reservation.funding
            self.runner.submit(self.request, funding, self.carry_out)
        except Exception as error:  # noqa: BLE001 (logged)
            log_fault(self.request.id, error)
            self.report(GivenUp(self.request.id, "internal_error"))
            self._end_without_scheduler()

    def _client_left(self) -> None:
        self.report(Left(self.request.id))

    def _shut_down(self) -> None:
        """The server stops and no longer waits."""
        self.report(GivenUp(self.request.id, "shutdown"))

    def _end(self) -> None:
        self._ended_already = True
        self.client.on_left = self.client.on_shutdown = None
        if self._checking is not None:
            self._checking.cancel()
        self._attempts.clear()  # breaks reference cycles

    def report(self, event: RequestEvent, now: float | None = None) -> None:
        """Feed an event to the scheduler. A fault of ours in its handling ends the request."""
        try:
            self.runner.apply(event, now)
        except Exception as error:  # noqa: BLE001 (logged)
            log_fault(self.request.id, error)
            if type(event) is not GivenUp:
                self.report(GivenUp(self.request.id, "internal_error"))
            self._end_without_scheduler()

    def _end_without_scheduler(self) -> None:
        """End the request: the scheduler could not."""
        if self._ended_already:
            return
        self.runner.forget(self.request.id)
        cost_usd, used_tokens = 0.0, 0
        for attempt in self._attempts.values():
            attempt.abort()
            if attempt.was_sent:
                tokens = attempt.prompt_tokens or self.request.prompt_tokens, attempt.output_tokens
                cost_usd += attempt.dispatch.candidate.price.cost_usd(*tokens)
                used_tokens += sum(tokens)
        record = self.record
        record.outcome, record.error_code = Outcome.BACKEND_ERROR, "internal_error"
        record.e2e_s = self.runner.clock() - self.request.arrived_at
        record.cost_usd = cost_usd
        if self.client.response_started:
            self.client.abort()
        else:
            self._refuse(internal_error())
        if self._reservation is not None:
            self._reservation.cancel(cost_usd, used_tokens)
        self._end()
        self._gateway.finish(record)

    # --- instructions --------------------------------------------------------------------------------
    def carry_out(self, instruction: Instruction) -> None:
        """Carry out one instruction (`router.gateway.runner.CarryOut`)."""
        if type(instruction) is Dispatch:
            self._dispatch(instruction)
        elif type(instruction) is Finish:
            self._finish(instruction)
        elif type(instruction) is Cancel:
            attempt = self._attempts[instruction.attempt]
            attempt.abort()
            attempt.report_end(EndedHow.CANCELLED)
        elif type(instruction) is Reserve:
            assert self._reservation is not None  # noqa: S101 (nothing is reserved without budgets)
            self._reservation.grow(instruction.usd, self._granted)
        elif type(instruction) is Allow:
            self._attempts[instruction.attempt].allow(instruction)
        elif type(instruction) is Check:
            checking = self._checked(instruction.attempt, self._attempts[instruction.attempt].answer)
            self._checking = asyncio.get_running_loop().create_task(checking)

    def _dispatch(self, instruction: Dispatch) -> None:
        """Start an attempt."""
        request = self.request
        bound, candidate = instruction.bound, instruction.candidate
        assembler = metered = None
        if instruction.streams and not request.client_streams:
            assembler = Assembler("chat" if self.api == "chat" else "completions")
        if instruction.streams and (bound.paid_tokens is not None or instruction.allowance is not None):
            meter = TokenMeter(request, candidate, bound, instruction.allowance)
            options = self.body.get("stream_options")
            wants_each = isinstance(options, dict) and options.get("continuous_usage_stats") is True
            metered = MeteredStream(meter, request.choices, not wants_each, assembler)
        attempt = Attempt(self, instruction, assembler, metered)
        self._attempts[instruction.attempt] = attempt
        traceparent, trace = None, self.record.trace
        if trace is not None:
            attempt.span_id = new_span_id()
            traceparent = trace.parent_of(attempt.span_id)
        call = Call(
            self.api,
            self.body,
            candidate,
            request.id,
            bound.max_tokens,
            instruction.streams,
            metered is not None,
            traceparent,
            request.cache_salt,
            assembler,
            assembler or self.codec.usage_collector,
        )
        attempt.start(self._gateway.fleet.backend, call)

    def _granted(self, reserved_usd: float, left_usd: float | None) -> None:
        self.report(Granted(self.request.id, reserved_usd, left_usd))

    async def _checked(self, attempt: int, answer: Mapping[str, Any] | None) -> None:
        score = None
        if self._check is not None and answer is not None:
            with surviving("second-look"):
                score = await self._check(self, answer)
        self._checking = None  # so that `_end` does not cancel this task
        self.report(Checked(self.request.id, attempt, score))

    def _finish(self, instruction: Finish) -> None:
        """Answer or refuse the client; record the request."""
        record, settlement = self.record, instruction.settlement
        record.settlement = settlement
        record.prompt_tokens = self.request.prompt_tokens
        if record.trace is not None:
            record.span_ids = {number: attempt.span_id for number, attempt in self._attempts.items()}
        if (answer := settlement.answer) is not None:
            record.artifact = self._gateway.predictor.models.name
            if (relayed := self._attempts.get(answer.number)) is not None:
                record.finish_reason, record.itl_max_s = relayed.finish_reason, relayed.itl_max_s or None
        try:
            self._answer(settlement)
        except Exception:
            record.settlement = settlement._replace(
                outcome=Outcome.BACKEND_ERROR, error_code="internal_error"
            )
            if self.client.response_started:
                self.client.abort()
            else:
                self._refuse(internal_error())
            raise
        finally:
            if self._reservation is not None:
                self._reservation.close(settlement.reserved_usd, settlement.cost_usd, settlement.used_tokens)
            self._end()
            self._gateway.finish(record)

    # --- the response --------------------------------------------------------------------------------
    def begin_stream(self, attempt: Attempt, data: bytes) -> None:
        """The status line and the first bytes of a streamed answer."""
        self.body = {}  # no attempt follows, and a prompt may be long
        headers = self._head(self.codec.stream_type, attempt.dispatch)
        self.client.begin(200, headers + _STREAMED, data)

    def _answer(self, settlement: Settlement) -> None:
        """Give the client the answer, the rest of it, or an error."""
        client, codec = self.client, self.codec
        if settlement.refusal is not None:
            if client.response_started:
                client.end(codec.stream_error(settlement.refusal))
            else:
                self._refuse(settlement.refusal)
            return
        if settlement.answer is None or settlement.outcome is Outcome.CLIENT_CANCELLED:
            client.gone()
            return
        attempt = self._attempts[settlement.answer.number]
        headway = headway_object(self.record, settlement, settlement.answer)
        if attempt.answer is not None:
            body = codec.non_streaming(attempt.answer, headway)
            client.respond(200, self._head(codec.body_type, attempt.dispatch), body)
            return
        last = attempt.length_event() if attempt.cut else b""
        if client.response_started:
            rest = codec.events(last)
        else:  # an answer may be without a single token: then nothing has been sent yet
            attempt.begin(last)
            rest = b""
        client.end(rest + codec.finish(attempt.usage_or_count(), attempt.finish_reason, headway))

    def _refuse(self, refusal: Refusal) -> None:
        respond_refusal(self.client, self.codec, refusal, self.request.id, self._headers)

    def _head(self, content_type: bytes, dispatch: Dispatch) -> bytes:
        request, candidate, prediction = self.request, dispatch.candidate, dispatch.prediction
        ttft_s, cost_usd = prediction.ttft_s_p50, prediction.cost_usd
        return (
            b"content-type: %b\r\nx-request-id: %b\r\nx-headway-policy: %b\r\n%bopenai-processing-ms: %d\r\n%b%b%b"
            % (
                content_type,
                request.id.encode(),
                request.policy.encode(),
                candidate_lines(candidate.instance, candidate.model),
                int((self.runner.clock() - request.arrived_at) * 1000),
                b"" if ttft_s is None else b"x-headway-predicted-ttft-ms: %.1f\r\n" % (ttft_s * 1000),
                b"" if cost_usd is None else b"x-headway-predicted-cost-usd: %.8f\r\n" % cost_usd,
                header_lines(self._headers) if self._headers else b"",
            )
        )
