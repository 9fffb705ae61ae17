"""The life of every request: events in, instructions out, no I/O, `now` an argument.

ARCHITECTURE.md, "The scheduler", draws it. `router.core.request_state` describes the states of requests and attempts.

Every request gets exactly one `Finish`, after all of its attempts have ended. `Left`, `GivenUp` and a time limit end a
request in any phase: its attempts are cancelled, and `Finish` follows their `Ended`. If a complete answer was held back for
a check, the client gets it, unless the client has left.

Instructions come first. `respond` returns them before the predictor and the policies learn from the event, and before it
makes a prediction that the decision did not need. `catch_up` does these postponed steps. The driver calls it after it has
carried out the instructions; the scheduler calls it before anything else changes. So each step sees the state that it would
have seen without the delay, and gives the same result. A postponed step makes no instruction. If one fails, `on_fault` gets
the error, and the other steps are still done.

The driver keeps one timer, set to `wake_at`, and sends `Tick` when it fires.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, cast

from router.core import attempts, health, hedging, refusals, streaming
from router.core.deciding import Decided, Decider
from router.core.eligibility import REPORT_HOLDS_S, free_slots
from router.core.errors import Refusal
from router.core.events import (
    Allow,
    Arrived,
    Cancel,
    Check,
    Checked,
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
    PeerObserved,
    PeerTurned,
    PredictorsChanged,
    Probed,
    QualityReported,
    Reserve,
    TargetsChanged,
    Tick,
)
from router.core.fleet import Fleet
from router.core.interfaces import HasSharedCursor, Policy, Predictor
from router.core.money import quote
from router.core.money.account import RequestMoney, Wait
from router.core.open_requests import OpenRequests
from router.core.placing import Placement, Placer, Queued
from router.core.request_state import AttemptPhase, AttemptState, RequestEnd, RequestPhase, RequestState
from router.core.settings import SchedulerSettings
from router.core.settlement import settle, slo_met, tpot_s
from router.core.state import ENGINE_QUEUE, Instance, Work
from router.core.types import Decision, EndedHow, Outcome, Request, Targets

#: An instance that has returned takes more as time passes, so the queue is served again after this many seconds.
_RETURN_LOOK_S = 0.5
# Python 3.11 takes 600 instructions to find a member of an enumeration, and 10 to find a global name.
_PREFILL = AttemptPhase.PREFILL
_FUNDING = AttemptPhase.FUNDING
_CANCELLING = AttemptPhase.CANCELLING
_QUEUED = RequestPhase.QUEUED
_ENDING = RequestPhase.ENDING
_OK = EndedHow.OK
_FAILED = EndedHow.FAILED
_HEDGE_LOST = EndedHow.HEDGE_LOST
_TOO_LARGE = FailureKind.TOO_LARGE
_IN_TIME = Outcome.OK
_LATE = Outcome.LATE
_OUT_OF_MONEY = Outcome.BUDGET_EXHAUSTED_MID_DECODE
#: Phases of attempts that the driver has started and that are not cancelled.
_RUNNING = (_PREFILL, AttemptPhase.DECODING)
#: These come from each instance of a large fleet, and change that one only.
_OF_ONE_INSTANCE = (LoadReported, Probed)


class Scheduler:
    """Decides where each request goes, what it may cost, when it ends and what its outcome is. One thread, one clock,
    no I/O."""

    def __init__(
        self,
        instances: Iterable[Instance],
        policies: Mapping[str, Policy],
        predictor: Predictor,
        settings: SchedulerSettings | None = None,
        rng: Random | None = None,
        use_targets: Callable[[Mapping[str | None, Targets]], None] | None = None,
    ) -> None:
        """`use_targets` gives the policies other targets, by key, and None for the fleet (None: they are constant)."""
        self.policies = policies
        self._rng = rng or Random()
        self.settings = settings or SchedulerSettings()
        self.predictor = predictor
        self._decider = Decider(policies, predictor, self._rng)
        self._placer = Placer(Fleet(instances), self._decider, self.settings)
        self._queue = self._placer.queue
        self._use_targets = use_targets
        self._open = OpenRequests()
        self._departed: dict[str, Instance] = {}  # `known_instances` that are not in the fleet
        self._arrivals = 0
        self._hedged = 0
        self._now = 0.0
        #: All instances of the waiting requests are full until this time, unless an event gives one a free slot.
        self._full_until = -math.inf
        self._out: list[Instruction] = []
        #: What `catch_up` does, in this order. Such a step reads the state as it is when it is added, so whatever changes the
        #: state catches up first.
        self._postponed: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        #: Called with an error of a policy or a predictor. It ends only the request that was being placed, and none if it
        #: was learning; the event's instructions for other requests stay. None: the error is raised.
        self.on_fault: Callable[[Exception], None] | None = None
        #: A handler returns True if a waiting request may find room now that found none before.
        self._handlers: dict[type, Callable[[Any, float], bool | None]] = {
            Arrived: self._arrived,
            FirstToken: self._first_token,
            Metered: self._metered,
            Granted: self._granted,
            Ended: self._ended,
            Checked: self._checked,
            Left: self._left,
            GivenUp: self._given_up,
            LoadReported: self._load_reported,
            Probed: self._probed,
            PeerLoadReported: self._peer_load_reported,
            FleetChanged: self._fleet_changed,
            DrainChanged: self._drain_changed,
            TargetsChanged: self._targets_changed,
            QualityReported: self._quality_reported,
            PeerObserved: self._peer_observed,
            PeerTurned: self._peer_turned,
            PredictorsChanged: self._predictors_changed,
            Tick: self._tick,
        }

    # --- what drivers read ---------------------------------------------------------------------------
    @property
    def fleet(self) -> Fleet:
        return self._placer.fleet

    @property
    def instances(self) -> dict[str, Instance]:
        """By name."""
        return self.fleet.instances

    @property
    def known_instances(self) -> dict[str, Instance]:
        """By name: the instances, and those that have left the fleet with attempts under way. One of these that comes back keeps
        its work, so its object must be used again."""
        return {**self._departed, **self.instances}

    @property
    def queue_depth(self) -> int:
        """The number of waiting requests."""
        return len(self._queue.waiting)

    @property
    def live(self) -> int:
        """The number of requests that have not ended."""
        return len(self._open.states)

    def queued_by_model(self) -> Counter[str]:
        """The number of waiting requests by their first model."""
        return Counter(each.models[0] for each in self._queue.waiting.values())

    def requests(self) -> Iterator[Request]:
        """The requests that have not ended."""
        return (state.request for state in self._open.states.values())

    def quote(self, request: Request) -> quote.Quote:
        """What a request may cost."""
        return quote.quote(
            request,
            self.fleet.tariffs(request.models + request.fallbacks),
            self._placer.usual_tokens,
            hedged=self.settings.hedge_share > 0 and hedging.may(request),
        )

    @property
    def wake_at(self) -> float | None:
        """When the driver must send the next `Tick`; None for never."""
        at = self._open.next_at()
        if self._queue.waiting:
            if self.fleet.returning():
                at = min(at, self._now + _RETURN_LOOK_S)
            # With fewer attempts in an engine's queue, one that waits here may find room.
            at = min(at, self._queue.next_decision_at(self._now), self._open.first_tokens_at)
        return at if at < math.inf else None

    def decide(self, request: Request, now: float) -> Decision:
        """A dry run: what would be done with `request` now. Changes nothing. Raises Refusal."""
        self.catch_up()
        return self._placer.dry_run(request, now)

    # --- events --------------------------------------------------------------------------------------
    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle one event at time `now` (in seconds; it never goes back). Returns the instructions, in their order."""
        out = self.respond(event, now)
        if self._postponed:
            self.catch_up()
        return out

    def respond(self, event: Event, now: float) -> list[Instruction]:
        """`handle`, but for what can wait until the instructions are carried out. `catch_up` must follow before anybody
        reads the state."""
        if self._postponed:
            self.catch_up()
        self._now = now
        out: list[Instruction] = []
        self._out = out
        assumed = now >= self._open.first_tokens_at
        if assumed:
            for attempt in self._open.expected_first_tokens(now):
                attempts.assume_first_token(attempt)
        if assumed or type(event) not in _OF_ONE_INSTANCE:
            self._full_until = -math.inf
        if (self._handlers[type(event)](event, now) or assumed) and self._queue.waiting:
            self._full_until = self._serve_queue(now)
        return out

    def catch_up(self) -> None:
        """Do what was postponed, in its order."""
        postponed = self._postponed
        for entry in postponed:
            step, arguments = entry
            try:
                step(*arguments)
            except Exception as error:
                if self.on_fault is None:
                    while postponed.popleft() is not entry:
                        pass
                    raise
                self.on_fault(error)
        postponed.clear()

    def _arrived(self, event: Arrived, now: float) -> None:
        self._arrivals += 1
        request = event.request
        if not request.client_streams:
            request = streaming.as_sent(request, event.funding, self.settings, self._rng)
        state = RequestState(request, self._arrivals, RequestMoney(request, event.funding))
        if now >= request.expires_at:  # its body, or its key's limits, took all its time
            self._expire(state, now)
            return
        # A returning instance has more slots as time passes, and there may be room for deferred requests. Requests that
        # already wait get these first.
        if self._queue.waiting and (self.fleet.returning() or self._queue.due(state.models, now)):
            self._serve_queue(now)
            self.catch_up()
        try:
            self._carry_out(state, self._placer.place(state, now), now)
        except Exception as error:  # noqa: BLE001 (reported by `_fault`)
            self._fault(state, error, now)

    def _first_token(self, event: FirstToken, now: float) -> bool:
        state, attempt = self._open.find(event.request_id, event.attempt)
        if state is None or attempt is None or attempt.phase is not _PREFILL:
            return False
        self._open.awaiting.pop(event.request_id, None)
        if state.failed_at:
            attempts.blame(state, self.settings, answered=True)
        attempts.first_token(attempt, now)
        ttft_s = now - attempt.dispatched_at
        self._postponed.append((self.predictor.observe_ttft, (attempt, ttft_s, now)))
        if len(state.under_way) == 1:
            # One request fewer in the engine's queue may free a slot there.
            return attempt.instance.awaiting_first_token == ENGINE_QUEUE - 1
        for other in list(state.under_way):
            if other is not attempt:
                self._cancel(state, other, _HEDGE_LOST, now)
        return len(state.under_way) == 1  # the other one waited for money, so it has ended

    def _metered(self, event: Metered, now: float) -> None:
        state, attempt = self._open.find(event.request_id, event.attempt)
        if state is None or attempt is None or attempt.phase is _CANCELLING:
            return
        covered = state.money.metered(attempt.number, event.cost_usd)
        self._request_money(state)
        allowance = state.money.allowance(attempt.number) if covered else None
        if allowance is not None:
            self._out.append(Allow(event.request_id, attempt.number, allowance))

    def _granted(self, event: Granted, now: float) -> bool:
        state = self._open.states.get(event.request_id)
        if state is None:
            return False
        money = state.money
        money.granted(event.reserved_usd, event.left_usd)
        if state.phase is _ENDING:
            return False
        running = [each for each in state.under_way if each.phase in _RUNNING]
        # Attempts that have not started come first: if one is not paid, its money is free for the others.
        for attempt in list(state.under_way):
            if attempt.phase is _FUNDING:
                wait = money.wait_of(attempt.number)
                if wait is Wait.OVER:
                    self._paid(state, attempt, now)
                elif wait is Wait.REFUSED:
                    self._unfunded(state, attempt, now)
        for attempt in running:
            wait = money.wait_of(attempt.number)
            allowance = money.allowance(attempt.number, final=wait is Wait.REFUSED)
            if allowance is not None and wait is not Wait.CONTINUES:
                self._out.append(Allow(event.request_id, attempt.number, allowance))
        self._request_money(state)
        return True

    def _ended(self, event: Ended, now: float) -> bool:
        state, attempt = self._open.find(event.request_id, event.attempt)
        if state is None or attempt is None:
            return False
        attempt.output_tokens, attempt.prompt_tokens = event.output_tokens, event.prompt_tokens
        how = attempt.ended_how if attempt.phase is _CANCELLING else event.how
        assert how is not None  # noqa: S101 (whoever cancels says why)
        failure = event.failure if how is _FAILED else None
        if failure is not None:
            attempts.count_failure(state, attempt, failure, self.settings)
        if how is _OK:
            self._succeed(state, attempt, event, now)
        else:
            too_large = failure is not None and failure.kind is _TOO_LARGE
            steady = how is not _FAILED and not event.held_up
            self._lose(state, attempt, how, now, sent=event.sent, too_large=too_large, steady=steady)
            if state.phase is _ENDING:
                if not state.under_way:
                    self._finish(state, now)
            elif failure is not None:
                self._failed(state, attempt, failure, now)
        return True

    def _checked(self, event: Checked, now: float) -> None:
        state = self._open.states.get(event.request_id)
        if state is None or state.phase is not RequestPhase.CHECKING or state.held is None:
            return
        state.phase = RequestPhase.RUNNING
        self.catch_up()
        try:
            decided = (
                None if event.score is None else self._placer.second_look(state, state.held, event.score, now)
            )
        except Exception as error:  # noqa: BLE001 (reported by `_fault`)
            self._fault(state, error, now)
            return
        if decided is None:
            self._deliver(state, state.held, now)
        else:
            self._dispatch(state, decided, now)

    def _left(self, event: Left, now: float) -> bool:
        state = self._open.states.get(event.request_id)
        if state is None or state.phase is _ENDING:
            return False
        self._end(state, RequestEnd(Outcome.CLIENT_CANCELLED, now), now)
        return True

    def _given_up(self, event: GivenUp, now: float) -> bool:
        state = self._open.states.get(event.request_id)
        if state is None or state.phase is _ENDING:
            return False
        self._give_up(state, event.reason, now)
        return True

    def _load_reported(self, event: LoadReported, now: float) -> bool:
        instance = self._placer.fleet.instances.get(event.instance)
        if instance is None:
            return False
        instance.takes_report(event.report, now)
        if now < self._full_until and free_slots(instance, now) >= 1:
            wanted = (model for models in self._queue.models for model in models)
            if any(model in instance.candidates for model in wanted):
                self._full_until = -math.inf
        self._postponed.append((self.predictor.observe_report, (instance, now)))
        return True

    def _probed(self, event: Probed, now: float) -> bool:
        instance, settings = self._placer.fleet.instances.get(event.instance), self.settings
        if instance is None:
            return False
        changed = health.probed(instance, event.healthy, settings.eject_after, settings.return_after, now)
        if changed:
            self._full_until = -math.inf
            if instance.returned_at is not None:
                self._placer.fleet.returned.append(instance)
        reported_at = instance.reported_at  # a report that is too old has opened slots
        return changed or (reported_at is not None and now - reported_at >= REPORT_HOLDS_S)

    def _peer_load_reported(self, event: PeerLoadReported, now: float) -> bool:
        nothing = Work()
        for name, instance in self.instances.items():
            instance.shares(event.work.get(name, nothing))
            if name in event.ejected:
                health.ejected_elsewhere(instance, now)
        return True

    def _fleet_changed(self, event: FleetChanged, now: float) -> bool:
        before, known = self.instances, self.known_instances
        self._placer.fleet = Fleet(event.instances)
        for name, instance in self.instances.items():
            if self._departed.get(name) is instance:
                instance.joins()
        self._departed = {
            name: each for name, each in known.items() if name not in self.instances and each.own.in_flight
        }
        gone = before.keys() - self.instances.keys()
        if gone:
            self._postponed.append((self.predictor.forget, (gone,)))
        self.settings = self._placer.settings = event.settings
        return True

    def _drain_changed(self, event: DrainChanged, now: float) -> bool:
        instance = self.instances.get(event.instance)
        if instance is None or instance.draining == event.draining:
            return False
        instance.draining = event.draining
        return True

    def _targets_changed(self, event: TargetsChanged, now: float) -> None:
        if self._use_targets is not None:
            self._use_targets(event.targets)

    def _quality_reported(self, event: QualityReported, now: float) -> None:
        self.predictor.observe_quality(event.model, event.features, event.quality, recorded=event.recorded)

    def _peer_observed(self, event: PeerObserved, now: float) -> None:
        self.predictor.receive(event.message, self.instances, now)

    def _peer_turned(self, event: PeerTurned, now: float) -> None:
        policy = self.policies.get(event.policy)
        if isinstance(policy, HasSharedCursor):
            policy.cursor.receive(event.turns)

    def _predictors_changed(self, event: PredictorsChanged, now: float) -> None:
        self.predictor.use(event.models)

    def _tick(self, event: Tick, now: float) -> None:
        for overdue in self._open.overdue(now):
            self._expire(overdue, now)
        if self._queue.waiting:
            self._serve_queue(now)
        for request_id, number in self._open.hedges.due(now):
            state, attempt = self._open.find(request_id, number)
            if state is None or attempt is None or request_id not in self._open.awaiting:
                continue
            if len(state.under_way) == 1:
                self._hedge(state, attempt, now)

    # --- placing -------------------------------------------------------------------------------------
    def _carry_out(self, state: RequestState, placement: Placement, now: float) -> None:
        if isinstance(placement, Decided):
            self._dispatch(state, placement, now)
        elif isinstance(placement, Queued):
            self._open.add(state)
            if placement.leaving is not None:
                refusal = refusals.overloaded(self._placer.drain_s())
                self._refuse(placement.leaving, refusal, now)
        else:  # a request that has failed ends with its errors
            self._refuse(state, refusals.failed(state.attempts) if state.attempts else placement, now)

    def _serve_queue(self, now: float) -> float:
        """Give free slots to waiting requests, in order. Refuse those whose last instance has gone, and those with a
        hard SLO that can no longer be met. Returns the new `_full_until`."""
        queue, fleet = self._queue, self.fleet
        for waiting in queue.shed(now):
            if waiting.state.request.hard:
                message = "The hard SLO can no longer be met: the request was queued too long."
                self._refuse(waiting.state, refusals.unattainable(message, self._placer.drain_s()), now)
                self._full_until = -math.inf  # its failures may have ejected an instance
        self.catch_up()
        if now < self._full_until:
            return self._full_until
        full = {models: fleet.full_until(models, now) for models in queue.models}
        if None not in full.values():  # walk a queue of thousands only if there may be a free slot
            return min(cast("Iterable[float]", full.values()), default=-math.inf)
        for waiting in list(queue.in_order()):
            self.catch_up()
            state, models = waiting.state, waiting.models
            if models not in full:
                full[models] = fleet.full_until(models, now)
            if full[models] is not None:
                if len(full) == len(queue.models) and None not in full.values():
                    break
                continue
            if not queue.may_place(waiting, now):
                continue
            try:
                placement = self._placer.place(state, now)
                self._carry_out(state, placement, now)
            except Exception as error:  # noqa: BLE001 (reported by `_fault`)
                self._fault(state, error, now)
                continue
            if isinstance(placement, Decided):
                full.clear()
        return -math.inf

    # --- attempts ------------------------------------------------------------------------------------
    def _dispatch(self, state: RequestState, decided: Decided, now: float, *, hedge: bool = False) -> None:
        """Start an attempt at the chosen candidate; it may have to wait for money first."""
        if state.phase is _QUEUED:
            state.charged_tokens = self._queue.remove(state.request.id, served=True).work_tokens
        attempt = attempts.start(state, decided, now, hedge=hedge)
        self._postponed.append((self._dispatched, (state, attempt, now)))
        if attempt.phase is _PREFILL:
            self._send(state, attempt)
        if state.money.reservation is not None:
            self._request_money(state)

    def _dispatched(self, state: RequestState, attempt: AttemptState, now: float) -> None:
        """The rest of a dispatch. The attempt counts also where the predictor or the policy fails."""
        request, decided = state.request, attempt.decided
        try:
            attempt.prediction = self._decider.complete(request, decided)
        finally:
            self._count(state, attempt, now)
            try:
                if attempt.phase is not _FUNDING:
                    self.predictor.observe_dispatch(attempt, now)
            finally:
                self.policies[request.policy].placed(request, decided.options, decided.choice)

    def _paid(self, state: RequestState, attempt: AttemptState, now: float) -> None:
        """Start an attempt that waited for money. Its wait is no time of the engine."""
        self.catch_up()
        attempt.dispatched_at = now
        self._postponed.append((self.predictor.observe_dispatch, (attempt, now)))
        self._send(state, attempt)

    def _count(self, state: RequestState, attempt: AttemptState, now: float) -> None:
        """Count a new attempt, and set its time limits and its request's."""
        request, prediction = state.request, attempt.prediction
        self._open.add(state)
        attempts.count(attempt, self.settings.confidence)
        if self.settings.hedge_share and not attempt.hedge:
            at = hedging.hedge_at(request, prediction)
            if at is not None:
                self._open.hedges.add(at, request.id, attempt.number)
        if not request.engine_streams and request.decodes and prediction.engine_ttft_s is not None:
            at = now + prediction.engine_ttft_s
            self._open.expect_first_token(request.id, attempt.number, at)

    def _send(self, state: RequestState, attempt: AttemptState) -> None:
        attempt.phase = _PREFILL
        self._out.append(
            Dispatch(
                state.request.id,
                attempt.number,
                attempt.candidate,
                attempt.bound,
                attempt,
                None if state.money.reservation is None else state.money.allowance(attempt.number),
                attempt.hedge,
                state.request.engine_streams,
            )
        )

    def _hedge(self, state: RequestState, attempt: AttemptState, now: float) -> None:
        """Start a second attempt beside a late one, if it pays and the share of hedges is not used up. Its gain grows
        with the wait, so it is considered again later if it does not pay yet."""
        request, settings = state.request, self.settings
        again = hedging.again_at(request, now)
        if again is not None:
            self._open.hedges.add(again, request.id, attempt.number)
        self.catch_up()
        if (
            attempt.phase is not _PREFILL  # it waits for money, and a hedge would take some of it
            or state.refused  # another engine would refuse it too
            or self._hedged + 1 > settings.hedge_share * self._arrivals
            or len(state.attempts) >= settings.max_attempts
        ):
            return
        try:
            decided = self._placer.hedge(state, attempt, now)
            if decided is not None:
                self._hedged += 1
                self._dispatch(state, decided, now, hedge=True)
        except Exception as error:  # noqa: BLE001 (reported by `_fault`)
            self._fault(state, error, now)

    # --- money ---------------------------------------------------------------------------------------
    def _request_money(self, state: RequestState) -> None:
        usd = None if state.end is not None else state.money.request_more()
        if usd is not None:
            self._out.append(Reserve(state.request.id, usd))

    def _unfunded(self, state: RequestState, attempt: AttemptState, now: float) -> None:
        """The budgets do not pay an attempt, so it never starts. Another attempt under way continues; without one the
        request ends."""
        attempt.error = "the key's budgets cannot pay for it"
        self._lose(state, attempt, EndedHow.CANCELLED, now, sent=False)
        if not state.under_way:
            message = "The key's budgets, or those of the keys that made it, are spent."
            self._refuse(state, refusals.insufficient_quota(message), now)

    # --- ends of attempts ----------------------------------------------------------------------------
    def _succeed(self, state: RequestState, attempt: AttemptState, event: Ended, now: float) -> None:
        """An attempt has given its complete answer, which ends the request."""
        request, output_tokens, bound = state.request, event.output_tokens, attempt.bound
        known_tpot_s = None
        if attempt.first_token_at is not None and not event.held_up:
            ttft_s = attempt.first_token_at - request.arrived_at
            known_tpot_s = tpot_s(ttft_s, now - request.arrived_at, output_tokens)
        attempts.end(state, attempt, _OK, now)
        max_tokens = bound.max_tokens
        if event.out_of_money or (event.truncated and _fills_context(attempt)):
            max_tokens = max(output_tokens // request.choices, 1)
        observed = attempt, output_tokens, max_tokens, attempt.prompt_tokens, known_tpot_s, now
        self._postponed.append((self.predictor.observe_end, observed))
        if state.failed_at:
            attempts.blame(state, self.settings, answered=True)
        self._placer.answered(state, output_tokens)
        state.placed = attempt.candidate  # with a hedge, the attempt that answered
        met = slo_met(attempt, now)
        outcome = _LATE if met is False else _IN_TIME
        at_bound = bound.max_tokens is not None and output_tokens >= bound.max_tokens
        if event.out_of_money or (event.truncated and bound.by_money and at_bound):
            outcome = _OUT_OF_MONEY
        if state.held is not None and (event.empty or outcome is _OUT_OF_MONEY):
            self._deliver(state, state.held, now)  # it is complete, and this one is not
            return
        if attempt.decided.choice.check and outcome is _IN_TIME and self._may_check(state, now):
            self._check(state, attempt, now)
            return
        self._end(state, RequestEnd(outcome, now, None, attempt, met), now, lost=_HEDGE_LOST)

    def _may_check(self, state: RequestState, now: float) -> bool:
        """Whether there is time for a check, and another attempt is allowed."""
        request, slo = state.request, state.request.slo
        used_up = state.held is not None or len(state.attempts) >= self.settings.max_attempts
        if request.check is None or used_up:
            return False
        e2e_s = math.inf if slo is None or slo.e2e_s is None else slo.e2e_s
        return now + request.check.limit_s <= min(request.expires_at, request.arrived_at + e2e_s)

    def _check(self, state: RequestState, attempt: AttemptState, now: float) -> None:
        """Hold a complete answer back until it is checked."""
        state.held, state.phase = attempt, RequestPhase.CHECKING
        self._open.awaiting.pop(state.request.id, None)
        for other in list(state.under_way):
            self._cancel(state, other, _HEDGE_LOST, now)
        self._out.append(Check(state.request.id, attempt.number, attempt.candidate))

    def _lose(
        self,
        state: RequestState,
        attempt: AttemptState,
        how: EndedHow,
        now: float,
        *,
        sent: bool,
        too_large: bool = False,
        steady: bool = False,
    ) -> None:
        """An attempt has ended without a complete answer. `steady`: its tokens so far show the engine's speed."""
        self.catch_up()
        unpaid = attempt.phase is _FUNDING
        attempts.end(state, attempt, how, now, sent=sent, too_large=too_large)
        if unpaid:
            return  # it shows nothing of the engine
        tokens, tpot_s = attempt.output_tokens, None
        if steady and tokens >= 2 and attempt.first_token_at is not None:
            # On average half of the next token is made.
            tpot_s = (now - attempt.first_token_at) / (tokens - 0.5)
        observed = attempt, now - attempt.dispatched_at, attempt.decoding, tokens, tpot_s, now
        self._postponed.append((self.predictor.observe_loss, observed))

    def _failed(self, state: RequestState, attempt: AttemptState, failure: Failure, now: float) -> None:
        """An attempt failed: the request continues with its other attempt, is placed again, or ends."""
        if attempt.decoding and state.request.client_streams:  # the client has seen some of it
            end = RequestEnd(Outcome.BACKEND_ERROR, now, refusals.broken_off(), attempt)
            self._end(state, end, now)
        elif any(each.phase is not _CANCELLING for each in state.under_way):
            return
        elif failure.kind is FailureKind.REJECTED:
            self._refuse(state, refusals.rejected(failure), now)
        elif failure.kind is _TOO_LARGE:
            self._refuse(state, refusals.too_large(failure.message), now)
        else:
            self._retry(state, now)

    def _retry(self, state: RequestState, now: float) -> None:
        due = state.hard_deadline()
        may_start = state.held is None and len(state.attempts) < self.settings.max_attempts
        if may_start and now < min(state.request.expires_at, due or math.inf):
            self.catch_up()
            try:
                self._carry_out(state, self._placer.place(state, now), now)
            except Exception as error:  # noqa: BLE001 (reported by `_fault`)
                self._fault(state, error, now)
        else:
            self._refuse(state, refusals.failed(state.attempts), now)

    def _cancel(self, state: RequestState, attempt: AttemptState, how: EndedHow, now: float) -> None:
        """Instruct the driver to abort an attempt. One that waits for money ends at once."""
        if attempt.phase is _FUNDING:
            self._lose(state, attempt, how, now, sent=False)
        elif attempt.phase is not _CANCELLING:
            attempt.phase, attempt.ended_how = _CANCELLING, how
            self._out.append(Cancel(state.request.id, attempt.number))

    # --- ends of requests ----------------------------------------------------------------------------
    def _refuse(self, state: RequestState, refusal: Refusal, now: float) -> None:
        if state.held is None:
            self._end(state, RequestEnd(refusal.outcome, now, refusal), now)
        else:
            self._deliver(state, state.held, now)

    def _deliver(self, state: RequestState, held: AttemptState, now: float) -> None:
        """End a request with the answer that was held back for its check."""
        state.placed = held.candidate
        met = slo_met(held, now)
        self._end(state, RequestEnd(_LATE if met is False else _IN_TIME, now, None, held, met), now)

    def _expire(self, state: RequestState, now: float) -> None:
        request, slo = state.request, state.request.slo
        e2e_s = None if slo is None else slo.e2e_s
        by_e2e = request.hard and e2e_s is not None and now >= request.arrived_at + e2e_s
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
        end: RequestEnd,
        now: float,
        *,
        lost: EndedHow = EndedHow.CANCELLED,
    ) -> None:
        """The end of a request is decided: cancel its attempts, and finish when all of them have ended."""
        state.end = end
        if state.phase is _QUEUED:
            self._queue.remove(state.request.id)
        state.phase = _ENDING
        self._open.awaiting.pop(state.request.id, None)
        if state.under_way:
            for attempt in list(state.under_way):
                self._cancel(state, attempt, lost, now)
        if not state.under_way:
            self._finish(state, now)

    def _give_up(self, state: RequestState, reason: str, now: float) -> None:
        if state.held is not None:
            self._deliver(state, state.held, now)
            return
        refusal = refusals.given_up(reason)
        self._end(state, RequestEnd(Outcome.BACKEND_ERROR, now, refusal, error_code=reason), now)

    def _fault(self, state: RequestState, error: Exception, now: float) -> None:
        """A policy or a predictor failed while a request was being placed."""
        self.catch_up()
        if self.on_fault is None:
            raise error
        self.on_fault(error)
        if state.phase is not _ENDING:
            self._give_up(state, "internal_error", now)

    def _finish(self, state: RequestState, now: float) -> None:
        request = state.request
        if state.failed_at:
            attempts.blame(state, self.settings, answered=False)
        self._open.states.pop(request.id, None)
        settlement = settle(state)
        if state.placed is not None:
            ended = request, state.placed, settlement.slo_met, now
            self._postponed.append((self.policies[request.policy].ended, ended))
        self._out.append(Finish(request.id, settlement))


def _fills_context(attempt: AttemptState) -> bool:
    """Whether one prompt and its answer leave no room in the model's context."""
    request, most_tokens = attempt.request, attempt.candidate.context_tokens
    if most_tokens is None or request.choices != 1:
        return False
    return (attempt.prompt_tokens or request.prompt_tokens) + attempt.output_tokens >= most_tokens
