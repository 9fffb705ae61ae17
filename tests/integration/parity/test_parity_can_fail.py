"""The comparison finds what differs: each of these changes one thing on the live side, and is told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from benchmarks.simulator import InstanceLoss
from router.core.events import Dispatch, Ended, Event, FirstToken, Instruction, LoadReported
from router.core.interfaces import Choice, Option
from router.core.profile import EngineProfile
from router.core.types import Candidate, EndedHow, Request
from router.gateway.relay.attempt import Attempt as LiveAttempt
from router.gateway.relay.relay import Relay
from router.gateway.relay.runner import Runner
from router.gateway.service import Gateway
from tests.integration.parity.live import live_run
from tests.integration.parity.live_engine import LiveBackend, LiveEngine
from tests.integration.parity.scenarios import LLAMA, MIXED, QWEN, asked, fleet, workload
from tests.integration.parity.simulated import simulated_run
from tests.integration.parity.traces import Run, first_difference
from tests.unit.benchmarks_simulator.wrong import Wrong, hasty

LOSSES = [InstanceLoss("a30-0", 3.1, 4.0)]


def routing(rng: Random) -> dict[str, Any]:
    """Some of each: a model, money, an SLO."""
    return rng.choice(
        [
            {"models": [LLAMA]},
            {"models": [QWEN], "max_cost_usd": 4e-5},
            {"slo": {"ttft_ms": 600, "e2e_ms": 4000}, "on_miss": "reject"},
            {},
        ]
    )


FLEET = fleet(*({**each, "max_concurrency": 6} for each in MIXED), scheduling={"confidence": 0.5})
REQUESTS = workload(200, 14.0, routing=routing)


@pytest.fixture(scope="module")
def simulated() -> Run:
    return simulated_run(FLEET, asked(REQUESTS, FLEET, policy="least_load"), 7, LOSSES)


def difference(simulated: Run, **options: Any) -> str:
    """What the comparison says of a changed live side."""
    live = live_run(FLEET, asked(REQUESTS, FLEET, policy="least_load"), 7, losses=LOSSES, **options)
    found = first_difference(simulated, live)
    assert found is not None, "nothing was found"
    return found


def test_unchanged_there_is_none(simulated: Run) -> None:
    with pytest.raises(AssertionError, match="nothing was found"):
        difference(simulated)


class _OneFlipped:
    """A policy that takes another option than it would for one request."""

    def __init__(self, policy: Any, request_id: str) -> None:
        self._policy = policy
        self._request_id = request_id
        self.name = policy.name
        self.predicts = policy.predicts
        self.placed = policy.placed

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        choice: Choice = self._policy.choose(request, options, rng)
        if request.id == self._request_id:
            choice.index = (choice.index + 1) % len(options)
        return choice


def test_one_decision_flipped(simulated: Run) -> None:
    def prepare(gateway: Gateway) -> None:
        scheduler = gateway.runner.scheduler
        flipped = _OneFlipped(scheduler.policies["least_load"], "r61")
        scheduler._decider.policies = {**scheduler.policies, "least_load": flipped}

    assert re.match(r"Dispatch of r61 at .*: instance is", difference(simulated, prepare=prepare))


def test_another_seed(simulated: Run) -> None:
    def prepare(gateway: Gateway) -> None:
        gateway.runner.scheduler._decider._rng.seed(8)

    assert re.match(r"Dispatch of r\d+ at .*: (instance|model) is", difference(simulated, prepare=prepare))


def test_an_engine_one_percent_slower(simulated: Run) -> None:
    def slower(
        fixed_slots: bool,
        candidates: Mapping[str, Candidate],
        found: Mapping[str, EngineProfile],
        speed: float,
    ) -> LiveEngine:
        found = {
            model: replace(each, overhead_s=each.overhead_s * 1.01, floor_s=each.floor_s * 1.01)
            if each.name == f"{LLAMA}@a30"
            else each
            for model, each in found.items()
        }
        return LiveEngine(fixed_slots, candidates, found, speed)

    told = difference(simulated, make_engine=slower)
    # The first to hear of it is the first that had its first token from such an engine.
    first = next(
        step["request"]
        for step in simulated.steps
        if step["what"] == "FirstToken" and simulated.rows[step["request"]]["instance"] in {"a30-0", "a30-1"}
    )
    assert told.startswith(f"FirstToken of {first} at ")


def test_an_answer_one_token_longer(simulated: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LiveBackend.stream
    chosen = next(name for name, row in list(simulated.rows.items())[60:] if row["outcome"] == "ok")

    async def longer(self: LiveBackend, call: Any) -> Any:
        if call.request_id == chosen:
            arrival = self._truths[chosen]
            tokens = {model: 1 + arrival.output_tokens[model] for model in (LLAMA, QWEN)}
            self._truths = {**self._truths, chosen: arrival._replace(output_tokens=tokens)}
        return await stream(self, call)

    monkeypatch.setattr(LiveBackend, "stream", longer)
    assert difference(simulated).startswith(f"Ended of {chosen} at ")


def test_an_end_told_before_the_first_token(simulated: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner holds first tokens back until the answer has ended."""
    apply = Runner.apply

    def late(self: Runner, event: Event, origin: Any = None) -> None:
        if isinstance(event, FirstToken):
            held[event.request_id] = event
            return
        apply(self, event, origin)
        if isinstance(event, Ended) and event.request_id in held:
            apply(self, held.pop(event.request_id), origin)

    held: dict[str, FirstToken] = {}
    monkeypatch.setattr(Runner, "apply", late)
    first = next(step["request"] for step in simulated.steps if step["what"] == "FirstToken")
    told = difference(simulated)
    assert told.startswith(f"FirstToken of {first} at ")


