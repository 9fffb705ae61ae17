"""The simulator: the gateway's scheduler and policies on virtual time, over the pure engine models.

One loop over events in order of time:

1. An arrival goes to the scheduler; what it answers is done: `Dispatch` submits to the instance's engine,
   `Cancel` aborts one attempt, `Refuse` ends the request and aborts what runs for it.
2. An engine's next moment: first tokens are told first, then ends, as the gateway hears them.
3. Every `probes.interval_s` each instance is probed and its load report read, as the gateway's monitor does.
4. The scheduler's own timer (`wake_at`).
5. Faults: an instance is lost, and comes back empty.

The scheduler is `router.core`'s and is built by `router.wiring`, as in the gateway; nothing of it is copied
here. What the relay does around it (bounds on output, prices of attempts, outcomes) is here and in `flights`.
A simulated second is a second of real hardware; network and the gateway's own work take no time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from time import perf_counter

from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.engines import PromptTooLong, QueueFull, SimulatedEngine
from benchmarks.simulator.fleet import Fleet
from benchmarks.simulator.flights import Attempt, Flight
from benchmarks.simulator.outcomes import Gaps, LoadSample, Log, Result, Timeline
from predictors.online.predictor import OnlinePredictor
from router.core.errors import Refusal
from router.core.events import (
    Arrived,
    Cancel,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Instruction,
    LoadReported,
    Probed,
    Refuse,
    Tick,
)
from router.core.outcome import answered
from router.core.types import EndedHow, Outcome

#: Share of arrivals whose decision is timed.
_TIMED_EVERY = 16
#: Rounds of probes that an idle fleet has before they are left out.
_IDLE_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class InstanceLoss:
    """An instance dies at `at_s` with all it holds, and is back, empty, `for_s` later."""

    instance: str
    at_s: float
    for_s: float


class Simulation:
    """One run. Used once: `Simulation(fleet, seed).run(arrivals)`.

    `seed` is that of the policies' draws. `on_instruction` hears each instruction and its time. `predictor` serves
    in place of the fleet file's.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        seed: int = 0,
        losses: Sequence[InstanceLoss] = (),
        on_instruction: Callable[[Instruction, float], None] | None = None,
        predictor: OnlinePredictor | None = None,
    ) -> None:
        self.scheduler = fleet.scheduler(seed, predictor)
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
        self._flights: dict[str, Flight] = {}
        self._attempts: dict[str, Attempt] = {}  # under way, by their ids at engines
        #: (time, order, what is done then); engines' moments are skipped if they are no longer due.
        self._heap: list[tuple[float, int, Callable[[float], None] | SimulatedEngine]] = []
        self._order = 0
        self._wakes_at = inf
        self._next_arrival_s = inf
        self._decision_s: list[float] = []
        self._events = 0
        for loss in losses:
            self._at(loss.at_s, lambda now, loss=loss: self._lose(loss, now))  # type: ignore[misc]

    def run(self, arrivals: Iterable[Arrival], on_progress: Callable[[int], None] | None = None) -> Result:
        """Run to the end of the last request. `on_progress` hears the arrivals so far, now and then."""
        began = perf_counter()
        was_enabled = gc.isenabled()
        gc.disable()  # nothing here makes cycles; a full collection walks every row's objects
        try:
            end_s = self._run(arrivals, on_progress)
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
        )

    def _run(self, arrivals: Iterable[Arrival], on_progress: Callable[[int], None] | None) -> float:
        heap, flights = self._heap, self._flights
        now = 0.0
        index = 0
        coming = iter(arrivals)
        following = next(coming, None)
        self._next_arrival_s = inf if following is None else following.request.arrived_at
        self._probe_all(now)  # a look at the start, then a watch; only then requests come
        self._probe_round(now)
        while following is not None or flights:
            at_s = heap[0][0]
            if following is not None and following.request.arrived_at <= at_s:
                now = following.request.arrived_at
                self._arrive(Flight(index, following), now)
                index += 1
                following = next(coming, None)
                self._next_arrival_s = inf if following is None else following.request.arrived_at
                if on_progress is not None and not index % 1000:
                    on_progress(index)
            else:
                now, _, what = heappop(heap)
                if isinstance(what, SimulatedEngine):
                    if what.due != now:
                        continue
                    self._engine_moment(what, now)
                else:
                    what(now)
            self._events += 1
        return now

    # --- the scheduler -------------------------------------------------------------------------------
    def _apply(self, event: Event, now: float) -> None:
        self._carry_out(self.scheduler.handle(event, now), now)

    def _carry_out(self, instructions: Sequence[Instruction], now: float) -> None:
        for instruction in instructions:
            if self._on_instruction is not None:
                self._on_instruction(instruction, now)
            flight = self._flights[instruction.request_id]
            match instruction:
                case Dispatch():
                    self._dispatch(flight, instruction, now)
                case Cancel():
                    self._stop(flight.running[instruction.attempt], now)
                case Refuse():
                    self._refuse(flight, instruction.refusal.outcome, now)

    def _arm(self) -> None:
        """Set the scheduler's timer, if it wants an earlier one."""
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

    def _arrive(self, flight: Flight, now: float) -> None:
        request = flight.arrival.request
        self._flights[request.id] = flight
        if flight.index % _TIMED_EVERY:
            instructions = self.scheduler.handle(Arrived(request), now)
        else:
            began = perf_counter()
            instructions = self.scheduler.handle(Arrived(request), now)
            self._decision_s.append(perf_counter() - began)
        self._carry_out(instructions, now)
        self._arm()

    # --- instructions --------------------------------------------------------------------------------
    def _dispatch(self, flight: Flight, dispatch: Dispatch, now: float) -> None:
        attempt = flight.begin(dispatch, now)
        self._attempts[attempt.id] = attempt
        candidate, request = dispatch.candidate, flight.arrival.request
        engine = self.engines[candidate.instance]
        if engine.down:
            self._soon(now, partial(self._fail, attempt, fault=True, unreachable=True))
            return
        self._catch_up(engine, now)
        try:
            attempt.prompt_tokens = engine.submit(
                attempt.id,
                candidate.model,
                request.prompt_tokens,
                attempt.wanted_tokens,
                flight.arrival.prefix_hashes,
                now,
            )
        except QueueFull:
            self._soon(now, partial(self._fail, attempt, fault=False))
        except PromptTooLong as error:
            refusal = Refusal(400, "context_length_exceeded", str(error), Outcome.REJECTED_INVALID)
            self._soon(now, partial(self._reject, attempt, refusal))
        else:
            self._watch(engine)

    def _refuse(self, flight: Flight, outcome: Outcome, now: float) -> None:
        for attempt in list(flight.running.values()):
            self._stop(attempt, now)
        self._end(flight, outcome, now)

    def _stop(self, attempt: Attempt, now: float) -> None:
        """Give up an attempt under way and count what it cost."""
        engine = self.engines[attempt.dispatch.candidate.instance]
        if not engine.down:
            self._catch_up(engine, now)
            attempt.tokens = max(attempt.tokens, engine.abort(attempt.id, now))
            self._watch(engine)
        self._settle(attempt, given_up=True)

    def _settle(self, attempt: Attempt, prompt_tokens: int | None = None, *, given_up: bool = False) -> None:
        """An attempt has ended: what it cost is counted, and nobody waits for its engine any more."""
        del self._attempts[attempt.id]
        attempt.flight.settle(attempt, prompt_tokens, given_up=given_up)

    # --- engines -------------------------------------------------------------------------------------
    def _watch(self, engine: SimulatedEngine) -> None:
        before = engine.due
        due = engine.next_at()
        if due is not None and due != before:
            self._order += 1
            heappush(self._heap, (due, self._order, engine))

    def _engine_moment(self, engine: SimulatedEngine, now: float) -> None:
        """What the engine gave out by `now`; its next step starts before the gateway has answered that."""
        self._hand_out(engine, now)
        engine.due = None
        self._watch(engine)

    def _catch_up(self, engine: SimulatedEngine, now: float) -> None:
        """Hand out what is due at this very moment before the engine is changed."""
        if engine.due is not None and engine.due <= now:
            self._hand_out(engine, now)

    def _hand_out(self, engine: SimulatedEngine, now: float) -> None:
        """Tell first tokens at once, ends after all else of this moment: the gateway hears of an end one turn
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

    def _first_token(self, attempt: Attempt, now: float) -> None:
        """The first one of a request decides which of its attempts answers."""
        attempt.first_at = now
        flight, dispatch = attempt.flight, attempt.dispatch
        if flight.answering is None:
            flight.answering = attempt
            hedged = len(flight.running) > 1
            self._apply(FirstToken(dispatch.request_id, dispatch.attempt), now)
            if hedged:  # a slot has come free: whoever got it has limits of its own
                self._arm()

    def _succeed(self, attempt: Attempt, now: float) -> None:
        if not attempt.running:
            return  # refused or cancelled in between
        flight, dispatch = attempt.flight, attempt.dispatch
        request = flight.arrival.request
        self._settle(attempt, attempt.prompt_tokens)
        ended = Ended(request.id, dispatch.attempt, EndedHow.OK, attempt.tokens, attempt.prompt_tokens)
        first_at = now if attempt.first_at is None else attempt.first_at
        outcome, met = answered(
            request.slo,
            first_at - request.arrived_at,
            now - request.arrived_at,
            attempt.tokens,
            cut_by_budget=attempt.cut_by_budget,
        )
        if attempt.tokens > 1 and not self.engines[dispatch.candidate.instance].tells_gaps:
            self.gaps.add((now - first_at) / (attempt.tokens - 1), attempt.tokens - 1)
        self._end(flight, outcome, now, met=met)
        self._apply(ended, now)
        self._arm()

    def _fail(self, attempt: Attempt, now: float, *, fault: bool, unreachable: bool = False) -> None:
        """An attempt failed; the request may go elsewhere if the client has seen nothing of it, or goes on with
        its other attempt."""
        if not attempt.running:
            return  # refused or cancelled in between
        dispatch = attempt.dispatch
        restartable = attempt.first_at is None
        self._settle(attempt)
        if not restartable:
            self._end(attempt.flight, Outcome.BACKEND_ERROR, now)
        ended = Ended(
            dispatch.request_id,
            dispatch.attempt,
            EndedHow.FAILED,
            attempt.tokens,
            None,  # an engine counts the prompt at the end of its answer
            restartable=restartable,
            fault=fault,
            unreachable=unreachable,
        )
        self._apply(ended, now)
        self._arm()

    def _reject(self, attempt: Attempt, refusal: Refusal, now: float) -> None:
        """The engine refused the request for good."""
        if not attempt.running:
            return
        self._settle(attempt)
        self._refuse(attempt.flight, refusal.outcome, now)
        dispatch = attempt.dispatch
        self._apply(Ended(dispatch.request_id, dispatch.attempt, EndedHow.FAILED), now)

    # --- instances -----------------------------------------------------------------------------------
    def _probe_round(self, now: float) -> None:
        self._probe_all(now)
        if self.timeline.wanted():
            self.timeline.add(self._samples(now))
        self._arm()
        next_s = now + self._interval_s
        if not self._flights and self._all_is_well():
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
        for name in order:
            self._apply(Probed(name, not self.engines[name].down), now)
        reports = []
        for name in order:  # who came back has what it was sent for that by now
            engine = self.engines[name]
            if not engine.down:
                self._hand_out(engine, now)  # of a jump under way: what the report tells is of now
                self._watch(engine)
                reports.append(LoadReported(name, engine.report(now)))
        for reported in reports:  # what is sent on hearing one is not in another one yet
            self._apply(reported, now)
        self._probe_order = sorted(order, key=lambda name: not self.engines[name].down)

    def _samples(self, now: float) -> list[LoadSample]:
        instances = self.scheduler.instances
        return [
            LoadSample(now, index, instances[name].in_flight, engine.running, engine.waiting, engine.kv_usage)
            for index, (name, engine) in enumerate(self.engines.items())
        ]

    def _lose(self, loss: InstanceLoss, now: float) -> None:
        engine = self.engines[loss.instance]
        self._catch_up(engine, now)
        held = [
            attempt
            for flight in self._flights.values()
            for attempt in flight.running.values()
            if attempt.dispatch.candidate.instance == loss.instance
        ]
        for attempt in held:
            attempt.tokens = max(attempt.tokens, engine.abort(attempt.id, now))
        engine.restart()
        engine.down, engine.due = True, None
        for attempt in held:
            self._soon(now, partial(self._fail, attempt, fault=True))
        self._at(now + loss.for_s, lambda _: setattr(engine, "down", False))

    # --- bookkeeping ---------------------------------------------------------------------------------
    def _at(self, at_s: float, what: Callable[[float], None]) -> None:
        self._order += 1
        heappush(self._heap, (at_s, self._order, what))

    _soon = _at  # at this very moment, after what is being done now

    def _end(self, flight: Flight, outcome: Outcome, now: float, met: bool | None = None) -> None:
        del self._flights[flight.arrival.request.id]
        flight.write(self._log, outcome, met, now)


def simulate(
    fleet: Fleet,
    arrivals: Iterable[Arrival],
    *,
    seed: int = 0,
    losses: Sequence[InstanceLoss] = (),
    on_progress: Callable[[int], None] | None = None,
) -> Result:
    """Run `arrivals` (see `benchmarks.simulator.arrivals`, which names the policy) over a fleet in its first
    state."""
    return Simulation(fleet, seed=seed, losses=losses).run(arrivals, on_progress)
