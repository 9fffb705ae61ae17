"""The simulator: the gateway's scheduler and policies on virtual time, over the pure engine models.

One loop over events in order of time:

1. An arrival goes to the scheduler. The instructions are carried out: `Dispatch` submits to the instance's engine,
   `Cancel` aborts an attempt, `Check` draws a score from the answer's true quality, `Finish` writes the request's row.
2. An engine's next moment: first tokens are reported first, then ends, as in the gateway.
3. Every `probes.interval_s` each instance is probed and its load report read, as the gateway's monitor does.
4. The scheduler's own timer (`wake_at`).
5. Faults: an instance is lost, and comes back empty.
6. With a scaler, its decisions: instances come and go (`benchmarks.simulator.scaling`).

The scheduler is built as in the gateway and decides everything. docs/simulator.md says what is real and what is modelled.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf, nan
from time import perf_counter

from backends.engine import PromptTooLong, QueueFull
from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.attempts import SimulatedAttempt, SimulatedRequest
from benchmarks.simulator.checks import outcome_of
from benchmarks.simulator.engines import SimulatedEngine
from benchmarks.simulator.fleet import Fleet
from benchmarks.simulator.outcomes import Gaps, LoadSample, Log, Result, Timeline
from benchmarks.simulator.scaling import Scaling, SimulatedPools
from predictors.online.predictor import OnlinePredictor
from router.core.events import (
    Arrived,
    Cancel,
    Check,
    Dispatch,
    Ended,
    Event,
    Failure,
    FailureKind,
    Finish,
    FirstToken,
    Instruction,
    LoadReported,
    Probed,
    Tick,
)
from router.core.types import EndedHow, Outcome

#: Share of arrivals whose decision is timed.
_TIMED_EVERY = 16
#: Rounds of probes that an idle fleet has before they are left out.
_IDLE_ROUNDS = 100
#: Outcomes of answers that came to their end.
_COMPLETE = (Outcome.OK, Outcome.LATE)


@dataclass(frozen=True, slots=True)
class InstanceLoss:
    """An instance dies at `at_s` with all it holds, and is back, empty, `for_s` later."""

    instance: str
    at_s: float
    for_s: float


class Simulation:
    """One run. Used once: `Simulation(fleet, seed=1).run(arrivals)`. `seed` is that of the policies' draws. `on_instruction`
    gets each instruction and its time. `predictor` serves in place of the fleet file's."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        seed: int = 0,
        losses: Sequence[InstanceLoss] = (),
        on_instruction: Callable[[Instruction, float], None] | None = None,
        predictor: OnlinePredictor | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        self.scheduler = fleet.scheduler(seed, predictor)
        self._seed = seed
        self.engines = fleet.engines()
        self.timeline = Timeline()
        self.gaps = Gaps()
        for engine in self.engines.values():
            engine.on_gaps(self.gaps)
        self._names = fleet.names
        self._probe_order = list(self.engines)
        self._on_instruction = on_instruction
        self._interval_s = fleet.config.probes.interval_s
        self._log = Log(self._names, [model.name for model in fleet.config.models])
        self._requests: dict[str, SimulatedRequest] = {}
        self._attempts: dict[str, SimulatedAttempt] = {}  # under way, by their ids at engines
        #: (time, order, what is done then); engines' moments are skipped if they are no longer due.
        self._heap: list[tuple[float, int, Callable[[float], None] | SimulatedEngine]] = []
        self._order = 0
        self._wakes_at = inf
        self._next_arrival_s = inf
        self._decision_s: list[float] = []
        self._events = 0
        self._pools: SimulatedPools | None = None
        if scaling is not None:
            self._pools = SimulatedPools(
                scaling, self.scheduler, self.engines, fleet.instance, self._scale, self._at
            )
        for loss in losses:
            self._at(loss.at_s, lambda now, loss=loss: self._lose(loss, now))  # type: ignore[misc]

    def run(self, arrivals: Iterable[Arrival]) -> Result:
        began = perf_counter()
        was_enabled = gc.isenabled()
        gc.disable()  # nothing here makes cycles; a full collection walks every row's objects
        try:
            end_s = self._run(arrivals)
        finally:
            if was_enabled:
                gc.enable()
        return Result(
            tuple(self._names),
            self._log.models,
            self._log.columns(),
            self.timeline,
            self.gaps,
            tuple(self._decision_s),
            perf_counter() - began,
            end_s,
            self._events,
            sum(engine.preemptions for engine in self.engines.values()),
            None if self._pools is None else self._pools.close(end_s),
        )

    def _run(self, arrivals: Iterable[Arrival]) -> float:
        heap, requests = self._heap, self._requests
        now = 0.0
        index = 0
        coming = iter(arrivals)
        following = next(coming, None)
        self._next_arrival_s = inf if following is None else following.request.arrived_at
        self._probe_all(now)  # a look at the start, then a watch; only then requests come
        self._probe_round(now)
        while following is not None or requests:
            if following is not None and self._next_arrival_s <= heap[0][0]:
                now = self._next_arrival_s
                self._arrive(SimulatedRequest(index, following), now)
                index += 1
                following = next(coming, None)
                self._next_arrival_s = inf if following is None else following.request.arrived_at
            else:
                now, _, what = heappop(heap)
                if isinstance(what, SimulatedEngine):
                    if what.due != now:
                        continue
                    # Its next step starts before the gateway has answered what it gave out.
                    self._hand_out(what, now)
                    what.due = None
                    self._watch(what)
                else:
                    what(now)
            self._events += 1
        self.scheduler.catch_up()
        return now

    # --- the scheduler -------------------------------------------------------------------------------
    def _apply(self, event: Event, now: float) -> None:
        instructions = self.scheduler.respond(event, now)
        if instructions:
            self._carry_out(instructions, now)

    def _carry_out(self, instructions: Sequence[Instruction], now: float) -> None:
        for instruction in instructions:
            if self._on_instruction is not None:
                self._on_instruction(instruction, now)
            request = self._requests[instruction.request_id]
            if isinstance(instruction, Dispatch):
                self._dispatch(request, instruction, now)
            elif isinstance(instruction, Finish):
                self._finish(request, instruction)
            elif isinstance(instruction, Cancel):
                self._cancel(request.attempts[instruction.attempt], now)
            elif isinstance(instruction, Check):
                self._check(request, instruction, now)

    def _arm(self) -> None:
        """Set the scheduler's timer, if it wants an earlier one."""
        self.scheduler.catch_up()
        at_s = self.scheduler.wake_at
        if at_s is not None and at_s < self._wakes_at:
            self._wakes_at = at_s
            self._at(at_s, self._wake)

    def _wake(self, now: float) -> None:
        if now < self._wakes_at:
            return  # replaced by an earlier one, which has asked again
        self._wakes_at = inf
        self._apply(Tick(), now)
        self._arm()

    def _arrive(self, simulated: SimulatedRequest, now: float) -> None:
        request = simulated.arrival.request
        self._requests[request.id] = simulated
        if self._pools is not None:
            self._pools.load.arrived(request.models[0], request.prompt_tokens)
        if simulated.index % _TIMED_EVERY:
            instructions = self.scheduler.respond(Arrived(request), now)
        else:
            began = perf_counter()
            instructions = self.scheduler.respond(Arrived(request), now)
            self._decision_s.append(perf_counter() - began)
        self._carry_out(instructions, now)
        self._arm()

    # --- instructions --------------------------------------------------------------------------------
    def _dispatch(self, simulated: SimulatedRequest, dispatch: Dispatch, now: float) -> None:
        attempt = SimulatedAttempt(simulated, dispatch)
        simulated.attempts[dispatch.attempt] = self._attempts[attempt.id] = attempt
        candidate, request = dispatch.candidate, simulated.arrival.request
        engine = self.engines[candidate.instance]
        if engine.down:
            self._soon(now, partial(self._fail, attempt, Failure(FailureKind.UNREACHABLE)))
            return
        self._catch_up(engine, now)
        try:
            attempt.prompt_tokens = engine.submit(
                attempt.id,
                candidate.model,
                request.prompt_tokens,
                attempt.wanted_tokens,
                simulated.arrival.prefix_hashes,
                now,
            )
        except QueueFull:
            self._soon(now, partial(self._fail, attempt, Failure(FailureKind.ERROR, status=503)))
        except PromptTooLong as error:
            failure = Failure(FailureKind.REJECTED, str(error), 400, code="context_length_exceeded")
            self._soon(now, partial(self._fail, attempt, failure))
        else:
            self._watch(engine)

    def _cancel(self, attempt: SimulatedAttempt, now: float) -> None:
        engine = self.engines[attempt.dispatch.candidate.instance]
        if not engine.down:
            self._catch_up(engine, now)
            attempt.tokens = max(attempt.tokens, engine.abort(attempt.id, now))
            self._watch(engine)
        self._end(attempt, EndedHow.CANCELLED, now)

    def _check(self, simulated: SimulatedRequest, check: Check, now: float) -> None:
        takes_s, checked = outcome_of(check, simulated.arrival, self._seed)

        def report(now: float) -> None:
            self._apply(checked, now)
            self._arm()

        self._at(now + takes_s, report)

    def _finish(self, simulated: SimulatedRequest, instruction: Finish) -> None:
        request, settlement = simulated.arrival.request, instruction.settlement
        del self._requests[request.id]
        quality = nan
        if settlement.answer is not None and settlement.outcome in _COMPLETE:
            quality = simulated.arrival.quality.get(settlement.answer.candidate.model, nan)
        self._log.add(simulated.index, request, settlement, quality)
        if self._pools is not None:
            answer = settlement.answer
            tokens = None if answer is None else answer.output_tokens
            self._pools.load.ended(request.models[0], tokens, settlement.slo_met)

    # --- engines -------------------------------------------------------------------------------------
    def _watch(self, engine: SimulatedEngine) -> None:
        before = engine.due
        due = engine.next_at()
        if due is not None and due != before:
            self._order += 1
            heappush(self._heap, (due, self._order, engine))

    def _catch_up(self, engine: SimulatedEngine, now: float) -> None:
        """Hand out what is due at this very moment before the engine is changed."""
        if engine.due is not None and engine.due <= now:
            self._hand_out(engine, now)

    def _hand_out(self, engine: SimulatedEngine, now: float) -> None:
        """Report first tokens at once, ends after all else of this moment: the gateway sees an end one turn
        of its loop later."""
        attempts = self._attempts
        for progress in engine.advance(now):
            attempt = attempts.get(progress.seq_id)
            if attempt is None:
                continue
            if progress.new_tokens:
                attempt.tokens += progress.new_tokens
                if attempt.first_at is None:
                    self._first_token(attempt, now)
            if progress.finished is not None:
                self._soon(now, partial(self._succeed, attempt))

    def _first_token(self, attempt: SimulatedAttempt, now: float) -> None:
        attempt.first_at = now
        hedged = len(attempt.request.attempts) > 1
        self._apply(FirstToken(attempt.dispatch.request_id, attempt.dispatch.attempt), now)
        if hedged:  # a slot has come free: whoever got it has limits of its own
            self._arm()

    def _succeed(self, attempt: SimulatedAttempt, now: float) -> None:
        if not attempt.running:
            return  # cancelled in between
        first_at = now if attempt.first_at is None else attempt.first_at
        if attempt.tokens > 1 and not self.engines[attempt.dispatch.candidate.instance].tells_gaps:
            self.gaps.add((now - first_at) / (attempt.tokens - 1), attempt.tokens - 1)
        self._end(attempt, EndedHow.OK, now)
        self._arm()

    def _fail(self, attempt: SimulatedAttempt, failure: Failure, now: float) -> None:
        if attempt.running:  # not cancelled in between
            self._end(attempt, EndedHow.FAILED, now, failure)
            self._arm()

    def _end(
        self, attempt: SimulatedAttempt, how: EndedHow, now: float, failure: Failure | None = None
    ) -> None:
        """An attempt has ended, and its engine with it."""
        dispatch = attempt.dispatch
        attempt.running = False
        del self._attempts[attempt.id]
        del attempt.request.attempts[dispatch.attempt]
        truncated = attempt.truncated
        ended = Ended(
            dispatch.request_id,
            dispatch.attempt,
            how,
            attempt.tokens,
            attempt.prompt_tokens
            if how is EndedHow.OK
            else None,  # an engine counts it at the end of its answer
            truncated=truncated,
            out_of_money=truncated and dispatch.bound.cap_is_least,
            failure=failure,
        )
        self._apply(ended, now)
        if self._pools is not None:
            self._pools.attempt_ended(dispatch.candidate.instance, now)

    # --- instances -----------------------------------------------------------------------------------
    def _scale(self, event: Event, now: float) -> None:
        """A change of the fleet, by a scaler."""
        self._apply(event, now)
        self._arm()

    def _probe_round(self, now: float) -> None:
        self._probe_all(now)
        self.scheduler.catch_up()
        if self.timeline.wanted():
            self.timeline.add(self._samples(now))
        self._arm()
        next_s = now + self._interval_s
        if not self._requests and self._all_is_well():
            # Nothing comes of the rounds before the last one in front of whatever happens next.
            until_s = min(self._next_arrival_s, self._heap[0][0] if self._heap else inf)
            if _IDLE_ROUNDS * self._interval_s < until_s - now < inf:
                while next_s + self._interval_s < until_s:
                    next_s += self._interval_s
        self._at(next_s, self._probe_round)

    def _all_is_well(self) -> bool:
        return not any(engine.down for engine in self.engines.values()) and all(
            instance.healthy and instance.returned_at is None
            for instance in self.scheduler.instances.values()
        )

    def _probe_all(self, now: float) -> None:
        # As in the gateway, who did not answer its last probe is through with it first, and first in this round.
        order = self._probe_order
        if self._pools is not None:
            order = [name for name in order if self._pools.serves(name)]
        for name in order:
            self._apply(Probed(name, not self.engines[name].down), now)
        reports = []
        for name in order:  # who came back has what it was sent for that by now
            engine = self.engines[name]
            if not engine.down:
                if engine.due is not None:
                    self._hand_out(engine, now)  # of a jump under way: the report is of now
                    self._watch(engine)
                reports.append(LoadReported(name, engine.report(now)))
        for reported in reports:  # what is sent on one report is not in another one yet
            self._apply(reported, now)
        self._probe_order = sorted(self._probe_order, key=lambda name: not self.engines[name].down)

    def _samples(self, now: float) -> list[LoadSample]:
        instances = self.scheduler.instances
        return [
            LoadSample(now, index, instances[name].in_flight if name in instances else 0, *engine.load())
            for index, (name, engine) in enumerate(self.engines.items())
        ]

    def _lose(self, loss: InstanceLoss, now: float) -> None:
        engine = self.engines[loss.instance]
        self._catch_up(engine, now)
        held = [
            attempt
            for request in self._requests.values()
            for attempt in request.attempts.values()
            if attempt.dispatch.candidate.instance == loss.instance
        ]
        for attempt in held:
            attempt.tokens = max(attempt.tokens, engine.abort(attempt.id, now))
        engine.restart()
        engine.down, engine.due = True, None
        for attempt in held:
            self._soon(now, partial(self._fail, attempt, Failure(FailureKind.ERROR)))
        self._at(now + loss.for_s, lambda _: setattr(engine, "down", False))

    # --- bookkeeping ---------------------------------------------------------------------------------
    def _at(self, at_s: float, what: Callable[[float], None]) -> None:
        self._order += 1
        heappush(self._heap, (at_s, self._order, what))

    _soon = _at  # at this very moment, after what is being done now


def simulate(
    fleet: Fleet,
    arrivals: Iterable[Arrival],
    *,
    seed: int = 0,
    losses: Sequence[InstanceLoss] = (),
    scaling: Scaling | None = None,
) -> Result:
    """Run `arrivals` (see `benchmarks.simulator.arrivals`, which names the policy) over a fleet in its first
    state."""
    return Simulation(fleet, seed=seed, losses=losses, scaling=scaling).run(arrivals)