def test_load_reports_that_get_lost(simulated: Run) -> None:
    """Nothing but one report is not heard: only what is predicted from it differs."""

    def prepare(gateway: Gateway) -> None:
        scheduler = gateway.runner.scheduler
        handle = scheduler._handlers[LoadReported]

        def deaf(event: LoadReported, now: float) -> list[Instruction]:
            return [] if now > 3.0 and event.instance == "h100-0" else handle(event, now)

        scheduler._handlers[LoadReported] = deaf

    found = difference(simulated, prepare=prepare)
    assert re.match(r"Dispatch of r\d+ at .*: (loads\[\d\]|prediction)\.\w+ is", found)


def test_a_cost_misjudged(simulated: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler hears the same; only the record is wrong."""
    note = Relay._note

    def overcharges(self: Relay, outcome: Any, error_code: Any, e2e_s: float | None = None) -> None:
        note(self, outcome, error_code, e2e_s)
        if self._request.id == "r90":
            self._record.cost_usd = (self._record.cost_usd or 0.0) * 1.00001 + 1e-12

    monkeypatch.setattr(Relay, "_note", overcharges)
    assert difference(simulated).startswith("the row of r90: cost_usd is ")


def test_a_bound_ignored(simulated: Run) -> None:
    """The scheduler's dispatches say a bound one token larger where money sets it."""

    def prepare(gateway: Gateway) -> None:
        scheduler = gateway.runner.scheduler
        dispatch = scheduler._dispatch

        def generous(*given: Any) -> Dispatch:
            made = dispatch(*given)
            bound = made.max_output_tokens
            return made._replace(max_output_tokens=bound + 1) if made.budget_bound and bound else made

        scheduler._dispatch = generous  # type: ignore[method-assign, assignment]

    assert re.match(r"Dispatch of r\d+ at .*: max_output_tokens is", difference(simulated, prepare=prepare))


def test_a_loser_that_is_not_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live side takes the prompt of a hedge that lost for free; the scheduler hears the same."""
    settle = LiveAttempt.settle

    def free(self: LiveAttempt, how: EndedHow, error: str | None) -> None:
        settle(self, how, error)
        if how is EndedHow.HEDGE_LOST:
            self.record.cost_usd = 0.0

    monkeypatch.setattr(LiveAttempt, "settle", free)
    of = fleet(*MIXED, scheduling={"hedge": {"enabled": True, "max_share": 1.0}})
    requests = [replace(each, routing={"slo": {"ttft_ms": 900}}) for each in workload(80, 14.0)]
    simulated = simulated_run(of, asked(requests, of, policy="least_load"), 7, predictor=Wrong(bend=hasty))
    live = live_run(of, asked(requests, of, policy="least_load"), 7, predictor=Wrong(bend=hasty))
    assert re.match(r"the row of r\d+: cost_usd is ", first_difference(simulated, live) or "")
