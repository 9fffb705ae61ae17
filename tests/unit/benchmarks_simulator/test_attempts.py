"""Attempts of simulated requests: two of one request at once, and where an answer ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.simulator import OUTCOMES, Arrival, Result, Simulation, open_fleet
from benchmarks.simulator.attempts import SimulatedAttempt, SimulatedRequest
from benchmarks.workloads.format import WorkloadRequest
from router.core.deciding import Decided
from router.core.events import Cancel, Dispatch, Instruction
from router.core.interfaces import Choice
from router.core.money.account import OutputBound
from router.core.request_state import NO_PREDICTION, AttemptState
from router.core.state import Instance
from router.core.types import Candidate, Request
from tests.unit.benchmarks_simulator.worlds import config, emulated, understood
from tests.unit.benchmarks_simulator.wrong import Wrong, hasty

PROMPT, OUTPUT = 600, 40
INPUT_USD, OUTPUT_USD = 0.03e-6, 0.05e-6


def hedged_run(
    *instances: dict[str, Any], count: int = 30, **routing: Any
) -> tuple[Result, list[Instruction]]:
    """Requests that come faster than they are served, with a predictor that expects too much."""
    fleet = open_fleet(config(*instances, scheduling={"hedge": {"enabled": True, "max_share": 1.0}}))
    instructions: list[Instruction] = []
    simulation = Simulation(
        fleet, on_instruction=lambda each, _: instructions.append(each), predictor=Wrong(bend=hasty)
    )
    requests = [
        WorkloadRequest(f"r{at}", 0.05 * at, PROMPT, output_tokens=OUTPUT, routing=routing)
        for at in range(count)
    ]
    result = simulation.run(understood(requests, fleet, policy="least_load", slo={"ttft_ms": 900}))
    for engine in simulation.engines.values():
        assert engine.load()[:2] == (0, 0), "what lost is taken out of its engine"
    return result, instructions


def test_the_loser_pays_its_prompt_and_the_winner_all() -> None:
    result, instructions = hedged_run(emulated("a"), emulated("b", "l4"), emulated("c"))
    columns = result.columns
    hedged = columns["hedged"] == 1
    assert 0 < hedged.sum() == sum(isinstance(each, Cancel) for each in instructions)
    assert (columns["attempts"] == np.where(hedged, 2, 1)).all()
    once_usd = PROMPT * INPUT_USD + OUTPUT * OUTPUT_USD
    assert columns["cost_usd"][~hedged] == pytest.approx(once_usd)
    # Seldom both first tokens come at one moment: then the loser has given one.
    lost_tokens = (columns["cost_usd"][hedged] - once_usd - PROMPT * INPUT_USD) / OUTPUT_USD
    assert lost_tokens == pytest.approx(np.round(lost_tokens), abs=1e-6)
    assert lost_tokens.min() == pytest.approx(0.0, abs=1e-6)
    assert lost_tokens.max() <= 1.0 + 1e-6


def test_the_row_is_that_of_the_attempt_that_answered() -> None:
    result, instructions = hedged_run(emulated("a"), emulated("b", "l4"), emulated("c"))
    lost = {(each.request_id, each.attempt) for each in instructions if isinstance(each, Cancel)}
    answered = {
        each.request_id: each
        for each in instructions
        if isinstance(each, Dispatch) and (each.request_id, each.attempt) not in lost
    }
    second = 0
    for at in np.flatnonzero(result.columns["hedged"]):
        dispatch = answered[f"r{at}"]
        second += dispatch.attempt == 2
        assert result.instances[result.columns["instance"][at]] == dispatch.candidate.instance
        assert result.columns["predicted_ttft_s_p50"][at] == pytest.approx(dispatch.prediction.ttft_s_p50)
        assert np.isnan(result.columns["propensity"][at])  # of two draws
    assert second > 0


def test_both_attempts_fit_under_the_money_cap() -> None:
    cap_usd = PROMPT * INPUT_USD * 2 + OUTPUT * OUTPUT_USD * 1.5
    result, instructions = hedged_run(emulated("a"), emulated("b", "l4"), emulated("c"), max_cost_usd=cap_usd)
    columns = result.columns
    assert np.nanmax(columns["budget_overrun_usd"]) == 0.0
    # The first attempt may spend all of it, so nothing is left for a second one.
    assert not any(isinstance(each, Dispatch) and each.hedge for each in instructions)
    assert {OUTCOMES[code] for code in columns["outcome"]} <= {"ok", "late"}


def attempt(bound: OutputBound, tokens: int) -> SimulatedAttempt:
    """An attempt at an answer of 100 tokens, of which `tokens` have come."""
    candidate = Candidate("a", "m", "m")
    decided = Decided("random", 0.0, (), Choice(0, (), ()), (), ())
    instance = Instance("a", "vllm", {"m": candidate})
    request = Request("r", 0.0, "random", ("m",), prompt_tokens=10)
    state = AttemptState(request, candidate, instance, NO_PREDICTION, 1, decided, bound, False, 0.0)
    dispatch = Dispatch("r", 1, candidate, bound, state)
    arrival = Arrival(request, {"m": 100}, {}, ())
    found = SimulatedAttempt(SimulatedRequest(0, arrival), dispatch)
    found.tokens = tokens
    return found


@pytest.mark.parametrize(
    ("bound", "wanted", "truncated"),
    [
        (OutputBound(), 100, False),
        (OutputBound(30), 30, True),
        (OutputBound(30, True, 30), 30, True),
        (OutputBound(None, False, 40), 40, True),  # the engine knows no bound: the answer is cut
        (OutputBound(60, True, 40), 40, True),
        (OutputBound(30, False, 40), 30, True),
        (OutputBound(None, False, 100), 100, False),  # it just suffices
    ],
)
def test_an_answer_ends_at_its_bound(bound: OutputBound, wanted: int, truncated: bool) -> None:
    assert attempt(bound, 0).wanted_tokens == wanted
    assert attempt(bound, wanted).truncated is truncated
    assert not attempt(bound, wanted - 1).truncated  # it was given up before
