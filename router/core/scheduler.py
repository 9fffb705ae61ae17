r"""The life of every request: events in, instructions out, no I/O, `now` an argument.

::

    Arrived --> place --> Dispatch --> FirstToken --> Ended(OK) --> Finish
                 |  ^        |   \         |
                 |  |        |    \        +-- Ended(FAILED), the client has seen tokens --> Finish
                 |  |        |     +-- late: Dispatch(hedge) --> first token of either: Cancel the other one
                 |  +--------+-- Ended(FAILED), the client has seen nothing: place again, elsewhere
                 |  |
                 +-> queued (every candidate is full, or the policy defers it) -- a slot frees, an instance returns
                 |
                 +-> Finish (nobody may take it, hard SLO out of reach, queue full, time passed)

Every request gets exactly one `Finish`, after all of its attempts have ended. `Left`, `GivenUp` and a time limit end a
request in any phase: attempts under way are cancelled, and `Finish` follows their `Ended`. The states are
described in `router.core.request_state`, their parts are elsewhere: who may take a request in `eligibility`, one decision in
`deciding`, who waits in `waiting_room`, money in `money`, when a hedge pays in `hedging`, how an end counts in
`settlement`.

The driver keeps one timer, set to `wake_at`, and answers it with `Tick`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from router.core import admission, health, hedging, refusals
from router.core.deadlines import DeadlineHeap
from router.core.deciding import Decided, Decider
from router.core.eligibility import Eligible, eligible
from router.core.errors import Refusal
from router.core.events import (
    Allow,
    Arrived,
    Cancel,
    Dispatch,
    DrainChanged,
    Ended,
    Event,
    Failure,
    FailureKind,
    Finish,
    FirstToken,
    FleetChanged,
    GivenUp,
    Granted,
    Instruction,
    Left,
    LoadReported,
    Metered,
    PeerLoadReported,
    Probed,
    Reserve,
    Tick,
)
from router.core.fleet import Fleet
from router.core.interfaces import Learner, Option, Policy, Predictor
from router.core.money import quote
from router.core.money.account import RequestMoney, Wait
from router.core.queue import Waiting
from router.core.request_state import AttemptPhase, AttemptState, RequestPhase, RequestState, Verdict
from router.core.settings import SchedulerSettings
from router.core.settlement import bill, settle, slo_met, tpot_s
from router.core.state import Instance, Work
from router.core.types import Candidate, Decision, EndedHow, Outcome, Request
from router.core.waiting_room import WaitingRoom

#: A returning instance takes more as time passes: it is looked at again after this many seconds.
_RETURN_LOOK_S = 0.5
#: Share of a request's time after which it is deferred no more.
_PATIENCE = 0.5
#: How fast the mean length of answers follows.
_USUAL_STEP = 0.01


class Queued:
    """A placement: the request waits."""


QUEUED = Queued()


class Scheduler:
    """Decides where each request goes, what it may cost, when it is given up and how it counts. One thread, one
    clock, no I/O."""

    def __init__(
        self,
        instances: Iterable[Instance],
        policies: Mapping[str, Policy],
        predictor: Predictor,
        settings: SchedulerSettings | None = None,
        rng: Random | None = None,
    ) -> None:
        self.policies = policies
        self.settings = settings or SchedulerSettings()
        self.fleet = Fleet(instances)
        self._decider = Decider(policies, predictor, rng or Random(), self.settings.explore)
        self._learners = {name: each for name, each in policies.items() if isinstance(each, Learner)}
        self._requests: dict[str, RequestState] = {}
        self._awaiting: OrderedDict[str, RequestState] = OrderedDict()  # no first token yet, oldest first
        self._awaiting_until = -math.inf  # the latest time limit among those that were there together
        self._waiting = WaitingRoom()
        self._deadlines = DeadlineHeap()  # hard SLOs
        self._hedges = DeadlineHeap()  # when an attempt, by its number, is late
        self._arrivals = 0
        self._hedged = 0
        self._usual_tokens = 256.0  # running mean of answers; a choice until they are seen
        self._now = 0.0
        self._out: list[Instruction] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            Arrived: self._arrived,
            FirstToken: self._first_token,
            Metered: self._metered,
            Granted: self._granted,
            Ended: self._ended,
            Left: self._left,
            GivenUp: self._given_up,
            LoadReported: self._load_reported,
            Probed: self._probed,
            PeerLoadReported: self._peer_load_reported,
            FleetChanged: self._fleet_changed,
            DrainChanged: self._drain_changed,
            Tick: self._tick,
        }

    # --- what drivers read ---------------------------------------------------------------------------
    @property
    def predictor(self) -> Predictor:
        return self._decider.predictor

    @predictor.setter
    def predictor(self, predictor: Predictor) -> None:
        self._decider.predictor = predictor

    @property
    def instances(self) -> dict[str, Instance]:
        """By name."""
        return self.fleet.instances

    @property
    def queue_depth(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def queued_by_model(self) -> Counter[str]:
        """Requests that wait, by the model wanted first."""
        return Counter(state.request.models[0] for state in self._waiting)

    def quote(self, request: Request) -> quote.Quote:
        """What a request may cost."""
        return quote.quote(
            request,
            self.fleet.tariffs(request.models + request.fallbacks),
            self._usual_tokens,
            hedged=self.settings.hedge_share > 0 and hedging.may(request),
        )

    @property
    def wake_at(self) -> float | None:
        """When `Tick` is wanted next; None for never."""
        at = min(self._deadlines.next_at(self._requests), self._hedges.next_at(self._awaiting))
        if self._awaiting:
            at = min(at, next(iter(self._awaiting.values())).request.expires_at)
        if self._waiting:
            if self.fleet.returning():
                at = min(at, self._now + _RETURN_LOOK_S)
            at = min(at, self._waiting.next_decision_at(self._now))
        return at if math.isfinite(at) else None

    def decide(self, request: Request, now: float) -> Decision:
        """A dry run: what would be done with `request` now. Changes nothing. Raises Refusal."""
        found = self._eligible(RequestState(request, 0, RequestMoney(request)), now)
        if found.refusal is not None:
            raise found.refusal
        passed_over = found.passed_over
        options = self._admitted(request, found.free or found.busy, passed_over, now)
        if isinstance(options, Refusal):
            raise options
        return self._decider.decide(request, options, now, passed_over=passed_over, dry=True).decision

    # --- events --------------------------------------------------------------------------------------
    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event at time `now` (seconds, never going back) and say what is to be done, in this order."""
        self._now = now
        out: list[Instruction] = []
        self._out = out
        self._handlers[type(event)](event, now)
        return out

    def _arrived(self, event: Arrived, now: float) -> None:
        self._arrivals += 1
        request = event.request
        state = RequestState(request, self._arrivals, RequestMoney(request, event.funding))
        # Slots of a returning instance open as time passes, and so does room for deferred requests: those who wait
        # come first.
        if self._waiting and (self.fleet.returning() or self._waiting.due(state.models, now)):
            self._serve_queue(now)
        placement = self._place(state, self._eligible(state, now), now)
        if isinstance(placement, Refusal):
            self._refuse(state, placement, now)
        elif isinstance(placement, Decided):
            self._dispatch(state, placement, now)

    def _first_token(self, event: FirstToken, now: float) -> None:
        state, attempt = self._find(event.request_id, event.attempt)
        if state is None or attempt is None or attempt.phase is not AttemptPhase.PREFILL:
            return
        attempt.first_token_at = now
        attempt.phase = AttemptPhase.DECODING
        self._awaiting.pop(event.request_id, None)
        self._blame(state, answered=True)
        instance = attempt.instance
        instance.first_token(attempt.pending_tokens, attempt.expected_output_tokens)
        self.predictor.observe_ttft(
            state.request, attempt.candidate, instance, attempt.prediction, now - attempt.dispatched_at, now
        )
        if len(state.under_way) > 1:
            self._cancel_others(state, attempt, now)
            if self._waiting and len(state.under_way) == 1:  # the other one waited for money, and is gone
                self._serve_queue(now)

    def _metered(self, event: Metered, now: float) -> None:
        state, attempt = self._find(event.request_id, event.attempt)
        if state is None or attempt is None or attempt.phase is AttemptPhase.CANCELLING:
            return
        covered = state.money.metered(attempt.number, event.cost_usd)
        self._ask_for_money(state)
        allowance = state.money.allowance(attempt.number) if covered else None
        if allowance is not None:
            self._out.append(Allow(event.request_id, attempt.number, allowance))

    def _granted(self, event: Granted, now: float) -> None:
        state = self._requests.get(event.request_id)
        if state is None:
            return
        money = state.money
        money.granted(event.reserved_usd, event.left_usd)
        if state.phase is RequestPhase.ENDING:
            return
        running = [each for each in state.under_way if each.phase in _RUNNING]
        # Attempts that have not started come first: what one would have cost that is not paid pays the others.
        for attempt in list(state.under_way):
            if attempt.phase is AttemptPhase.FUNDING:
                wait = money.wait_of(attempt.number)
                if wait is Wait.OVER:
                    self._send(state, attempt)
                elif wait is Wait.IN_VAIN:
                    self._unfunded(state, attempt, now)
        for attempt in running:
            wait = money.wait_of(attempt.number)
            allowance = money.allowance(attempt.number, final=wait is Wait.IN_VAIN)
            if allowance is not None and wait is not Wait.GOES_ON:
                self._out.append(Allow(event.request_id, attempt.number, allowance))
        self._ask_for_money(state)
        if self._waiting:
            self._serve_queue(now)

    def _ended(self, event: Ended, now: float) -> None:
        state, attempt = self._find(event.request_id, event.attempt)
        if state is None or attempt is None:
            return
        attempt.output_tokens, attempt.prompt_tokens = event.output_tokens, event.prompt_tokens
        how = attempt.ended_how if attempt.phase is AttemptPhase.CANCELLING else event.how
        assert how is not None  # noqa: S101 (whoever cancels says why)
        failure = event.failure if how is EndedHow.FAILED else None
        if failure is not None:
            attempt.error = _error_of(failure)
            self._count_failure(state, attempt, failure)
        if how is EndedHow.OK:
            self._succeed(state, attempt, event, now)
        else:
            self._lose(
                state,
                attempt,
                how,
                now,
                sent=event.sent,
                too_large=failure is not None and failure.kind is FailureKind.TOO_LARGE,
            )
            if state.phase is RequestPhase.ENDING:
                if not state.under_way:
                    self._finish(state, now)
            elif failure is not None:
                self._failed(state, attempt, failure, now)
        if self._waiting:
            self._serve_queue(now)

    def _left(self, event: Left, now: float) -> None:
        state = self._requests.get(event.request_id)
        if state is not None and state.phase is not RequestPhase.ENDING:
            self._end(state, Verdict(Outcome.CLIENT_CANCELLED, now), now)
            if self._waiting:
                self._serve_queue(now)

    def _given_up(self, event: GivenUp, now: float) -> None:
        state = self._requests.get(event.request_id)
        if state is not None and state.phase is not RequestPhase.ENDING:
            refusal = refusals.given_up(event.reason)
            self._end(state, Verdict(Outcome.BACKEND_ERROR, now, refusal, error_code=event.reason), now)
            if self._waiting:
                self._serve_queue(now)

    def _load_reported(self, event: LoadReported, now: float) -> None:
        instance = self.instances.get(event.instance)
        if instance is not None:
            instance.takes_report(event.report, now)
            self.predictor.observe_report(instance, now)
            if self._waiting:
                self._serve_queue(now)

    def _probed(self, event: Probed, now: float) -> None:
        instance, settings = self.instances.get(event.instance), self.settings
        if instance is not None:
            changed = health.probed(instance, event.healthy, settings.eject_after, settings.return_after, now)
            if changed and self._waiting:
                self._serve_queue(now)

    def _peer_load_reported(self, event: PeerLoadReported, now: float) -> None:
        nothing = Work()
        for name, instance in self.instances.items():
            instance.shares(event.work.get(name, nothing), event.replicas)
            if name in event.ejected:
                health.ejected_elsewhere(instance, now)
        if self._waiting:
            self._serve_queue(now)

    def _fleet_changed(self, event: FleetChanged, now: float) -> None:
        self.fleet = Fleet(event.instances)
        self.settings = event.settings
        self._decider.explore = event.settings.explore
        if self._waiting:
            self._serve_queue(now)

    def _drain_changed(self, event: DrainChanged, now: float) -> None:
        instance = self.instances.get(event.instance)
        if instance is not None and instance.draining != event.draining:
            instance.draining = event.draining
            if self._waiting:
                self._serve_queue(now)

    def _tick(self, event: Tick, now: float) -> None:
        for request_id, _ in self._deadlines.due(now):
            state = self._requests.get(request_id)
            if state is None or state.phase is RequestPhase.ENDING:
                continue
            due = state.hard_deadline()
            if request_id in self._awaiting:
                due = min(state.request.expires_at, math.inf if due is None else due)
            if due is not None:
                if due <= now:
                    self._expire(state, now)
                else:
                    self._deadlines.add(due, request_id)
        while self._awaiting:
            state = next(iter(self._awaiting.values()))
            if state.request.expires_at > now:
                break
            self._expire(state, now)
        if self._waiting:
            self._serve_queue(now)
        for request_id, number in self._hedges.due(now):
            state = self._awaiting.get(request_id)
            attempt = state.attempt(number) if state else None
            if state is not None and attempt is not None and len(state.under_way) == 1:
                self._hedge(state, attempt, now)

    # --- placing -------------------------------------------------------------------------------------
    def _eligible(self, state: RequestState, now: float) -> Eligible:
        """Candidates of the wanted models, else of the first fallback that has any."""
        request = state.request
        found = self._candidates(state, request.models, now)
        if found.refusal is not None:
            for model in request.fallbacks:
                other = self._candidates(state, (model,), now)
                if other.refusal is None:
                    other.passed_over[:0] = found.passed_over
                    return other
        return found

    def _candidates(self, state: RequestState, models: Iterable[str], now: float) -> Eligible:
        return eligible(
            state.request,
            models,
            self.fleet.by_model,
            state.money,
            state.tried,
            now,
            self.predictor.qualities,
        )

    def _place(self, state: RequestState, found: Eligible, now: float) -> Decided | Queued | Refusal:
        """Where a request goes: to a candidate, to the queue, or nowhere."""
        request = state.request
        if found.refusal is not None:
            return found.refusal
        if not found.free:
            return self._wait(state, found.busy, now, deferred=False)
        options = self._admitted(request, found.free, found.passed_over, now)
        if isinstance(options, Refusal):
            return options
        decided = self._decider.decide(request, options, now, busy=found.busy, passed_over=found.passed_over)
        if decided.deferred and not request.hard and self._may_wait(state, now):
            return self._wait(state, found.free, now, deferred=True)
        return decided

    def _admitted(
        self,
        request: Request,
        options: list[Option],
        passed_over: list[tuple[Candidate, str]],
        now: float,
    ) -> list[Option] | Refusal:
        """The options that keep a hard SLO with the configured confidence; the others are added to `passed_over`."""
        if not request.hard or request.slo is None:
            return options
        self.predictor.predict_all(request, options, now)
        kept, risky = admission.keeping(options, self.settings.confidence)
        if not kept:
            return refusals.unattainable(
                f"The hard SLO would be missed with probability {admission.least_miss(options):.2f} at best.",
                max(refusals.until_met_s(request, options, now), self._drain_s()),
            )
        passed_over += risky
        return kept

    def _dispatch(self, state: RequestState, decided: Decided, now: float, *, hedge: bool = False) -> None:
        """Start an attempt at the candidate decided on; it may have to wait for money first."""
        request = state.request
        option, prediction = decided.option, decided.prediction
        candidate, instance = option.candidate, option.instance
        promised_tpot_s = None if request.slo is None else request.slo.tpot_s
        if (prediction.p_miss or 0.0) > self.settings.confidence:
            promised_tpot_s = None  # it is lost already
        attempt = AttemptState(
            len(state.attempts) + 1,
            candidate,
            instance,
            prediction,
            decided.decision,
            state.money.output_bound(candidate),
            hedge,
            now,
            request.prompt_tokens,
            int(prediction.output_tokens_p50 or 0.0),
            promised_tpot_s,
        )
        state.attempts.append(attempt)
        state.under_way.append(attempt)
        state.tried.add((candidate.instance, candidate.model))
        state.placed = candidate
        if state.phase is RequestPhase.QUEUED:
            state.charged_tokens = self._waiting.remove(state, served=True)
        instance.dispatched(request.prompt_tokens)
        if promised_tpot_s is not None:
            insort(instance.promised_tpot_s, promised_tpot_s)
        self.predictor.observe_dispatch(request, candidate, instance, prediction, now)
        self._register(state)
        self.policies[request.policy].placed(request, decided.options, decided.choice)
        if self.settings.hedge_share and not hedge:
            at = hedging.hedge_at(request, prediction)
            if at is not None:
                self._hedges.add(at, request.id, attempt.number)
        if state.money.begin(attempt.number, candidate, attempt.bound):
            self._send(state, attempt)
        else:
            attempt.phase = AttemptPhase.FUNDING
        self._ask_for_money(state)

    def _send(self, state: RequestState, attempt: AttemptState) -> None:
        attempt.phase = AttemptPhase.PREFILL
        self._out.append(
            Dispatch(
                state.request.id,
                attempt.number,
                attempt.candidate,
                attempt.bound,
                attempt.prediction,
                attempt.decision,
                state.money.allowance(attempt.number),
                attempt.hedge,
            )
        )

    def _hedge(self, state: RequestState, attempt: AttemptState, now: float) -> None:
        """A second attempt beside a late one, if it pays and its share is not used up. The longer nothing comes the
        more it gains, so what does not pay yet is considered again later."""
        request, settings = state.request, self.settings
        again = hedging.again_at(request, now)
        if again is not None:
            self._hedges.add(again, request.id, attempt.number)
        if (
            attempt.phase is not AttemptPhase.PREFILL  # it waits for money, of which a hedge would take some
            or self._hedged + 1 > settings.hedge_share * self._arrivals
            or len(state.attempts) >= settings.max_attempts
        ):
            return
        found = self._candidates(state, request.models, now)
        options = [each for each in found.free if each.instance is not attempt.instance]
        if found.refusal is not None or not options:
            return
        self.predictor.predict_all(request, options, now)
        options = [
            each for each in options if hedging.pays(request, attempt, each, settings.hedge_worth, now)
        ]
        if options:
            decided = self._decider.decide(request, options, now, passed_over=found.passed_over)
            self._hedged += 1
            self._dispatch(state, decided, now, hedge=True)

    # --- money ---------------------------------------------------------------------------------------
    def _ask_for_money(self, state: RequestState) -> None:
        usd = None if state.verdict is not None else state.money.ask()
        if usd is not None:
            self._out.append(Reserve(state.request.id, usd))

    def _unfunded(self, state: RequestState, attempt: AttemptState, now: float) -> None:
        """The budgets do not pay an attempt, so it never starts. Another one under way goes on; without one the request
        ends."""
        attempt.error = "the key's budgets do not pay it"
        self._lose(state, attempt, EndedHow.CANCELLED, now, sent=False)
        if not state.under_way:
            message = "The key's budgets, or those of the keys that made it, are spent."
            self._refuse(state, refusals.insufficient_quota(message), now)

    # --- waiting -------------------------------------------------------------------------------------
    def _wait(
        self, state: RequestState, options: Sequence[Option], now: float, *, deferred: bool
    ) -> Queued | Refusal:
        """Let a request wait, or go on waiting. A full queue refuses it, and so does a hard SLO that would pass."""
        request, waiting_room = state.request, self._waiting
        requeued = state.phase is RequestPhase.QUEUED
        if requeued:
            if deferred and state.deferred:
                waiting_room.defer_again(state, now)
            if state.deferred or not deferred:
                return QUEUED
            waiting_room.remove(state)
        floor_s = min(self.predictor.ttft_floor_s(request, each.candidate, each.instance) for each in options)
        if request.slo is not None and request.slo.e2e_s is not None:
            self.predictor.predict_all(request, options, now)
        due_at = state.slack_deadline(admission.least_decode_s(request, options))
        if request.hard and request.slo is not None:
            turns = waiting_room.queue.before(request.priority, due_at, request.key, state.models) + 1
            there = {each.instance.name: each.instance for each in options}.values()
            if now + admission.wait_s(turns, there, self.settings.confidence) + floor_s > due_at:
                return refusals.unattainable(
                    "The hard SLO would pass while the request is queued.", self._drain_s()
                )
        waiting = Waiting(
            request.id,
            request.key,
            request.priority,
            due_at,
            state.seq,
            due_at - floor_s,
            self._work_tokens(request),
            late=deferred or due_at - floor_s <= now,
            models=state.models,
        )
        if len(waiting_room) >= self.settings.max_queue and not requeued:
            leaving = waiting_room.gives_way(waiting)
            if leaving is None:
                return refusals.overloaded(self._drain_s())
            self._refuse(leaving, refusals.overloaded(self._drain_s()), now)
        waiting_room.add(state, waiting, now, deferred=deferred)
        self._register(state)
        return QUEUED

    def _serve_queue(self, now: float) -> None:
        """Give free slots to those who wait, in order; refuse those whose last instance has gone, and hard ones
        that cannot be in time any more."""
        waiting_room, fleet = self._waiting, self.fleet
        for state in waiting_room.shed(now):
            if state.request.hard:
                message = "The hard SLO cannot be kept any more: the request was queued too long."
                self._refuse(state, refusals.unattainable(message, self._drain_s()), now)
        full = {models: fleet.full(models, now) for models in waiting_room.models}
        if all(full.values()):
            return  # most ends free no slot that a queue of thousands need be walked for
        for waiting, state in waiting_room.in_order():
            models = waiting.models
            if models not in full:
                full[models] = fleet.full(models, now)
            if full[models]:
                if len(full) == len(waiting_room.models) and all(full.values()):
                    break
                continue
            if not waiting_room.may_place(state, now):
                continue
            found = self._eligible(state, now)
            if found.refusal is None and not found.free:
                continue
            placement = self._place(state, found, now)
            if isinstance(placement, Decided):
                self._dispatch(state, placement, now)
                full.clear()
            elif isinstance(placement, Refusal):
                self._refuse(state, placement, now)

    def _may_wait(self, state: RequestState, now: float) -> bool:
        """Whether a request for which there is a slot may be deferred: there is time, and place in the queue."""
        request = state.request
        patient = now < request.arrived_at + _PATIENCE * (request.expires_at - request.arrived_at)
        return patient and (
            state.phase is RequestPhase.QUEUED or len(self._waiting) < self.settings.max_queue
        )

    def _work_tokens(self, request: Request) -> float:
        """What a request will take, as far as is known without a prediction: the usual answer."""
        usual = self._usual_tokens if request.decodes else 0.0
        bound = math.inf if request.max_tokens is None else float(request.max_tokens)
        return request.prompt_tokens + request.choices * min(usual, bound) + 1.0

    def _drain_s(self) -> float:
        """Predicted seconds until the queue, and the work before it, has a slot for one more."""
        gap_s = admission.gap_s(self.instances.values())
        return refusals.bounded_s((1.0 if gap_s is None else gap_s) * (len(self._waiting) + 1))

    # --- ends of attempts ----------------------------------------------------------------------------
    def _succeed(self, state: RequestState, attempt: AttemptState, event: Ended, now: float) -> None:
        """An attempt has given its whole answer, which ends the request."""
        request, instance = state.request, attempt.instance
        output_tokens = event.output_tokens
        health.answered(instance)
        self._blame(state, answered=True)
        self._release(state, attempt, EndedHow.OK, now)
        self._usual_tokens += _USUAL_STEP * (output_tokens / request.choices - self._usual_tokens)
        if state.charged_tokens is not None:
            used_tokens = request.prompt_tokens + output_tokens + 1.0
            self._waiting.queue.used(request.key, used_tokens - state.charged_tokens)
        first_at = now if attempt.first_token_at is None else attempt.first_token_at
        ttft_s, e2e_s = first_at - request.arrived_at, now - request.arrived_at
        observed = request
        if attempt.bound.max_tokens != request.max_tokens and request.decodes:
            observed = replace(
                request, max_tokens=attempt.bound.max_tokens
            )  # cut there, it might have been longer
        self.predictor.observe_end(
            observed,
            attempt.candidate,
            instance,
            attempt.prediction,
            output_tokens,
            event.prompt_tokens,
            None if attempt.first_token_at is None else tpot_s(ttft_s, e2e_s, output_tokens),
            now,
        )
        state.placed = attempt.candidate  # with a hedge the one that answered
        met = slo_met(request.slo, ttft_s, e2e_s, output_tokens)
        bound = attempt.bound
        if event.out_of_money or (
            event.truncated
            and bound.by_money
            and bound.max_tokens is not None
            and output_tokens >= bound.max_tokens
        ):
            outcome = Outcome.BUDGET_EXHAUSTED_MID_DECODE
        else:
            outcome = Outcome.LATE if met is False else Outcome.OK
        self._end(state, Verdict(outcome, now, None, attempt, met), now, lost=EndedHow.HEDGE_LOST)

    def _failed(self, state: RequestState, attempt: AttemptState, failure: Failure, now: float) -> None:
        """An attempt failed: the request goes on with its other attempt, is placed again, or ends."""
        request = state.request
        seen = attempt.decoding and request.client_streams
        if seen:
            verdict = Verdict(Outcome.BACKEND_ERROR, now, refusals.broken_off(), attempt)
            self._end(state, verdict, now)
        elif any(each.phase is not AttemptPhase.CANCELLING for each in state.under_way):
            return
        elif failure.kind is FailureKind.REJECTED:
            self._refuse(
                state, refusals.rejected(failure.message, failure.status, failure.code, failure.param), now
            )
        elif failure.kind is FailureKind.TOO_LARGE:
            self._refuse(state, refusals.too_large(failure.message), now)
        else:
            self._retry(state, now)

    def _retry(self, state: RequestState, now: float) -> None:
        request, attempts = state.request, len(state.attempts)
        due = state.hard_deadline()
        placement: Decided | Queued | Refusal | None = None
        if attempts < self.settings.max_attempts and now < min(request.expires_at, due or math.inf):
            placement = self._place(state, self._eligible(state, now), now)
        if isinstance(placement, Decided):
            self._dispatch(state, placement, now)
        elif not isinstance(placement, Queued):  # the client is told what went wrong first
            self._refuse(state, refusals.failed(attempts), now)

    def _count_failure(self, state: RequestState, attempt: AttemptState, failure: Failure) -> None:
        """Count a failure against the instance, or keep it until it is known which side is to blame."""
        if failure.kind is FailureKind.UNREACHABLE:
            health.connection_failed(attempt.instance, self.settings.eject_after)
        elif failure.kind is FailureKind.ERROR and failure.status not in NO_FAULT:
            state.failed_at[attempt.instance.name] = attempt.instance

    def _blame(self, state: RequestState, *, answered: bool) -> None:
        """Count a request's failures against the instances at which it failed, unless the request itself is to blame: it
        failed at several, and none has `answered`."""
        if state.failed_at and (answered or len(state.failed_at) == 1):
            settings = self.settings
            for instance in state.failed_at.values():
                health.request_failed(
                    instance, state.request.owner, settings.eject_after, settings.return_after
                )
        state.failed_at.clear()

    def _cancel_others(self, state: RequestState, winner: AttemptState, now: float) -> None:
        for attempt in list(state.under_way):
            if attempt is not winner:
                self._cancel(state, attempt, EndedHow.HEDGE_LOST, now)

    def _cancel(self, state: RequestState, attempt: AttemptState, how: EndedHow, now: float) -> None:
        """Have the driver abort an attempt; one that waits for money ends at once."""
        if attempt.phase is AttemptPhase.FUNDING:
            self._lose(state, attempt, how, now, sent=False)
        elif attempt.phase is not AttemptPhase.CANCELLING:
            attempt.phase, attempt.ended_how = AttemptPhase.CANCELLING, how
            self._out.append(Cancel(state.request.id, attempt.number))

    def _lose(
        self,
        state: RequestState,
        attempt: AttemptState,
        how: EndedHow,
        now: float,
        *,
        sent: bool,
        too_large: bool = False,
    ) -> None:
        """An attempt has ended without a whole answer."""
        self._release(state, attempt, how, now, sent=sent, too_large=too_large)
        self.predictor.observe_loss(
            state.request,
            attempt.candidate,
            attempt.instance,
            attempt.prediction,
            now - attempt.dispatched_at,
            attempt.decoding,
            now,
        )

    def _release(
        self,
        state: RequestState,
        attempt: AttemptState,
        how: EndedHow,
        now: float,
        *,
        sent: bool = True,
        too_large: bool = False,
    ) -> None:
        """Take an attempt's work off its instance, and bill it."""
        attempt.phase, attempt.ended_how, attempt.ended_at = AttemptPhase.ENDED, how, now
        state.under_way.remove(attempt)
        bill(state.request, attempt, sent=sent, too_large=too_large)
        state.money.end(
            attempt.number,
            attempt.candidate,
            attempt.cost_usd,
            attempt.prompt_tokens,
            attempt.output_tokens,
        )
        instance = attempt.instance
        instance.released(attempt.pending_tokens, attempt.expected_output_tokens, attempt.decoding)
        if attempt.promised_tpot_s is not None:
            promised = instance.promised_tpot_s
            del promised[bisect_left(promised, attempt.promised_tpot_s)]
        instance.freed(now)

    # --- ends of requests ----------------------------------------------------------------------------
    def _refuse(self, state: RequestState, refusal: Refusal, now: float) -> None:
        self._end(state, Verdict(refusal.outcome, now, refusal), now)

    def _expire(self, state: RequestState, now: float) -> None:
        request = state.request
        by_e2e = (
            request.hard
            and request.slo is not None
            and request.slo.e2e_s is not None
            and now >= request.arrived_at + request.slo.e2e_s
        )
        if state.decoding:
            outcome = Outcome.EXPIRED_MID_DECODE
        elif state.under_way:
            outcome = Outcome.EXPIRED_BEFORE_FIRST_TOKEN
        else:
            outcome = Outcome.EXPIRED_IN_QUEUE
        self._refuse(state, refusals.expired(now - request.arrived_at, outcome, by_e2e), now)

    def _end(
        self,
        state: RequestState,
        verdict: Verdict,
        now: float,
        *,
        lost: EndedHow = EndedHow.CANCELLED,
    ) -> None:
        """It is decided how a request ends: cancel what is under way, and finish when all of that has ended."""
        state.verdict = verdict
        if state.phase is RequestPhase.QUEUED:
            self._waiting.remove(state)
        state.phase = RequestPhase.ENDING
        self._awaiting.pop(state.request.id, None)
        for attempt in list(state.under_way):
            self._cancel(state, attempt, lost, now)
        if not state.under_way:
            self._finish(state, now)

    def _finish(self, state: RequestState, now: float) -> None:
        request = state.request
        self._blame(state, answered=False)
        self._requests.pop(request.id, None)
        self._deadlines.sweep(self._requests)
        self._hedges.sweep(self._awaiting)
        settlement = settle(state)
        learner = self._learners.get(request.policy)
        if learner is not None and state.placed is not None:
            learner.ended(request, state.placed, settlement.slo_met, now)
        self._out.append(Finish(request.id, settlement))

    # --- bookkeeping ---------------------------------------------------------------------------------
    def _find(
        self, request_id: str, attempt: int
    ) -> tuple[RequestState, AttemptState | None] | tuple[None, None]:
        state = self._requests.get(request_id)
        return (None, None) if state is None else (state, state.attempt(attempt))

    def _register(self, state: RequestState) -> None:
        """Follow a request's time limits."""
        request_id, expires_at = state.request.id, state.request.expires_at
        if request_id not in self._requests:
            self._requests[request_id] = state
            if (due := state.hard_deadline()) is not None:
                self._deadlines.add(due, request_id)
        if not self._awaiting:
            self._awaiting_until = -math.inf
        if expires_at < self._awaiting_until:  # out of order: a retry, or another limit since a reload
            self._deadlines.add(expires_at, request_id)
        self._awaiting_until = max(self._awaiting_until, expires_at)
        self._awaiting[request_id] = state


#: Phases of attempts that the driver has started and that were not cancelled.
_RUNNING = (AttemptPhase.PREFILL, AttemptPhase.DECODING)
#: Statuses that say something of the request or of the load, not of the instance's health.
NO_FAULT = frozenset({408, 413, 414, 415, 429, 431, 503})
#: Characters of an error that are recorded.
_ERROR_CHARS = 300


def _error_of(failure: Failure) -> str:
    """What is recorded of a failure. An engine's words on a rejected request are for the client: they may quote it."""
    if failure.kind is FailureKind.REJECTED:
        return f"the engine refused the request ({failure.status})"
    return failure.message[:_ERROR_CHARS]
