"""The scheduler: events in, instructions out, no I/O, `now` an argument.

Life of a request here::

    Arrived --> decide --> Dispatch --> FirstToken --> Ended(ok) --> gone
                 |   ^        |             |
                 |   |        |             +-- Ended(failed, client has seen tokens) --> gone
                 |   +--------+-- Ended(failed, restartable): decide again without those tried
                 |   |
                 +-> queued (every candidate is full) -- a slot frees, an instance returns
                 |
                 +-> Refuse (nobody may take it, hard SLO out of reach, queue full, time passed)

`Left` (the client went away) and `Refuse` end a request in any state. Time-outs are found by `Tick`; the
runner keeps one timer, set to `wake_at`.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from router.core import health
from router.core.eligibility import Eligible, eligible, free_slots
from router.core.errors import Refusal
from router.core.events import (
    Arrived,
    Considered,
    Decision,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Instruction,
    Left,
    LoadReported,
    Probed,
    Refuse,
    Tick,
)
from router.core.interfaces import Choice, Option, Policy, Predictor
from router.core.live import Attempt, Live
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, Outcome, Prediction, Request


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`confidence`: a hard SLO is taken on only if some candidate keeps it with at least this probability.
    `max_queue`: requests that may wait for a slot. `max_attempts`: attempts a request may have."""

    confidence: float = 0.9
    max_queue: int = 512
    max_attempts: int = 3
    eject_after: int = 3
    return_after: int = 2


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
        self.settings = settings or SchedulerSettings()
        self.policies = policies
        self.predictor = predictor
        self.instances: dict[str, Instance] = {}
        self._by_model: dict[str, dict[str, Instance]] = {}
        self._rng = rng or Random()
        self._live: dict[str, Live] = {}
        self._awaiting: OrderedDict[str, Live] = OrderedDict()  # no first token yet, oldest first
        self._queue: list[tuple[tuple[float, float, int], str]] = []
        self._queued_models: Counter[tuple[str, ...]] = Counter()  # how many in the queue want these
        self._deadlines: list[tuple[float, str]] = []  # hard SLOs; entries of ended requests are skipped
        self._seq = 0
        self._release_gap_s: float | None = None  # mean time between slots coming free
        self._released_at: float | None = None
        self._now = 0.0
        self._handlers: dict[type, Callable[[Any, float], list[Instruction]]] = {
            Arrived: self._arrived,
            FirstToken: self._first_token,
            Ended: self._ended,
            Left: self._left,
            LoadReported: self._load_reported,
            Probed: self._probed,
            Tick: self._tick,
        }
        self.set_instances(instances)

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

    def knows(self, request_id: str) -> bool:
        """Whether a request is queued or under way."""
        return request_id in self._live

    def queued_by_model(self) -> Counter[str]:
        """Queued requests by the model wanted first."""
        return Counter(self._live[request_id].request.models[0] for _, request_id in self._queue)

    @property
    def live(self) -> int:
        """Requests that are queued or under way."""
        return len(self._live)

    @property
    def wake_at(self) -> float | None:
        """When `Tick` is wanted next; None for never."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._live:
            heapq.heappop(deadlines)
        at = deadlines[0][0] if deadlines else math.inf
        if self._awaiting:
            at = min(at, next(iter(self._awaiting.values())).request.expires_at)
        if self._queue and any(i.returned_at is not None for i in self.instances.values()):
            at = min(at, self._now + 0.5)  # a returning instance takes more as time passes
        return at if math.isfinite(at) else None

    # --- events --------------------------------------------------------------------------------------
    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event at time `now` (seconds, never going back) and say what is to be done."""
        self._now = now
        return self._handlers[type(event)](event, now)

    def decide(self, request: Request, now: float) -> Decision:
        """A dry run: what would be done with `request` now. Changes nothing. Raises Refusal."""
        found = self._eligible(Live(request, 0), now)
        if found.refusal is not None:
            raise found.refusal
        return self._choose(request, found.free or found.busy, found.passed_over, now, predict_all=True)[0]

    def _arrived(self, event: Arrived, now: float) -> list[Instruction]:
        self._seq += 1
        live = Live(event.request, self._seq)
        # Slots of a returning instance open as time passes: those who wait come first.
        ramping = bool(self._queue) and any(i.returned_at is not None for i in self.instances.values())
        first = self._drain(now) if ramping else []
        try:
            return [*first, self._place(live, now)]
        except _Queued:
            return first
        except Refusal as refusal:
            return [*first, Refuse(live.request.id, refusal)]

    def _first_token(self, event: FirstToken, now: float) -> list[Instruction]:
        live = self._live.get(event.request_id)
        attempt = live.attempt if live else None
        if (
            live is None
            or attempt is None
            or attempt.number != event.attempt
            or attempt.first_token_at is not None
        ):
            return []
        attempt.first_token_at = now
        self._awaiting.pop(event.request_id, None)
        instance = attempt.instance
        instance.first_token(attempt.prompt_tokens, attempt.expected_output_tokens)
        self.predictor.observe_ttft(
            live.request, attempt.candidate, instance, attempt.prediction, now - attempt.dispatched_at, now
        )
        return []

    def _ended(self, event: Ended, now: float) -> list[Instruction]:
        live = self._live.get(event.request_id)
        attempt = live.attempt if live else None
        if live is None or attempt is None or attempt.number != event.attempt:
            return []
        request = live.request
        instructions: list[Instruction] = []
        health.attempt_ended(attempt.instance, event, self.settings.eject_after)
        if event.how is EndedHow.OK:
            self._release(live, now)
            first = attempt.first_token_at
            tpot_s = None
            if first is not None and event.output_tokens > 1:
                tpot_s = (now - first) / (event.output_tokens - 1)
            self.predictor.observe_end(
                request,
                attempt.candidate,
                attempt.instance,
                attempt.prediction,
                event.output_tokens,
                event.prompt_tokens,
                tpot_s,
                now,
            )
            self._forget(live)
        else:
            self._lose(live, now)
            if event.output_tokens:
                live.spent_usd += attempt.candidate.price.cost_usd(
                    event.prompt_tokens or request.prompt_tokens_bound, event.output_tokens
                )
            again = event.how is EndedHow.FAILED and event.restartable and event.refusal is None
            if not again:
                self._forget(live)
                if event.refusal is not None:
                    instructions.append(Refuse(request.id, event.refusal))
            else:
                instructions += self._retry(live, now)
        if self._queue:
            instructions += self._drain(now)
        return instructions

    def _left(self, event: Left, now: float) -> list[Instruction]:
        live = self._live.get(event.request_id)
        if live is None:
            return []
        self._lose(live, now)
        self._forget(live)
        return self._drain(now) if self._queue else []

    def _load_reported(self, event: LoadReported, now: float) -> list[Instruction]:
        instance = self.instances.get(event.instance)
        if instance is not None:
            instance.takes_report(event.report, now)
            self.predictor.observe_report(instance, now)
        return []

    def _probed(self, event: Probed, now: float) -> list[Instruction]:
        instance = self.instances.get(event.instance)
        if instance is None:
            return []
        changed = health.probed(
            instance, event.healthy, self.settings.eject_after, self.settings.return_after, now
        )
        return self._drain(now) if changed and self._queue else []

    def _tick(self, event: Tick, now: float) -> list[Instruction]:
        instructions: list[Instruction] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
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
                    heapq.heappush(self._deadlines, (due, request_id))
        while self._awaiting:
            live = next(iter(self._awaiting.values()))
            if live.request.expires_at > now:
                break
            instructions.append(self._expire(live, now))
        if self._queue:
            instructions += self._drain(now)
        return instructions

    # --- deciding ------------------------------------------------------------------------------------
    def _eligible(self, live: Live, now: float) -> Eligible:
        """Candidates of the wanted models, else of the first fallback that has any."""
        request = live.request
        found = eligible(request, request.models, self._by_model, live.spent_usd, live.tried, now)
        if found.refusal is not None:
            for model in request.fallbacks:
                other = eligible(request, (model,), self._by_model, live.spent_usd, live.tried, now)
                if other.refusal is None:
                    other.passed_over[:0] = found.passed_over
                    return other
        return found

    def _place(self, live: Live, now: float) -> Dispatch:
        """Dispatch or queue a request; raises Refusal, or _Queued."""
        request = live.request
        found = self._eligible(live, now)
        if found.refusal is not None:
            raise found.refusal
        if not found.free:
            self._enqueue(live, found, now)
            raise _Queued
        decision, option, prediction = self._choose(
            request, found.free, found.passed_over, now, busy=found.busy
        )
        if request.hard and request.slo is not None:
            self._admit(request, found.free, now)
        return self._dispatch(live, option, prediction, decision, now)

    def _choose(
        self,
        request: Request,
        options: list[Option],
        passed_over: list[tuple[Candidate, str]],
        now: float,
        *,
        busy: Iterable[Option] = (),
        predict_all: bool = False,
    ) -> tuple[Decision, Option, Prediction]:
        policy = self.policies[request.policy]
        if policy.predicts or predict_all or request.hard:
            self.predictor.predict_all(request, options, now)
        rng = self._rng if request.seed is None else Random(request.seed)
        choice: Choice = policy.choose(request, options, rng)
        option = options[choice.index]
        prediction = option.prediction or self.predictor.predict(
            request, option.candidate, option.instance, now
        )
        option.prediction = prediction
        considered = [
            Considered(o.candidate, o.prediction, score, reason)
            for o, score, reason in zip(options, choice.scores, choice.reasons, strict=True)
        ]
        considered += [Considered(o.candidate, o.prediction, None, "no free slot") for o in busy]
        considered += [Considered(candidate, None, None, reason) for candidate, reason in passed_over]
        decision = Decision(
            request.policy,
            now,
            choice.index,
            tuple(considered),
            choice.propensity,
            tuple(o.instance.load_features(now) for o in options),
        )
        return decision, option, prediction

    def _admit(self, request: Request, options: list[Option], now: float) -> None:
        """Refuse a hard SLO that no candidate keeps with the configured confidence."""
        best = min((o.prediction.p_miss or 0.0 for o in options if o.prediction is not None), default=0.0)
        if best > 1 - self.settings.confidence + 1e-9:
            raise self._unattainable(f"The hard SLO would be missed with probability {best:.2f} at best.")

    def _unattainable(self, message: str) -> Refusal:
        return Refusal(
            429,
            "slo_unattainable",
            message,
            Outcome.REJECTED_SLO,
            param="routing.slo",
            retry_after_s=self.drain_s(),
            should_retry=False,
        )

    def drain_s(self) -> float:
        """Predicted seconds until the queue, and the work before it, has a slot for one more."""
        gap_s = self._release_gap_s if self._release_gap_s is not None else 1.0
        return min(60.0, max(1.0, gap_s * (len(self._queue) + 1)))

    def _dispatch(
        self, live: Live, option: Option, prediction: Prediction, decision: Decision, now: float
    ) -> Dispatch:
        request = live.request
        candidate, instance = option.candidate, option.instance
        bound, budget_bound = live.output_bound(candidate)
        live.attempts += 1
        expected = prediction.output_tokens_p50 or 0.0
        live.attempt = Attempt(
            live.attempts, candidate, instance, prediction, now, request.prompt_tokens, int(expected)
        )
        live.tried.add((candidate.instance, candidate.model))
        live.queued_as = None
        instance.dispatched(request.prompt_tokens)
        self.predictor.observe_dispatch(request, candidate, instance, prediction, now)
        self._register(live)
        self.policies[request.policy].taken(request, option)
        return Dispatch(request.id, live.attempts, candidate, bound, budget_bound, prediction, decision)

    def _retry(self, live: Live, now: float) -> list[Instruction]:
        request = live.request
        failed = Refusal(
            502,
            "upstream_error",
            f"Every attempt failed upstream ({live.attempts} tried).",
            Outcome.BACKEND_ERROR,
        )
        due = live.hard_deadline()
        if live.attempts >= self.settings.max_attempts or now >= min(request.expires_at, due or math.inf):
            self._forget(live)
            return [Refuse(request.id, failed)]
        try:
            return [self._place(live, now)]
        except _Queued:
            return []
        except Refusal:
            self._forget(live)
            return [Refuse(request.id, failed)]

    # --- queue ---------------------------------------------------------------------------------------
    def _enqueue(self, live: Live, found: Eligible, now: float) -> None:
        request = live.request
        if len(self._queue) >= self.settings.max_queue:
            raise Refusal(
                503,
                "server_overloaded",
                "Every instance is full and the queue is at its limit.",
                Outcome.REJECTED_OVERLOAD,
                retry_after_s=self.drain_s(),
            )
        if request.hard and request.slo is not None:
            limits = [s for s in (request.slo.ttft_s, request.slo.e2e_s) if s is not None]
            floors = [self.predictor.ttft_floor_s(request, o.candidate, o.instance) for o in found.busy]
            if limits and (self._release_gap_s or 0.0) * (len(self._queue) + 1) + min(floors) > min(limits):
                raise self._unattainable("The hard SLO would pass while the request is queued.")
        live.queued_as = (-float(request.priority), live.slack_deadline(), live.seq)
        insort(self._queue, (live.queued_as, request.id))
        self._queued_models[request.models + request.fallbacks] += 1
        self._register(live)

    def _drain(self, now: float) -> list[Instruction]:
        """Give free slots to queued requests in order; refuse those whose last instance has gone."""
        instructions: list[Instruction] = []
        # models -> whether all their live instances are full
        full = {models: self._full(models, now) for models in self._queued_models}
        if all(full.values()):
            return instructions  # most ends free no slot that a queue of thousands need be walked for
        for entry in list(self._queue):
            live = self._live[entry[1]]
            request = live.request
            models = request.models + request.fallbacks
            if models not in full:
                full[models] = self._full(models, now)
            if full[models]:
                if len(full) == len(self._queued_models) and all(full.values()):
                    break
                continue
            found = self._eligible(live, now)
            if found.refusal is None and not found.free:
                continue
            self._unqueue(live)
            try:
                instructions.append(self._place(live, now))
            except Refusal as refusal:
                self._forget(live)
                instructions.append(Refuse(request.id, refusal))
            else:
                full.clear()
        return instructions

    def _unqueue(self, live: Live) -> None:
        """Take a request out of the queue."""
        place = live.queued_as
        assert place is not None  # noqa: S101 (it is queued)
        live.queued_as = None
        del self._queue[bisect_left(self._queue, (place, live.request.id))]
        models = live.request.models + live.request.fallbacks
        self._queued_models[models] -= 1
        if not self._queued_models[models]:
            del self._queued_models[models]

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
                heapq.heappush(self._deadlines, (due, request_id))
        newest = next(reversed(self._awaiting.values()), None)
        if newest is not None and newest.request.expires_at > live.request.expires_at:
            heapq.heappush(self._deadlines, (live.request.expires_at, request_id))  # out of order: a retry
        self._awaiting[request_id] = live

    def _expire(self, live: Live, now: float) -> Refuse:
        request = live.request
        decoding = live.attempt is not None and live.attempt.first_token_at is not None
        by_e2e = (
            request.hard
            and request.slo is not None
            and request.slo.e2e_s is not None
            and now >= request.arrived_at + request.slo.e2e_s
        )
        if decoding:
            outcome = Outcome.EXPIRED_MID_DECODE
        elif live.attempt is None:
            outcome = Outcome.EXPIRED_IN_QUEUE
        else:
            outcome = Outcome.EXPIRED_BEFORE_FIRST_TOKEN
        self._lose(live, now)
        self._forget(live)
        code, what = (
            ("deadline_exceeded", "answer") if decoding or by_e2e else ("ttft_timeout", "first token")
        )
        message = f"The time for the {what} passed after {now - request.arrived_at:.2f} s."
        return Refuse(request.id, Refusal(504, code, message, outcome, should_retry=False))

    def _release(self, live: Live, now: float) -> None:
        """Take an attempt's work off its instance."""
        attempt = live.attempt
        if attempt is None:
            return
        live.attempt = None
        attempt.instance.released(
            attempt.prompt_tokens, attempt.expected_output_tokens, attempt.first_token_at is not None
        )
        if self._released_at is not None:
            gap_s = now - self._released_at
            mean = self._release_gap_s
            self._release_gap_s = gap_s if mean is None else mean + 0.05 * (gap_s - mean)
        self._released_at = now

    def _lose(self, live: Live, now: float) -> None:
        """End an attempt that gave no whole answer."""
        attempt = live.attempt
        self._release(live, now)
        if attempt is not None:
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
        if live.queued_as is not None:
            self._unqueue(live)
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * len(self._live):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._live]
            heapq.heapify(self._deadlines)


class _Queued(Exception):
    """The request waits in the queue."""
