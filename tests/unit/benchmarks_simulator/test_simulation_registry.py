"""Every registered policy through the simulator, hedges and exploration on: the books agree, nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import policies
from benchmarks.simulator import OUTCOMES, InstanceLoss, Result, Simulation
from router.core.events import Dispatch, Event, Finish, FleetChanged, Instruction
from router.core.types import EndedHow, Outcome
from tests.unit.benchmarks_simulator.scenarios import MIXED, any_wish, fleet, workload
from tests.unit.benchmarks_simulator.worlds import understood
from tests.unit.benchmarks_simulator.wrong import Wrong, hasty
from tests.unit.core.ledger import Ledger, listen

REQUESTS = 50


def world(policy: str, seed: int) -> tuple[Simulation, list[Any], Counter[str]]:
    """A small random fleet with losses, a workload that asks for anything, and what is counted on the way."""
    rng = Random(f"{policy} {seed}")
    instances = rng.sample(MIXED, rng.randint(2, 4))
    of = fleet(
        *({**each, "max_concurrency": rng.choice([None, 2, 6])} for each in instances),
        limits={"max_queue": rng.choice([4, 512])},
        probes={"interval_s": 0.5},
        scheduling={"confidence": 0.5},
    )

    def routing(of_request: Random) -> dict[str, Any]:
        return {**any_wish(of_request), "policy": policy}

    requests = workload(REQUESTS, rng.choice([3.0, 15.0]), seed=seed, output_tokens=120, routing=routing)
    losses = [InstanceLoss(instances[0]["name"], 1.0 + 2 * rng.random(), 1.0)]
    simulation = Simulation(of, seed=seed, losses=losses, predictor=Wrong(bend=hasty))
    scheduler = simulation.scheduler
    settings = replace(scheduler.settings, hedge_share=1.0, explore=0.2)
    scheduler.handle(FleetChanged(tuple(scheduler.instances.values()), settings), 0.0)
    ledger = Ledger(scheduler)
    counts: Counter[str] = Counter()

    def heard(event: Event, now: float, instructions: list[Instruction]) -> None:
        ledger.take(event, now, instructions)
        counts["hedges"] += sum(isinstance(each, Dispatch) and each.hedge for each in instructions)
        ended = [each.settlement for each in instructions if isinstance(each, Finish)]
        counts["lost"] += sum(
            each.ended_how is EndedHow.HEDGE_LOST for settlement in ended for each in settlement.attempts
        )

    listen(scheduler, heard)
    return simulation, understood(requests, of), counts


def run(policy: str, seed: int) -> tuple[Result, Counter[str]]:
    simulation, requests, counts = world(policy, seed)
    result = simulation.run(requests)
    assert simulation.scheduler.live == 0
    for instance in simulation.scheduler.instances.values():
        assert (instance.in_flight, instance.context_tokens, instance.promised_tpot_s) == (0, 0, [])
    for engine in simulation.engines.values():
        assert engine.load()[:2] == (0, 0)
    return result, counts


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_every_policy_keeps_the_books(policy: str) -> None:
    for seed in (1, 2):
        result, counts = run(policy, seed)
        columns = result.columns
        assert columns["index"].tolist() == list(range(REQUESTS))
        outcomes = Counter(OUTCOMES[code] for code in columns["outcome"])
        assert outcomes.total() == REQUESTS
        assert not outcomes[Outcome.REJECTED_INVALID]
        assert int(columns["hedged"].sum()) <= counts["hedges"]
        assert counts["lost"] <= counts["hedges"]
        overrun_usd = columns["budget_overrun_usd"]
        assert np.nan_to_num(overrun_usd).max() <= 1e-12
        assert (columns["propensity"][columns["attempts"] == 1] > 0).all()
        assert np.isnan(columns["propensity"][columns["attempts"] != 1]).all()
        again, _ = run(policy, seed)
        for name, values in columns.items():
            assert np.array_equal(values, again.columns[name], equal_nan=values.dtype.kind == "f"), name


def test_hedges_are_among_them() -> None:
    found: Counter[str] = Counter()
    for seed in range(6):
        found += run("least_load", seed)[1]
    assert found["hedges"] >= found["lost"] > 10
