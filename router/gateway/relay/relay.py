"""The relay: carries one generation request from its first decision to its record.

1. The request goes to the runner; the ticket gives `Dispatch` or `Refuse`.
2. An attempt (`router.gateway.relay.attempt`) streams from the engine. What comes before the first token is held back,
   so that a failure can still go to the next candidate and the client still gets a status line that is true.
3. While none has come the scheduler may send a second attempt beside the first, a hedge. It runs in a task of its
   own; the first token of either decides, and the scheduler's `Cancel` ends the other one in the same turn.
4. With the first token the status line, the headers and the bytes go out; from then on one write for each
   read. A client that wants no stream gets the answer put together at the end.
5. However it ends, one record is written and one set of metrics counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from router.core.errors import AnswerTooLarge, OutOfSockets, Refusal, UpstreamError, UpstreamRejected
from router.core.events import Cancel, Dispatch, Ended, FirstToken, Refuse
from router.core.interfaces import Call
from router.core.outcome import answered, tpot_s
from router.core.refusals import draining, insufficient_quota
from router.core.types import EndedHow, Outcome, Request
from router.gateway.codecs.codec import ApiCodec
from router.gateway.http.responder import Responder
from router.gateway.keys.reservation import Reservation
from router.gateway.relay.answer import header_lines, headway_object, length_event, respond_refusal
from router.gateway.relay.attempt import Attempt
from router.gateway.relay.meter import TokenMeter
from router.gateway.relay.runner import Ticket
from router.gateway.telemetry.tracing import new_span_id
from router.store.records import RequestRecord
from router.store.state import SLACK_USD

if TYPE_CHECKING:
    from router.gateway.service import Gateway


@dataclass(slots=True)
class Exchange:
    """One request on its way: what the client sent and how to answer it.

    `api` is "chat", "completions" or "embeddings"; `body` is OpenAI-shaped, without `routing`; `whole`
    says that the engine cannot stream this one. `headers` are extra response headers, `lease` what it holds of its
    key's budgets (None: no key).
    """

    api: str
    body: Mapping[str, Any]
    codec: ApiCodec
    stream: bool
    whole: bool
    request: Request
    record: RequestRecord
    headers: list[tuple[bytes, bytes]]
    reservation: Reservation | None = None


#: Statuses that say something of the request or of the load, not of the instance's health.
NO_FAULT = frozenset({408, 413, 414, 415, 429, 431, 503})


class Relay:
    """One request's journey. Used once: `await Relay(...).run()`."""

    def __init__(self, gateway: Gateway, exchange: Exchange, responder: Responder) -> None:
        self.gateway = gateway
        self.exchange = exchange
        self.responder = responder
        self.clock = gateway.runner.clock
        self._runner = gateway.runner
        self._request = exchange.request
        self._record = exchange.record
        self._ticket: Ticket | None = None
        self._noted = False  # the record says how it ended
        self._attempt: Attempt | None = None  # whose answer it is; before a first token the last begun
        self._live: list[Attempt] = []  # under way
        self._hedges: list[Attempt] = []  # those in tasks of their own, until the tasks have been heard
        self._cancelled: set[int] = set()  # attempts that were given up before they began

    async def run(self, connection: Any) -> None:
        """Relay to the end; `connection.on_disconnect` is set meanwhile."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (ASGI applications run in tasks)
        if connection.transport.is_closing():  # gone while its prompt was counted: the hook would never fire
            self._note(Outcome.CLIENT_CANCELLED, None)
            self.gateway.finish(self._record)
            return
        try:
            ticket = self._ticket = self._runner.submit(self._request, task, self._beside)
        except Exception:
            self._note(Outcome.BACKEND_ERROR, "internal_error")
            self.gateway.finish(self._record)
            raise

        def client_left() -> None:
            self._runner.leave(ticket)

        connection.on_disconnect = client_left
        try:
            await self._attempt_until_done(ticket, task)
        except Refusal as refusal:
            self._refuse(refusal)
        except asyncio.CancelledError:
            self._give_up()
            if ticket.interrupted:
                task.uncancel()
            if self._noted:  # a hedge has given the whole answer in this very turn
                pass
            elif ticket.refusal is not None and not ticket.left:
                self._refuse(ticket.refusal)
            elif ticket.left:
                self.responder.gone()
                self._note(Outcome.CLIENT_CANCELLED, None)
            else:  # the server is shutting down and has run out of patience
                task.uncancel()
                self._refuse(draining())
                self._note(Outcome.BACKEND_ERROR, "shutdown")
        finally:
            if connection.on_disconnect is client_left:  # else the connection's next request has come already
                connection.on_disconnect = None
            self._runner.close(ticket)
            self._give_up()
            if not self._noted:  # a fault of ours; the server logs it
                self._note(Outcome.BACKEND_ERROR, "internal_error")
            self.gateway.finish(self._record)
            self._attempt = self._ticket = (
                None  # they know this relay: cycles that only the collector would find
            )

    async def _attempt_until_done(self, ticket: Ticket, task: asyncio.Task[Any]) -> None:
        while True:
            if self._hedges:
                if await self._hear_a_hedge():
                    return
                continue
            instruction = await ticket.next()
            if isinstance(instruction, Refuse):
                raise instruction.refusal
            if instruction.attempt in self._cancelled:
                continue
            if await self._carry(self._begin(instruction, task)):
                return

    async def _hear_a_hedge(self) -> bool:
        """Wait for one of the hedges to end; whether it has given the answer."""
        tasks = {hedge.task: hedge for hedge in self._hedges if hedge.task is not None}
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done = False
        for task in ended:
            self._hedges.remove(tasks[task])
            if not task.cancelled():  # one that was given up before its first step is
                done = task.result() or done
        return done

    def _beside(self, instruction: Dispatch | Cancel) -> None:
        """Take what comes while an attempt is under way: a hedge to begin, or an attempt to give up."""
        if isinstance(instruction, Cancel):
            lost = next((each for each in self._live if each.dispatch.attempt == instruction.attempt), None)
            if lost is None:
                self._cancelled.add(instruction.attempt)
            else:
                self._lose(lost)
            return
        self._record.hedged = True
        hedge = self._begin(instruction, None)
        hedge.task = asyncio.get_running_loop().create_task(self._carry(hedge))
        self._hedges.append(hedge)

    # --- one attempt ---------------------------------------------------------------------------------
    def _begin(self, dispatch: Dispatch, task: asyncio.Task[Any] | None) -> Attempt:
        record = self._record
        if not record.attempt_records:
            record.queue_wait_s = self.clock() - self._request.arrived_at
        attempt = self._attempt = Attempt(self, dispatch, task)
        self._live.append(attempt)
        record.attempt_records.append(attempt.record)
        record.decisions.append(dispatch.decision)
        return attempt

    async def _carry(self, attempt: Attempt) -> bool:
        """One attempt to its end: True if it gave the answer, False if the request goes on without it. Raises
        Refusal where nothing more can be done."""
        dispatch, exchange = attempt.dispatch, self.exchange
        reservation = exchange.reservation
        pays = None
        if reservation is not None and reservation.budgeted:
            pays = partial(reservation.pays, dispatch.attempt)
        paid = None
        if (dispatch.paid_tokens is not None or pays is not None) and not exchange.whole:
            paid = TokenMeter(
                dispatch,
                self._request,
                self._left_usd,
                hide_usage=not self._wants_each_usage(),
                pays=pays,
            )
        traceparent, trace = None, self._record.trace
        if trace is not None:
            attempt.record.span_id = new_span_id()
            traceparent = trace.parent_of(attempt.record.span_id)
        call = Call(
            exchange.api,
            exchange.body,
            dispatch.candidate,
            self._request.id,
            dispatch.max_output_tokens,
            paid is not None,
            traceparent,
            partial(setattr, attempt, "sent", True),
            self._request.cache_salt,
        )
        answer = None
        try:
            if reservation is not None and not await self._covered(reservation, dispatch):
                if not attempt.lost:
                    self._unpaid(attempt)
                return False
            backend = self.gateway.fleet.backend(dispatch.candidate.instance)
            if exchange.whole:
                answer = await backend.complete(call)
                if exchange.codec.adjust is not None:
                    await exchange.codec.adjust(answer)
                attempt.took_whole(answer)
                if (
                    reservation is not None and reservation.budgeted
                ):  # it may have been more than it was asked for
                    await reservation.cover(dispatch.attempt, attempt.cost_usd)
            else:
                await attempt.run(backend, call, paid)
        except UpstreamError as error:
            if not attempt.lost:
                self._failed(attempt, error)
            return False
        except asyncio.CancelledError:
            task = attempt.task
            if task is None or not attempt.lost or task.uncancel():
                raise
            return False
        if attempt.lost:
            return False
        self._finish(attempt, answer)
        return True

    async def _covered(self, reservation: Reservation, dispatch: Dispatch) -> bool:
        """Whether an attempt may begin: money is held for its prompt and a token, or for all of what nobody can end
        half-way."""
        if not reservation.budgeted:
            return True
        request, candidate = self._request, dispatch.candidate
        tokens = request.choices if request.decodes else 0
        if self.exchange.whole:
            tokens *= dispatch.max_output_tokens or candidate.context_tokens or 1
        cost_usd = candidate.price.cost_usd(request.bound_tokens(candidate.model), tokens)
        return await reservation.cover(dispatch.attempt, cost_usd)

    def _wants_each_usage(self) -> bool:
        options = self.exchange.body.get("stream_options")
        return isinstance(options, dict) and options.get("continuous_usage_stats") is True

    def _left_usd(self) -> float:
        """What the attempts that have ended have left of the money cap."""
        spent_usd = sum(each.cost_usd or 0.0 for each in self._record.attempt_records)
        return (self._request.max_cost_usd or 0.0) - spent_usd

    def first_token(self, attempt: Attempt) -> None:
        """An attempt's first token has come; any other is ended before this returns."""
        attempt.record.first_token_at = time.time()
        self._attempt = attempt
        self._runner.apply(FirstToken(self._request.id, attempt.dispatch.attempt), self._ticket)
        if len(self._live) > 1:
            self._lose_all_but(attempt)

    # --- ends ----------------------------------------------------------------------------------------
    def _finish(self, attempt: Attempt, whole: dict[str, Any] | None) -> None:
        """The engine has given everything, `whole` in one piece or as a stream: give the client the rest."""
        codec, responder, dispatch = self.exchange.codec, self.responder, attempt.dispatch
        self._attempt = attempt
        if len(self._live) > 1:  # it ended without a token
            self._lose_all_but(attempt)
        last = b""
        if attempt.cut:
            last = length_event(self.exchange.api, dispatch.candidate.model, self._request)
        if whole is not None:
            whole["model"] = dispatch.candidate.model
        else:
            whole = attempt.assembled(last)
        if whole is not None:
            self._succeeded(attempt)
            self._respond(codec.non_streaming(whole, self._headway()), dispatch)
            return
        if responder.started:
            rest = codec.events(last)
        else:  # an answer may be without a single token: then nothing has been sent yet
            attempt.begin(last)
            rest = b""
        self._succeeded(attempt)
        responder.end(rest + codec.finish(attempt.usage_or_count(), attempt.finish_reason, self._headway()))

    def _succeeded(self, attempt: Attempt) -> None:
        """The engine has given everything; the client may still be reading."""
        request, record, dispatch = self._request, self._record, attempt.dispatch
        now = self.clock()
        output_tokens = attempt.output_tokens
        self._live.remove(attempt)
        attempt.settle(EndedHow.OK, None)
        self._runner.apply(
            Ended(request.id, dispatch.attempt, EndedHow.OK, output_tokens, attempt.prompt_tokens),
            self._ticket,
        )
        bound = dispatch.max_output_tokens
        cut = attempt.cut_by_money or (
            dispatch.budget_bound
            and attempt.finish_reason == "length"
            and bound is not None
            and output_tokens >= bound
        )
        e2e_s = now - request.arrived_at
        first_at = now if attempt.first_at is None else attempt.first_at
        outcome, met = answered(
            request.slo, first_at - request.arrived_at, e2e_s, output_tokens, cut_by_budget=cut
        )
        record.slo_met = met
        self._note(outcome, None, e2e_s)

    def _failed(self, attempt: Attempt, error: UpstreamError) -> None:
        """An attempt failed: tell the scheduler; raises Refusal where nothing more can be done."""
        ticket = self._ticket
        if ticket is not None and ticket.interrupted:
            raise asyncio.CancelledError
        self._live.remove(attempt)
        refusal = None
        if isinstance(error, UpstreamRejected) and not self.responder.started and not self._live:
            refusal = Refusal(
                error.status or 400,
                error.code or "invalid_request",
                str(error),
                Outcome.REJECTED_INVALID,
                param=error.param,
            )
        elif isinstance(error, AnswerTooLarge):
            attempt.answered = True
            if not self.responder.started and not self._live:
                refusal = Refusal(502, "upstream_error", f"{str(error).capitalize()}.", Outcome.BACKEND_ERROR)
        restartable = not self.responder.started and refusal is None
        status = error.status
        told = str(error)[:300]
        if isinstance(error, UpstreamRejected):  # its words are for the client: they may quote the request
            told = f"the engine refused the request ({status})"
        attempt.settle(EndedHow.FAILED, told)
        if (
            self.exchange.reservation is not None
        ):  # it may have learned that there is less than at first, or more
            self._request.left_usd = self.exchange.reservation.left_usd
        self._runner.apply(
            Ended(
                self._request.id,
                attempt.dispatch.attempt,
                EndedHow.FAILED,
                attempt.output_tokens,
                attempt.prompt_tokens,
                restartable=restartable,
                refusal=None,
                fault=not isinstance(error, UpstreamRejected | OutOfSockets | AnswerTooLarge)
                and status not in NO_FAULT,
                unreachable=error.unreachable,
            ),
            ticket,
        )
        if refusal is not None:
            raise refusal
        if not restartable:
            raise Refusal(502, "upstream_error", "The engine failed in mid-answer.", Outcome.BACKEND_ERROR)
        attempt.first_at = None  # the client has seen nothing of it
        if self._live:
            self._attempt = self._live[-1]

    def _unpaid(self, attempt: Attempt) -> None:
        """The key's budgets do not pay an attempt's prompt: it is not begun. Another one under way goes on; without
        one the request ends, and Refusal is raised."""
        self._live.remove(attempt)
        attempt.settle(EndedHow.CANCELLED, "the key's budgets do not pay it")
        others = bool(self._live)
        self._runner.apply(
            Ended(self._request.id, attempt.dispatch.attempt, EndedHow.FAILED, restartable=others),
            self._ticket,
        )
        if not others:
            raise insufficient_quota("The key's budgets, or those of the keys that made it, are spent.")
        self._attempt = self._live[-1]

    def _lose(self, attempt: Attempt) -> None:
        """Another attempt was faster."""
        self._live.remove(attempt)
        attempt.give_up()
        attempt.settle(EndedHow.HEDGE_LOST, None)

    def _lose_all_but(self, winner: Attempt) -> None:
        for attempt in [each for each in self._live if each is not winner]:
            self._lose(attempt)

    def _give_up(self) -> None:
        """End whatever is under way."""
        for attempt in self._live:
            attempt.give_up()
            attempt.settle(EndedHow.CANCELLED, None)
        self._live.clear()
        for hedge in self._hedges:
            if hedge.task is not None and hedge.task.done() and not hedge.task.cancelled():
                hedge.task.exception()  # whatever it was: the request has ended otherwise

    def _refuse(self, refusal: Refusal) -> None:
        self._give_up()
        outcome = refusal.outcome
        self._note(outcome, refusal.code)
        if self._request.slo is not None and outcome not in (
            Outcome.REJECTED_INVALID,
            Outcome.CLIENT_CANCELLED,
        ):
            self._record.slo_met = False
        codec = self.exchange.codec
        if self.responder.started:
            end = codec.stream_error(refusal)
            self.responder.end(end)
        else:
            respond_refusal(self.responder, codec, refusal, self._request.id, self.exchange.headers)

    def _note(self, outcome: Outcome, error_code: str | None, e2e_s: float | None = None) -> None:
        """Fill the record with what is known at the end."""
        record, request, attempt = self._record, self._request, self._attempt
        self._noted = True
        record.outcome = outcome
        record.error_code = error_code
        record.e2e_s = self.clock() - request.arrived_at if e2e_s is None else e2e_s
        if attempt is not None and attempt.first_at is not None:
            record.ttft_s = attempt.first_at - request.arrived_at
        record.decoded = any(each.first_token_at is not None for each in record.attempt_records)
        record.attempts = len(record.attempt_records)
        record.cost_usd = sum(a.cost_usd or 0.0 for a in record.attempt_records)
        bounds_usd = [] if request.max_cost_usd is None else [request.max_cost_usd]
        reservation = self.exchange.reservation
        if (
            reservation is not None
            and reservation.left_usd is not None
            and record.cost_usd > reservation.left_usd + SLACK_USD
        ):
            bounds_usd.append(reservation.left_usd)
        if bounds_usd:
            record.budget_overrun_usd = max(0.0, record.cost_usd - min(bounds_usd))
        if attempt is None:
            record.queue_wait_s = record.e2e_s
            return
        output_tokens = attempt.output_tokens
        dispatch = attempt.dispatch
        record.model = dispatch.candidate.model
        record.instance = dispatch.candidate.instance
        record.prompt_tokens = attempt.prompt_tokens or request.prompt_tokens
        record.output_tokens = output_tokens
        record.tpot_s = tpot_s(record.ttft_s, record.e2e_s, output_tokens)
        record.itl_max_s = attempt.itl_max_s or None
        record.finish_reason = attempt.finish_reason
        record.set_prediction(dispatch.prediction)
        record.artifact = self.gateway.artifacts.name
        if record.attempts == 1:  # of several attempts no single draw tells what came of the request
            record.propensity = dispatch.decision.propensity

    def _headway(self) -> dict[str, Any]:
        return headway_object(self._record, self._attempt.dispatch if self._attempt else None)

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
                self.gateway.fleet.candidate_headers(dispatch.candidate),
                int((self.clock() - request.arrived_at) * 1000),
                b"" if ttft_s is None else b"x-headway-predicted-ttft-ms: %.1f\r\n" % (ttft_s * 1000),
                b"" if cost_usd is None else b"x-headway-predicted-cost-usd: %.8f\r\n" % cost_usd,
                header_lines(self.exchange.headers),
            )
        )

    def begin_stream(self, attempt: Attempt, data: bytes) -> None:
        """The status line and the first bytes of the answer of `attempt`."""
        headers = self._head(self.exchange.codec.stream_type, attempt.dispatch)
        self.responder.begin(200, headers + b"cache-control: no-cache\r\n", data)

    def _respond(self, body: bytes, dispatch: Dispatch) -> None:
        self.responder.respond(200, self._head(self.exchange.codec.body_type, dispatch), body)
