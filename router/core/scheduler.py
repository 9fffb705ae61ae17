r"""The scheduler: events in, instructions out, no I/O, `now` an argument.

Life of a request here::

    Arrived --> decide --> Dispatch --> FirstToken --> Ended(ok) --> gone
                 |   ^        |   \         |
                 |   |        |    \        +-- Ended(failed, client has seen tokens) --> gone
                 |   |        |     +-- late: Dispatch(hedge) --> first token of either: Cancel the other
                 |   +--------+-- Ended(failed, restartable): decide again without those tried
                 |   |
                 +-> queued (every candidate is full, or the policy defers it) -- a slot frees, an instance
                 |   returns
                 |
                 +-> Refuse (nobody may take it, hard SLO out of reach, queue full, time passed)

`Left` (the client went away) and `Refuse` end a request in any state. Time-outs are found by `Tick`; the
runner keeps one timer, set to `wake_at`. What is due when is `alarms`', the order of those who wait `queue`'s, whether a
second attempt pays `hedging`'s.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from router.core import admission, health, hedging, refusals
from router.core.deadlines import DeadlineHeap
from router.core.deciding import Decided, Decider
from router.core.eligibility import Eligible, eligible, free_slots
from router.core.errors import Refusal
from router.core.events import (
    Arrived,
    Cancel,
    Decision,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Instruction,
    Left,
    LoadReported,
    PeerLoadReported,
    Probed,
    Refuse,
    Tick,
)
from router.core.interfaces import Learner, Option, Policy, Predictor
from router.core.live import Attempt, Live
from router.core.queue import Queue, Waiting
from router.core.state import Instance, Work
from router.core.types import Candidate, EndedHow, Outcome, Request

#: A deferred request is thought over again after this many seconds at the earliest.
_THINK_AGAIN_S = 0.05
#: Share of a request's time after which it is deferred no more.
_PATIENCE = 0.5


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`confidence`: a hard SLO is taken on only if some candidate keeps it with at least this probability.
    `max_queue`: requests that may wait for a slot. `max_attempts`: attempts a request may have. `hedge_share`: the
    greatest share of requests that get a second attempt beside a late first one (0: none), `hedge_worth` what a
    kept SLO is worth to it, in prices of an answer. `explore`: share of decisions that try another option."""

    confidence: float = 0.9
    max_queue: int = 512
    max_attempts: int = 3
    eject_after: int = 3
    return_after: int = 2
    hedge_share: float = 0.0
    hedge_worth: float = 3.0
    explore: float = 0.0


