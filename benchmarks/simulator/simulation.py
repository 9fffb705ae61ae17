"""The simulator: the gateway's scheduler and policies on virtual time, over the pure engine models.

One loop over events in order of time:

1. An arrival goes to the scheduler; what it answers is done: `Dispatch` submits to the instance's engine,
   `Refuse` ends the request and aborts what runs for it.
2. An engine's next moment: first tokens are told first, then ends, as the gateway hears them.
3. Every `probes.interval_s` each instance is probed and its load report read, as the gateway's monitor does.
4. The scheduler's own timer (`wake_at`).
5. Faults: an instance is lost, and comes back empty.

The scheduler is `router.core`'s and is built by `router.wiring`, as in the gateway; nothing of it is copied
here. What the relay does around it (bounds on output, prices of attempts, outcomes) is in this file.
A simulated second is a second of real hardware; network and the gateway's own work take no time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf, nan
from time import perf_counter

from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.engines import PromptTooLong, QueueFull, SimulatedEngine
from benchmarks.simulator.fleet import Fleet
from benchmarks.simulator.outcomes import Gaps, LoadSample, Log, Result, Timeline
from predictors.serving import PhysicalPredictor
from router.core.errors import Refusal
from router.core.events import (
    Arrived,
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
from router.core.outcome import answered, tpot_s
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


class _Flight:
    """A request on its way."""

    __slots__ = (
        "arrival",
        "cost_usd",
        "dispatch",
        "dispatched_at",
        "first_at",
        "index",
        "prompt_tokens",
        "running",
        "tokens",
        "wanted_tokens",
    )

    def __init__(self, index: int, arrival: Arrival) -> None:
        self.index = index
        self.arrival = arrival
        self.cost_usd = 0.0  # of attempts that have ended
        self.dispatch: Dispatch | None = None
        self.dispatched_at = nan  # the first time
        # of the attempt under way
        self.running = False
        self.first_at: float | None = None
        self.tokens = 0
        self.wanted_tokens = 0
        self.prompt_tokens = 0  # by the engine's count


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
        predictor: PhysicalPredictor | None = None,
    ) -> None:
        self.scheduler = fleet.scheduler(seed, predictor)
        self.engines = fleet.engines()
        self.timeline = Timeline()
        self.gaps = Gaps()
        for engine in self.engines.values():
            engine.on_gaps(self.gaps)
        self._names = fleet.names
        self._on_instruction = on_instruction
        self._interval_s = fleet.config.probes.interval_s
        self._log = Log(self._names, [model.name for model in fleet.config.models])
        self._flights: dict[str, _Flight] = {}
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
                self._arrive(_Flight(index, following), now)
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
            if isinstance(instruction, Dispatch):
                self._dispatch(instruction, now)
            else:
                self._refuse(instruction, now)

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

    def _arrive(self, flight: _Flight, now: float) -> None:
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
    def _dispatch(self, dispatch: Dispatch, now: float) -> None:
        flight = self._flights[dispatch.request_id]
        if flight.dispatch is None:
            flight.dispatched_at = now
        flight.dispatch = dispatch
        flight.running = True
        flight.first_at = None
        flight.tokens = 0
        candidate, arrival = dispatch.candidate, flight.arrival
        tokens = arrival.output_tokens[candidate.model]
        bound = dispatch.max_output_tokens
        flight.wanted_tokens = tokens if bound is None or tokens < bound else bound
        engine = self.engines[candidate.instance]
        request = arrival.request
        if engine.down:
            self._soon(now, lambda at_s: self._fail(flight, dispatch, at_s, fault=True))
            return
        self._catch_up(engine, now)
        try:
            flight.prompt_tokens = engine.submit(
                request.id,
                candidate.model,
                request.prompt_tokens,
                flight.wanted_tokens,
                arrival.prefix_hashes,
                now,
            )
        except QueueFull:
            self._soon(now, lambda at_s: self._fail(flight, dispatch, at_s, fault=False))
        except PromptTooLong as error:
            refusal = Refusal(400, "context_length_exceeded", str(error), Outcome.REJECTED_INVALID)
            self._soon(now, lambda at_s: self._reject(flight, dispatch, refusal, at_s))
        else:
            self._watch(engine)

    def _refuse(self, refuse: Refuse, now: float) -> None:
        flight = self._flights[refuse.request_id]
        self._stop(flight, now)
        self._end(flight, refuse.refusal.outcome, now)

    def _stop(self, flight: _Flight, now: float) -> None:
        """Give up the attempt under way and count what it cost."""
        dispatch = flight.dispatch
        if dispatch is None or not flight.running:
            return
        engine = self.engines[dispatch.candidate.instance]
        if not engine.down:
            self._catch_up(engine, now)
            flight.tokens = max(flight.tokens, engine.abort(dispatch.request_id, now))
            self._watch(engine)
        self._settle(flight, dispatch)

    def _settle(self, flight: _Flight, dispatch: Dispatch, prompt_tokens: int | None = None) -> None:
        """An attempt has ended: prompt and output are paid once there is a first token. `prompt_tokens` is the
        engine's count, which it tells at the end."""
        flight.running = False
        if flight.tokens > 0:
            if prompt_tokens is None:
                prompt_tokens = flight.arrival.request.prompt_tokens
            flight.cost_usd += dispatch.candidate.price.cost_usd(prompt_tokens, flight.tokens)

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
        flights = self._flights
        for progress in engine.advance(now):
            flight = flights.get(progress.seq_id)
            if flight is None:
                continue
            dispatch = flight.dispatch
            assert dispatch is not None  # noqa: S101 (it runs, so it was dispatched)
            if progress.new_tokens:
                flight.tokens += progress.new_tokens
                if flight.first_at is None:
                    flight.first_at = now
                    self._apply(FirstToken(progress.seq_id, dispatch.attempt), now)
            if progress.finished is not None:
                self._soon(now, partial(self._succeed, flight, dispatch))

    def _succeed(self, flight: _Flight, dispatch: Dispatch, now: float) -> None:
        if flight.dispatch is not dispatch or not flight.running:
            return  # refused in between
        request = flight.arrival.request
        self._settle(flight, dispatch, flight.prompt_tokens)
        ended = Ended(request.id, dispatch.attempt, EndedHow.OK, flight.tokens, flight.prompt_tokens)
        first_at = now if flight.first_at is None else flight.first_at
        cut = (
            dispatch.budget_bound
            and flight.tokens >= flight.wanted_tokens
            and flight.arrival.output_tokens[dispatch.candidate.model] > flight.wanted_tokens
        )
        outcome, met = answered(
            request.slo,
            first_at - request.arrived_at,
            now - request.arrived_at,
            flight.tokens,
            cut_by_budget=cut,
        )
        if flight.tokens > 1 and not self.engines[dispatch.candidate.instance].tells_gaps:
            self.gaps.add((now - first_at) / (flight.tokens - 1), flight.tokens - 1)
        self._end(flight, outcome, now, met=met)
        self._apply(ended, now)
        self._arm()

    def _fail(self, flight: _Flight, dispatch: Dispatch, now: float, *, fault: bool) -> None:
        """The attempt failed; it may go elsewhere if the client has seen nothing."""
        if flight.dispatch is not dispatch or not flight.running:
            return  # refused in between
        request_id = dispatch.request_id
        restartable = flight.first_at is None
        tokens = flight.tokens
        self._settle(flight, dispatch)
        if not restartable:
            self._end(flight, Outcome.BACKEND_ERROR, now)
        ended = Ended(
            request_id,
            dispatch.attempt,
            EndedHow.FAILED,
            tokens,
            None,  # an engine counts the prompt at the end of its answer
            restartable=restartable,
            fault=fault,
        )
        self._apply(ended, now)
        self._arm()

    def _reject(self, flight: _Flight, dispatch: Dispatch, refusal: Refusal, now: float) -> None:
        """The engine refused the request for good."""
        if flight.dispatch is not dispatch or not flight.running:
            return
        self._settle(flight, dispatch)
        self._end(flight, refusal.outcome, now)
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
        for name, engine in self.engines.items():
            self._apply(Probed(name, not engine.down), now)
        for name, engine in self.engines.items():  # who came back has what it was sent for that by now
            if not engine.down:
                self._hand_out(engine, now)  # of a jump under way: what the report tells is of now
                self._watch(engine)
                self._apply(LoadReported(name, engine.report(now)), now)

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
            (flight, flight.dispatch)
            for flight in self._flights.values()
            if flight.running
            and flight.dispatch is not None
            and flight.dispatch.candidate.instance == loss.instance
        ]
        for flight, dispatch in held:
            flight.tokens = max(flight.tokens, engine.abort(dispatch.request_id, now))
        engine.restart()
        engine.down, engine.due = True, None
        for flight, dispatch in held:
            self._soon(now, partial(self._fail, flight, dispatch, fault=True))
        self._at(now + loss.for_s, lambda _: setattr(engine, "down", False))

    # --- bookkeeping ---------------------------------------------------------------------------------
    def _at(self, at_s: float, what: Callable[[float], None]) -> None:
        self._order += 1
        heappush(self._heap, (at_s, self._order, what))

    _soon = _at  # at this very moment, after what is being done now

    def _end(self, flight: _Flight, outcome: Outcome, now: float, met: bool | None = None) -> None:
        """Write the row of a request that has ended."""
        arrival, dispatch = flight.arrival, flight.dispatch
        request = arrival.request
        del self._flights[request.id]
        if outcome not in (Outcome.OK, Outcome.LATE, Outcome.BUDGET_EXHAUSTED_MID_DECODE):
            met = None if request.slo is None or outcome is Outcome.REJECTED_INVALID else False
        arrived_at = request.arrived_at
        e2e_s = now - arrived_at
        if dispatch is None:
            self._log.add(
                flight.index,
                request,
                outcome,
                met,
                None,
                None,
                0,
                0,
                nan,
                None,
                e2e_s,
                e2e_s,
                0.0,
                nan,
                _UNPREDICTED,
            )
            return
        candidate, prediction = dispatch.candidate, dispatch.prediction
        ttft_s = nan if flight.first_at is None else flight.first_at - arrived_at
        complete = outcome in (Outcome.OK, Outcome.LATE)
        self._log.add(
            flight.index,
            request,
            outcome,
            met,
            candidate.instance,
            candidate.model,
            dispatch.attempt,
            flight.tokens,
            ttft_s,
            None if flight.first_at is None else tpot_s(ttft_s, e2e_s, flight.tokens),
            e2e_s,
            flight.dispatched_at - arrived_at,
            flight.cost_usd,
            arrival.quality.get(candidate.model, nan) if complete else nan,
            (
                _known(prediction.ttft_s_p50),
                _known(prediction.ttft_s_p95),
                _known(prediction.e2e_s_p50),
                _known(prediction.p_miss),
            ),
        )


_UNPREDICTED = (nan, nan, nan, nan)


def _known(value: float | None) -> float:
    return nan if value is None else value


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
