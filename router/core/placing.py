"""Where a request goes: to a candidate, to the queue, or to a refusal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from router.core import admission, hedging, refusals
from router.core.deciding import Decided, Decider, unavailable
from router.core.eligibility import Eligible, eligible
from router.core.errors import Refusal
from router.core.fleet import Fleet
from router.core.interfaces import CheckedAnswer, Option
from router.core.money.account import RequestMoney
from router.core.queue import DEFER_S, Queue, Waiting
from router.core.request_state import AttemptState, RequestPhase, RequestState
from router.core.settings import SchedulerSettings
from router.core.types import Candidate, Decision, Request

#: A request is no longer deferred after this share of its time.
_PATIENCE = 0.5
#: The weight of a new answer in the running mean of lengths.
_USUAL_STEP = 0.01


class Queued(NamedTuple):
    """The request waits in the queue. `leaving` is the request that a full queue drops for it (None: none)."""

    leaving: RequestState | None = None


Placement = Decided | Queued | Refusal


class Placer:
    """Places requests. `fleet` and `settings` are replaced as a whole when they change. `queue` has the waiting
    requests, `usual_tokens` is the running mean of answers' lengths."""

    def __init__(self, fleet: Fleet, decider: Decider, settings: SchedulerSettings) -> None:
        self.fleet = fleet
        self.queue = Queue()
        self.usual_tokens = 256.0  # a start value, until there are answers
        self.predictor = decider.predictor
        self.settings = settings
        self._decider = decider

    # --- decisions -----------------------------------------------------------------------------------
    def place(self, state: RequestState, now: float) -> Placement:
        """Where a request goes now. One that waits stays where it is if every candidate is still full."""
        request, found = state.request, self.eligible(state, now)
        if found.refusal is not None:
            return _against(found.refusal, request, found, now)
        if not found.free:
            placement = self._wait(state, found.busy, now, deferred=False)
            return _against(placement, request, found, now) if isinstance(placement, Refusal) else placement
        options = found.free
        if request.hard:
            admitted = self._admitted(request, options, found.passed_over, now)
            if isinstance(admitted, Refusal):
                self._decider.refused(request, options)
                return _against(admitted, request, found, now)
            options = admitted
        decided = self._decider.decide(
            request, options, now, self.settings.explore, busy=found.busy, passed_over=found.passed_over
        )
        if decided.choice.defer:
            if request.hard:
                return self._given_up(decided)
            if self._may_wait(state, now):
                return self._wait(state, found.free, now, deferred=True)
        return decided

    def hedge(self, state: RequestState, attempt: AttemptState, now: float) -> Decided | None:
        """Where a second attempt beside a late first one goes; None if none pays. A model whose answer was found poor gets
        none."""
        request, poor = state.request, None if state.held is None else state.held.candidate.model
        found = self._candidates(state, request.models, now)
        options = [
            each
            for each in found.free
            if each.instance is not attempt.instance and each.candidate.model != poor
        ]
        if not options:
            return None
        self.predictor.predict_all(request, options, now)
        worth, explore = self.settings.hedge_worth, self.settings.explore
        options = [each for each in options if hedging.pays(request, attempt, each, worth, now)]
        if not options:
            return None
        return self._decider.decide(request, options, now, explore, passed_over=found.passed_over)

    def second_look(
        self, state: RequestState, held: AttemptState, score: float, now: float
    ) -> Decided | None:
        """Where a request goes whose answer was checked with this score; None if the answer is good enough, or if nobody can
        take the request now."""
        request = state.request
        found = self._candidates(state, request.models, now)
        answer = CheckedAnswer(held.candidate, held.prediction, state.money.spent_usd, score)
        return self._decider.reconsider(request, answer, found.free, now, passed_over=found.passed_over)

    def dry_run(self, request: Request, now: float) -> Decision:
        """What would be done with `request` now. Changes nothing. Raises Refusal, with what speaks against each candidate."""
        state = RequestState(request, 0, RequestMoney(request))
        found = self.eligible(state, now)
        if found.refusal is not None:
            raise _against(found.refusal, request, found, now)
        options: Sequence[Option] | Refusal = found.busy
        if found.free:
            options = self._admitted(request, found.free, found.passed_over, now)
        elif isinstance(waiting := self._waiting(state, found.busy, now, late=False), Refusal):
            options = waiting
        if isinstance(options, Refusal):
            raise _against(options, request, found, now)
        decided = self._decider.decide(request, options, now, passed_over=found.passed_over, dry=True)
        if decided.choice.defer and request.hard:
            raise self._given_up(decided)
        self._decider.complete(request, decided)
        return decided.decision

    def eligible(self, state: RequestState, now: float) -> Eligible:
        """The candidates of the request's models; if none of these models has one, those of the first fallback that has
        any."""
        request = state.request
        found = self._candidates(state, request.models, now)
        if found.refusal is not None:
            for model in request.fallbacks:
                other = self._candidates(state, (model,), now)
                if other.refusal is None:
                    other.passed_over[:0] = found.passed_over
                    return other
        return found

    def _candidates(self, state: RequestState, models: tuple[str, ...], now: float) -> Eligible:
        return eligible(
            state.request,
            models,
            self.fleet.roster(models),
            state.money,
            state.tried,
            now,
            self.predictor.qualities,
        )

    def _admitted(
        self,
        request: Request,
        options: Sequence[Option],
        passed_over: list[tuple[Candidate, str]],
        now: float,
    ) -> Sequence[Option] | Refusal:
        """The options that meet a hard SLO with the configured confidence, or else the one at which it is tried. The others are
        added to `passed_over`."""
        if not request.hard or request.slo is None:
            return options
        self.predictor.predict_all(request, options, now)
        kept, risky = admission.keeping(options, self.settings.confidence)
        if not kept:
            slo = request.slo
            target_s = slo.ttft_s if slo.ttft_s is not None else slo.e2e_s

            def can_meet(option: Option) -> bool:
                floor_s = self.predictor.ttft_floor_s(request, option.candidate, option.instance)
                return target_s is None or floor_s <= target_s

            tried = admission.trial(options, now, can_meet)
            if tried is not None:
                passed_over += [each for each in risky if each[0] is not tried.candidate]
                return [tried]
            return refusals.unattainable(
                f"No instance can meet the hard SLO now; the best misses it with probability {admission.least_miss(options):.2f}.",
                max(refusals.until_met_s(slo, options, now - request.arrived_at), self.drain_s()),
            )
        passed_over += risky
        return kept

    def _given_up(self, decided: Decided) -> Refusal:
        """A hard SLO that could be met, for more than it is worth now."""
        refusal = refusals.unattainable(
            "Instances that meet hard SLOs are scarce now, and this request would take the time of several others.",
            self.drain_s(),
        )
        refusal.decision = decided.refused
        return refusal

    # --- waiting -------------------------------------------------------------------------------------
    def drain_s(self) -> float:
        """Predicted seconds until the queue, and the requests before a new one, leave a free slot for it."""
        gap_s = admission.gap_s(self.fleet.instances.values())
        return refusals.bounded_s((1.0 if gap_s is None else gap_s) * (len(self.queue.waiting) + 1))

    def answered(self, state: RequestState, output_tokens: int) -> None:
        """A request was answered with this many tokens: update the mean length, and correct the work of its key."""
        request = state.request
        self.usual_tokens += _USUAL_STEP * (output_tokens / request.choices - self.usual_tokens)
        if state.charged_tokens is not None:
            used_tokens = request.prompt_tokens + output_tokens + 1.0
            self.queue.used(request.key, used_tokens - state.charged_tokens)
            state.charged_tokens = 0.0  # a second answer counts as a whole

    def _wait(
        self, state: RequestState, options: Sequence[Option], now: float, *, deferred: bool
    ) -> Queued | Refusal:
        """Put a request into the queue, or leave it there. It is refused if the queue is full, or if its hard SLO would
        pass."""
        queue = self.queue
        requeued = state.phase is RequestPhase.QUEUED
        if requeued:
            if deferred and state.deferred:
                queue.defer_again(state.models, now + DEFER_S)
            if state.deferred or not deferred:
                return Queued()
            queue.remove(state.request.id)
        waiting = self._waiting(state, options, now, late=deferred)
        if isinstance(waiting, Refusal):
            return waiting
        leaving = None
        if len(queue.waiting) >= self.settings.max_queue and not requeued:
            leaving = queue.gives_way(waiting)
            if leaving is None:
                return refusals.overloaded(self.drain_s())
            queue.remove(leaving.id)
        queue.add(waiting, now + DEFER_S if deferred else None)
        return Queued(None if leaving is None else leaving.state)

    def _waiting(
        self, state: RequestState, options: Sequence[Option], now: float, *, late: bool
    ) -> Waiting | Refusal:
        """A request's place in the queue, or a refusal if its hard SLO would pass there."""
        request = state.request
        floor_s = min(self.predictor.ttft_floor_s(request, each.candidate, each.instance) for each in options)
        if request.slo is not None and request.slo.e2e_s is not None:
            self.predictor.predict_all(request, options, now)
        due_at = state.slack_deadline(admission.least_decode_s(request, options))
        if request.hard and request.slo is not None:
            turns = self.queue.before(request.priority, due_at, request.key, state.models) + 1
            there = {each.instance.name: each.instance for each in options}.values()
            if now + admission.wait_s(turns, there, self.settings.confidence) + floor_s > due_at:
                return refusals.unattainable(
                    "The time limit of the hard SLO would pass while the request is queued.", self.drain_s()
                )
        return Waiting(
            state,
            request.id,
            request.key,
            request.priority,
            due_at,
            state.seq,
            due_at - floor_s,
            self._work_tokens(request),
            state.models,
            late or due_at - floor_s <= now,
        )

    def _may_wait(self, state: RequestState, now: float) -> bool:
        """Whether a request may be deferred although there is a slot: it has time, and the queue has room."""
        request = state.request
        patient = now < request.arrived_at + _PATIENCE * (request.expires_at - request.arrived_at)
        return patient and (
            state.phase is RequestPhase.QUEUED or len(self.queue.waiting) < self.settings.max_queue
        )

    def _work_tokens(self, request: Request) -> float:
        """The expected work of a request, without a prediction: its prompt and an answer of the usual length."""
        usual = self.usual_tokens if request.decodes else 0.0
        bound = math.inf if request.max_tokens is None else float(request.max_tokens)
        return request.prompt_tokens + request.choices * min(usual, bound) + 1.0


def _against(refusal: Refusal, request: Request, found: Eligible, now: float) -> Refusal:
    """The refusal, with what speaks against each candidate."""
    against = (*map(admission.too_risky, found.free), *unavailable(found.busy, found.passed_over))
    if against:
        refusal.decision = Decision(request.policy, now, None, against, None, ())
    return refusal