class Scheduler:
    """Decides where each request goes and when it is given up. One thread, one clock, no I/O."""

    def __init__(
        self,
        instances: Iterable[Instance],
        policies: Mapping[str, Policy],
        predictor: Predictor,
        settings: SchedulerSettings | None = None,
        rng: Random | None = None,
    ) -> None:
        self.policies = policies
        self.instances: dict[str, Instance] = {}
        self._decider = Decider(policies, predictor, rng or Random())
        self.settings = settings or SchedulerSettings()
        self._learners = {name: each for name, each in policies.items() if isinstance(each, Learner)}
        self._by_model: dict[str, dict[str, Instance]] = {}
        self._live: dict[str, Live] = {}
        self._awaiting: OrderedDict[str, Live] = OrderedDict()  # no first token yet, oldest first
        self._awaiting_until = -math.inf  # the latest time limit among those that were there together
        self._queue = Queue()
        self._queued_models: Counter[tuple[str, ...]] = Counter()  # how many in the queue want these
        self._deadlines = DeadlineHeap()  # hard SLOs
        self._hedges = DeadlineHeap()  # when an attempt, by its number, is late
        self._deferred = 0  # in the queue because a policy holds them back
        self._think_again_at: dict[
            tuple[str, ...], float
        ] = {}  # when those are thought over again, by models
        self._pushed_out: list[str] = []  # requests that gave way to others in a full queue, not yet told
        self._seq = 0
        self._hedged = 0
        self._usual_tokens = 256.0  # running mean of answers; a choice until they are seen
        self._now = 0.0
        self._handlers: dict[type, Callable[[Any, float], list[Instruction]]] = {
            Arrived: self._arrived,
            FirstToken: self._first_token,
            Ended: self._ended,
            Left: self._left,
            LoadReported: self._load_reported,
            Probed: self._probed,
            PeerLoadReported: self._peer_load_reported,
            Tick: self._tick,
        }
        self.set_instances(instances)

    @property
    def predictor(self) -> Predictor:
        return self._decider.predictor

    @predictor.setter
    def predictor(self, predictor: Predictor) -> None:
        self._decider.predictor = predictor

    @property
    def settings(self) -> SchedulerSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._decider.explore = settings.explore

    # --- fleet ---------------------------------------------------------------------------------------
    def set_instances(self, instances: Iterable[Instance]) -> None:
        """Replace the fleet. An instance object that stays keeps its counters; attempts under way on one
        that goes run to their end."""
        self.instances = {instance.name: instance for instance in instances}
        by_model: dict[str, dict[str, Instance]] = {}
        for name in sorted(self.instances):
            for model in self.instances[name].candidates:
                by_model.setdefault(model, {})[name] = self.instances[name]
        self._by_model = by_model

    def serving(self, model: str) -> Iterable[Instance]:
        """The instances that serve a model, in order of name."""
        return self._by_model.get(model, {}).values()

    @property
    def queue_depth(self) -> int:
        return len(self._queue)

    @property
    def usual_tokens(self) -> float:
        """Output tokens of a usual answer, of late."""
        return self._usual_tokens

    def knows(self, request_id: str) -> bool:
        """Whether a request is queued or under way."""
        return request_id in self._live

    def queued_by_model(self) -> Counter[str]:
        """Queued requests by the model wanted first."""
        return Counter(self._live[request_id].request.models[0] for request_id in self._queue)

    @property
    def live(self) -> int:
        """Requests that are queued or under way."""
        return len(self._live)

    @property
    def wake_at(self) -> float | None:
        """When `Tick` is wanted next; None for never."""
        at = min(self._deadlines.next_at(self._live), self._hedges.next_at(self._awaiting))
        if self._awaiting:
            at = min(at, next(iter(self._awaiting.values())).request.expires_at)
        if self._queue:
            if any(i.returned_at is not None for i in self.instances.values()):
                at = min(at, self._now + 0.5)  # a returning instance takes more as time passes
            if self._deferred:
                at = min(at, max(min(self._think_again_at.values()), self._now + _THINK_AGAIN_S))
        return at if math.isfinite(at) else None

    # --- events --------------------------------------------------------------------------------------
    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event at time `now` (seconds, never going back) and say what is to be done."""
        self._now = now
        instructions = self._handlers[type(event)](event, now)
        while self._pushed_out:
            instructions.append(Refuse(self._pushed_out.pop(), refusals.overloaded(self.drain_s())))
        return instructions

    def decide(self, request: Request, now: float) -> Decision:
        """A dry run: what would be done with `request` now. Changes nothing. Raises Refusal."""
        found = self._eligible(Live(request, 0), now)
        if found.refusal is not None:
            raise found.refusal
        options, passed_over = found.free or found.busy, found.passed_over
        if request.hard and request.slo is not None:
            options, risky = self._admitted(request, options, now)
            passed_over = [*passed_over, *risky]
        return self._decider.decide(request, options, now, passed_over=passed_over, dry=True).decision

    def _arrived(self, event: Arrived, now: float) -> list[Instruction]:
        self._seq += 1
        live = Live(event.request, self._seq)
        # Slots of a returning instance open as time passes, and so does room for who was deferred: those who wait
        # come first.
        opening = bool(self._queue) and (
            any(i.returned_at is not None for i in self.instances.values())
            or now >= self._think_again_at.get(_models(event.request), math.inf)
        )
        first = self._drain(now) if opening else []
        try:
            return [*first, self._place(live, self._eligible(live, now), now)]
        except _Queued:
            return first
        except Refusal as refusal:
            return [*first, Refuse(live.request.id, refusal)]

    def _first_token(self, event: FirstToken, now: float) -> list[Instruction]:
        live = self._live.get(event.request_id)
        attempt = live.attempt(event.attempt) if live else None
        if live is None or attempt is None or attempt.first_token_at is not None:
            return []
        attempt.first_token_at = now
        self._awaiting.pop(event.request_id, None)
        if live.failed_at:
            self._blame(live, answered=True)
        instance = attempt.instance
        instance.first_token(attempt.prompt_tokens, attempt.expected_output_tokens)
        self.predictor.observe_ttft(
            live.request, attempt.candidate, instance, attempt.prediction, now - attempt.dispatched_at, now
        )
        instructions: list[Instruction] = []
        for other in [each for each in live.under_way if each is not attempt]:
            self._lose(live, other, now)
            live.spent_usd += other.candidate.price.cost_usd(
                live.request.bound_tokens(other.candidate.model), 0
            )
            instructions.append(Cancel(event.request_id, other.number))
        if instructions and self._queue:
            instructions += self._drain(now)
        return instructions

    def _ended(self, event: Ended, now: float) -> list[Instruction]:
        live = self._live.get(event.request_id)
        attempt = live.attempt(event.attempt) if live else None
        if live is None or attempt is None:
            return []
        request = live.request
        instructions: list[Instruction] = []
        if event.how is EndedHow.OK:
            health.answered(attempt.instance)
            if live.failed_at:
                self._blame(live, answered=True)
            self._succeeded(live, attempt, event, now)
        else:
            if event.how is EndedHow.FAILED and event.fault:
                if event.unreachable:
                    health.connection_failed(attempt.instance, self.settings.eject_after)
                else:
                    live.failed_at[attempt.instance.name] = attempt.instance
            self._lose(live, attempt, now)
            if event.output_tokens:
                live.spent_usd += attempt.candidate.price.cost_usd(
                    event.prompt_tokens or request.bound_tokens(attempt.candidate.model), event.output_tokens
                )
            again = event.how is EndedHow.FAILED and event.restartable and event.refusal is None
            if not again:
                # Before a first token it is the request that was refused: nobody's miss.
                self._over(live, False if attempt.first_token_at is not None else None, now)
                if event.refusal is not None:
                    instructions.append(Refuse(request.id, event.refusal))
            elif not live.under_way:  # else a second attempt goes on
                instructions += self._retry(live, now)
        if self._queue:
            instructions += self._drain(now)
        return instructions

    def _succeeded(self, live: Live, attempt: Attempt, event: Ended, now: float) -> None:
        request = live.request
        self._release(live, attempt, now)
        self._usual_tokens += 0.01 * (event.output_tokens / request.choices - self._usual_tokens)
        if live.charged_tokens is not None:
            used_tokens = request.prompt_tokens + event.output_tokens + 1.0
            self._queue.used(request.key, used_tokens - live.charged_tokens)
        first = attempt.first_token_at
        tpot_s = None
        if first is not None and event.output_tokens > 1:
            tpot_s = (now - first) / (event.output_tokens - 1)
        told = request
        if (
            attempt.max_tokens != request.max_tokens and request.decodes
        ):  # cut there, it might have been longer
            told = replace(request, max_tokens=attempt.max_tokens)
        self.predictor.observe_end(
            told,
            attempt.candidate,
            attempt.instance,
            attempt.prediction,
            event.output_tokens,
            event.prompt_tokens,
            tpot_s,
            now,
        )
        met = request.slo is not None and request.slo.met(
            (now if first is None else first) - request.arrived_at, tpot_s, now - request.arrived_at
        )
        live.placed = attempt.candidate  # with a hedge the one that answered
        self._over(live, met, now)

    def _left(self, event: Left, now: float) -> list[Instruction]:
        live = self._live.get(event.request_id)
        if live is None:
            return []
        self._over(live, None, now)
        return self._drain(now) if self._queue else []

    def _load_reported(self, event: LoadReported, now: float) -> list[Instruction]:
        instance = self.instances.get(event.instance)
        if instance is None:
            return []
        instance.takes_report(event.report, now)
        self.predictor.observe_report(instance, now)
        return self._drain(now) if self._queue else []

    def _probed(self, event: Probed, now: float) -> list[Instruction]:
        instance = self.instances.get(event.instance)
        if instance is None:
            return []
        changed = health.probed(
            instance, event.healthy, self.settings.eject_after, self.settings.return_after, now
        )
        return self._drain(now) if changed and self._queue else []

    def _peer_load_reported(self, event: PeerLoadReported, now: float) -> list[Instruction]:
        nothing = Work()
        for name, instance in self.instances.items():
            instance.shares(event.work.get(name, nothing), event.replicas)
            if name in event.ejected:
                health.ejected_elsewhere(instance, now)
        return self._drain(now) if self._queue else []

    def _tick(self, event: Tick, now: float) -> list[Instruction]:
        instructions: list[Instruction] = []
        for request_id, _ in self._deadlines.due(now):
            live = self._live.get(request_id)
            if live is None:
                continue
            due = live.hard_deadline()
            if request_id in self._awaiting:
                due = min(live.request.expires_at, math.inf if due is None else due)
            if due is not None:
                if due <= now:
                    instructions.append(self._expire(live, now))
                else:
                    self._deadlines.add(due, request_id)
        while self._awaiting:
            live = next(iter(self._awaiting.values()))
            if live.request.expires_at > now:
                break
            instructions.append(self._expire(live, now))
        if self._queue:
            instructions += self._drain(now)
        for request_id, number in self._hedges.due(now):
            live = self._awaiting.get(request_id)
            attempt = live.attempt(number) if live else None
            if live is not None and attempt is not None and len(live.under_way) == 1:
                instructions += self._hedge(live, attempt, now)
        return instructions

    # --- deciding ------------------------------------------------------------------------------------
    def _eligible(self, live: Live, now: float) -> Eligible:
        """Candidates of the wanted models, else of the first fallback that has any."""
        request = live.request
        found = self._candidates(live, request.models, now)
        if found.refusal is not None:
            for model in request.fallbacks:
                other = self._candidates(live, (model,), now)
                if other.refusal is None:
                    other.passed_over[:0] = found.passed_over
                    return other
        return found

    def _candidates(self, live: Live, models: Iterable[str], now: float) -> Eligible:
        request = live.request
        held_usd = live.spent_usd if request.max_cost_usd is None else live.spent_usd + live.reserved_usd()
        charged_usd = 0.0 if request.left_usd is None else live.charged_usd()
        return eligible(
            request,
            models,
            self._by_model,
            held_usd,
            live.tried,
            now,
            self.predictor.qualities,
            charged_usd,
        )

    def _place(self, live: Live, found: Eligible, now: float) -> Dispatch:
        """Dispatch or queue a request; raises Refusal, or _Queued."""
        request = live.request
        if found.refusal is not None:
            raise found.refusal
        if not found.free:
            self._wait(live, found.busy, now, deferred=False)
        options, passed_over = found.free, found.passed_over
        if request.hard and request.slo is not None:
            options, risky = self._admitted(request, options, now)
            passed_over = [*passed_over, *risky]
        decided = self._decider.decide(request, options, now, busy=found.busy, passed_over=passed_over)
        if decided.deferred and not request.hard and self._may_wait(request, now):
            self._wait(live, found.free, now, deferred=True)
        return self._dispatch(live, decided, now)

    def _may_wait(self, request: Request, now: float) -> bool:
        """Whether a request for which there is a slot may be deferred: there is time, and place in the queue."""
        patient = now < request.arrived_at + _PATIENCE * (request.expires_at - request.arrived_at)
        return patient and (request.id in self._queue or len(self._queue) < self.settings.max_queue)

    def _admitted(
        self, request: Request, options: list[Option], now: float
    ) -> tuple[list[Option], list[tuple[Candidate, str]]]:
        """The options that keep a hard SLO with the configured confidence, and the others with why not. Raises the
        Refusal if there are none."""
        self.predictor.predict_all(request, options, now)
        kept, risky = admission.keeping(options, self.settings.confidence)
        if not kept:
            raise refusals.unattainable(
                f"The hard SLO would be missed with probability {admission.least_miss(options):.2f} at best.",
                max(refusals.until_met_s(request, options, now), self.drain_s()),
            )
        return kept, risky

    def drain_s(self) -> float:
        """Predicted seconds until the queue, and the work before it, has a slot for one more."""
        gap_s = admission.gap_s(self.instances.values())
        return refusals.bounded_s((1.0 if gap_s is None else gap_s) * (len(self._queue) + 1))

    def _dispatch(self, live: Live, decided: Decided, now: float, *, hedge: bool = False) -> Dispatch:
        request = live.request
        option, prediction = decided.option, decided.prediction
        candidate, instance = option.candidate, option.instance
        bound, budget_bound, paid_tokens = live.output_bound(candidate)
        live.attempts += 1
        promised_tpot_s = None if request.slo is None else request.slo.tpot_s
        if (prediction.p_miss or 0.0) > self.settings.confidence:
            promised_tpot_s = None  # it is lost already
        live.under_way.append(
            Attempt(
                live.attempts,
                candidate,
                instance,
                prediction,
                now,
                request.prompt_tokens,
                int(prediction.output_tokens_p50 or 0.0),
                bound,
                paid_tokens,
                promised_tpot_s,
            )
        )
        live.tried.add((candidate.instance, candidate.model))
        live.placed = candidate
        if request.id in self._queue:
            live.charged_tokens = self._unqueue(live, served=True)
        instance.dispatched(request.prompt_tokens)
        if promised_tpot_s is not None:
            insort(instance.promised_tpot_s, promised_tpot_s)
        self.predictor.observe_dispatch(request, candidate, instance, prediction, now)
        self._register(live)
        self.policies[request.policy].placed(request, decided.options, decided.choice)
        if self.settings.hedge_share and not hedge:
            at = hedging.hedge_at(request, prediction)
            if at is not None:
                self._hedges.add(at, request.id, live.attempts)
        return Dispatch(
            request.id,
            live.attempts,
            candidate,
            bound,
            budget_bound,
            prediction,
            decided.decision,
            paid_tokens,
            hedge,
        )

    def _hedge(self, live: Live, attempt: Attempt, now: float) -> list[Instruction]:
        """A second attempt beside a late one, if it pays and its share is not used up. The longer nothing comes the
        more it gains, so what does not pay yet is thought over again."""
        request, settings = live.request, self.settings
        again = hedging.again_at(request, now)
        if again is not None:
            self._hedges.add(again, request.id, attempt.number)
        if self._hedged + 1 > settings.hedge_share * self._seq or live.attempts >= settings.max_attempts:
            return []
        found = self._candidates(live, request.models, now)
        options = [each for each in found.free if each.instance is not attempt.instance]
        if found.refusal is not None or not options:
            return []
        self.predictor.predict_all(request, options, now)
        options = [
            each for each in options if hedging.pays(request, attempt, each, settings.hedge_worth, now)
        ]
        if not options:
            return []
        decided = self._decider.decide(request, options, now, passed_over=found.passed_over)
        self._hedged += 1
        return [self._dispatch(live, decided, now, hedge=True)]

    def _retry(self, live: Live, now: float) -> list[Instruction]:
        request = live.request
        due = live.hard_deadline()
        if live.attempts < self.settings.max_attempts and now < min(request.expires_at, due or math.inf):
            try:
                return [self._place(live, self._eligible(live, now), now)]
            except _Queued:
                return []
            except Refusal:
                pass  # the client is told what went wrong first
        self._over(live, False, now)
        return [Refuse(request.id, refusals.failed(live.attempts))]

    # --- queue ---------------------------------------------------------------------------------------
    def _wait(self, live: Live, options: list[Option], now: float, *, deferred: bool) -> None:
        """Queue a request, or leave it there; always raises: _Queued, or the Refusal of a full queue or of a hard
        SLO that passes meanwhile."""
        request = live.request
        requeued = False
        if request.id in self._queue:
            if deferred and live.deferred:
                self._think_again_at[_models(request)] = now + _THINK_AGAIN_S
            if live.deferred or not deferred:
                raise _Queued
            self._unqueue(live)
            requeued = True
        floor_s = min(self.predictor.ttft_floor_s(request, each.candidate, each.instance) for each in options)
        if request.slo is not None and request.slo.e2e_s is not None:
            self.predictor.predict_all(request, options, now)
        due_at = live.slack_deadline(admission.least_decode_s(request, options))
        if request.hard and request.slo is not None:
            turns = self._queue.before(request.priority, due_at, request.key, _models(request)) + 1
            there = {each.instance.name: each.instance for each in options}.values()
            if now + admission.wait_s(turns, there, self.settings.confidence) + floor_s > due_at:
                raise refusals.unattainable(
                    "The hard SLO would pass while the request is queued.", self.drain_s()
                )
        waiting = Waiting(
            request.id,
            request.key,
            request.priority,
            due_at,
            live.seq,
            due_at - floor_s,
            self._work_tokens(request),
            late=deferred or due_at - floor_s <= now,
            models=_models(request),
        )
        if len(self._queue) >= self.settings.max_queue and not requeued:
            self._make_room(waiting, now)
        live.deferred = deferred
        self._deferred += deferred
        self._queue.add(waiting)
        self._queued_models[_models(request)] += 1
        if deferred:  # further arrivals do not put it off
            self._think_again_at.setdefault(_models(request), now + _THINK_AGAIN_S)
        self._register(live)
        raise _Queued

    def _work_tokens(self, request: Request) -> float:
        """What a request will take, as far as is known before it is predicted for: the usual answer."""
        usual = self._usual_tokens if request.decodes else 0.0
        bound = math.inf if request.max_tokens is None else float(request.max_tokens)
        return request.prompt_tokens + request.choices * min(usual, bound) + 1.0

    def _make_room(self, waiting: Waiting, now: float) -> None:
        """Refuse somebody for a newcomer to a full queue: who leaves is told with the same event. Raises the Refusal
        of the newcomer if nobody gives way."""
        leaving = self._queue.gives_way(waiting)
        if leaving is None:
            raise refusals.overloaded(self.drain_s())
        self._over(self._live[leaving.id], False, now)
        self._pushed_out.append(leaving.id)

    def _drain(self, now: float) -> list[Instruction]:
        """Give free slots to queued requests in order; refuse those whose last instance has gone, and hard ones
        that cannot be in time any more."""
        instructions: list[Instruction] = []
        for request_id in self._queue.shed(now):
            live = self._live[request_id]
            if live.request.hard:
                self._over(live, False, now)
                refusal = refusals.unattainable(
                    "The hard SLO cannot be kept any more: the request was queued too long.", self.drain_s()
                )
                instructions.append(Refuse(request_id, refusal))
        # models -> whether all their live instances are full
        full = {models: self._full(models, now) for models in self._queued_models}
        if all(full.values()):
            return instructions  # most ends free no slot that a queue of thousands need be walked for
        for waiting in list(self._queue.in_order()):
            live = self._live[waiting.id]
            request, models = live.request, waiting.models
            if models not in full:
                full[models] = self._full(models, now)
            if full[models]:
                if len(full) == len(self._queued_models) and all(full.values()):
                    break
                continue
            if live.deferred and now < self._think_again_at[models]:
                continue
            found = self._eligible(live, now)
            if found.refusal is None and not found.free:
                continue
            try:
                instructions.append(self._place(live, found, now))
            except _Queued:
                continue
            except Refusal as refusal:
                self._over(live, False, now)
                instructions.append(Refuse(request.id, refusal))
            else:
                full.clear()
        return instructions

    def _unqueue(self, live: Live, *, served: bool = False) -> float:
        """Take a request out of the queue; the work in tokens that its key's turn is counted for."""
        waiting = self._queue.remove(live.request.id, served=served)
        self._deferred -= live.deferred
        live.deferred = False
        models = _models(live.request)
        self._queued_models[models] -= 1
        if not self._queued_models[models]:
            del self._queued_models[models]
            self._think_again_at.pop(models, None)
        return waiting.work_tokens

    def _full(self, models: tuple[str, ...], now: float) -> bool:
        """Whether some instance of `models` is alive, but none has a slot."""
        alive = [
            instance
            for model in models
            for instance in self._by_model.get(model, {}).values()
            if instance.healthy and not instance.draining
        ]
        return bool(alive) and all(free_slots(instance, now) < 1 for instance in alive)

    # --- bookkeeping ---------------------------------------------------------------------------------
    def _register(self, live: Live) -> None:
        request_id = live.request.id
        if request_id not in self._live:
            self._live[request_id] = live
            if (due := live.hard_deadline()) is not None:
                self._deadlines.add(due, request_id)
        expires_at = live.request.expires_at
        if not self._awaiting:
            self._awaiting_until = -math.inf
        if expires_at < self._awaiting_until:  # out of order: a retry, or another limit since a reload
            self._deadlines.add(expires_at, request_id)
        self._awaiting_until = max(self._awaiting_until, expires_at)
        self._awaiting[request_id] = live

    def _expire(self, live: Live, now: float) -> Refuse:
        request = live.request
        by_e2e = (
            request.hard
            and request.slo is not None
            and request.slo.e2e_s is not None
            and now >= request.arrived_at + request.slo.e2e_s
        )
        decoding = live.decoding
        if decoding:
            outcome = Outcome.EXPIRED_MID_DECODE
        elif not live.under_way:
            outcome = Outcome.EXPIRED_IN_QUEUE
        else:
            outcome = Outcome.EXPIRED_BEFORE_FIRST_TOKEN
        self._over(live, False, now)
        return Refuse(request.id, refusals.expired(now - request.arrived_at, outcome, by_e2e))

    def _over(self, live: Live, met: bool | None, now: float) -> None:
        """A request has ended, and what is under way for it; who learns from that hears of it."""
        for attempt in list(live.under_way):
            self._lose(live, attempt, now)
        if live.failed_at:
            self._blame(live, answered=False)
        self._forget(live)
        learner = self._learners.get(live.request.policy)
        if learner is not None and live.placed is not None:
            learner.ended(live.request, live.placed, None if live.request.slo is None else met, now)

    def _blame(self, live: Live, *, answered: bool) -> None:
        """Count a request's failures against the instances at which it failed, unless it is to blame itself: it failed
        at several, and none has `answered`."""
        if answered or len(live.failed_at) == 1:
            settings = self.settings
            for instance in live.failed_at.values():
                health.request_failed(
                    instance, live.request.owner, settings.eject_after, settings.return_after
                )
        live.failed_at.clear()

    def _release(self, live: Live, attempt: Attempt, now: float) -> None:
        """Take an attempt's work off its instance."""
        live.under_way.remove(attempt)
        instance = attempt.instance
        instance.released(
            attempt.prompt_tokens, attempt.expected_output_tokens, attempt.first_token_at is not None
        )
        if attempt.promised_tpot_s is not None:
            promised = instance.promised_tpot_s
            del promised[bisect_left(promised, attempt.promised_tpot_s)]
        instance.freed(now)

    def _lose(self, live: Live, attempt: Attempt, now: float) -> None:
        """End an attempt that gave no whole answer."""
        self._release(live, attempt, now)
        self.predictor.observe_loss(
            live.request,
            attempt.candidate,
            attempt.instance,
            attempt.prediction,
            now - attempt.dispatched_at,
            attempt.first_token_at is not None,
            now,
        )

    def _forget(self, live: Live) -> None:
        request_id = live.request.id
        self._live.pop(request_id, None)
        self._awaiting.pop(request_id, None)
        if request_id in self._queue:
            self._unqueue(live)
        self._deadlines.sweep(self._live)
        self._hedges.sweep(self._awaiting)


def _models(request: Request) -> tuple[str, ...]:
    return request.models + request.fallbacks


class _Queued(Exception):
    """The request waits in the queue."""
