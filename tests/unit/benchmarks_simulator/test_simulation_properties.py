"""Whatever the fleet, the workload and the losses: nothing is lost, counted twice or paid too much."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulator import OUTCOMES, InstanceLoss, Simulation
from router.core.events import Event, Instruction
from router.core.settlement import tpot_s
from router.core.types import OUTSIDE_ATTAINMENT, Outcome, Slo
from tests.examples import few_examples
from tests.unit.benchmarks_simulator.scenarios import MIXED, any_wish, fleet, workload
from tests.unit.benchmarks_simulator.worlds import understood
from tests.unit.core.ledger import listen


@few_examples
@given(
    seed=st.integers(0, 2**32),
    instances=st.lists(st.sampled_from(MIXED), min_size=1, max_size=5, unique_by=lambda each: each["name"]),
    slots=st.sampled_from([None, 1, 4]),
    timeout_s=st.sampled_from([2.0, 600.0]),
    max_queue=st.sampled_from([0, 5, 512]),
    rate=st.sampled_from([2.0, 12.0, 50.0]),
    sessions=st.sampled_from([0, 4]),
    losses=st.integers(0, 3),
)
def test_each_request_ends_once_and_nothing_stays(
    seed: int,
    instances: list[dict[str, Any]],
    slots: int | None,
    timeout_s: float,
    max_queue: int,
    rate: float,
    sessions: int,
    losses: int,
) -> None:
    rng = Random(seed)
    of = fleet(
        *({**each, "max_concurrency": slots} for each in instances),
        limits={"request_timeout_s": timeout_s, "max_queue": max_queue},
        probes={"interval_s": 0.5},
    )
    given_ = understood(
        workload(60, rate, seed=seed, output_tokens=150, routing=any_wish, sessions=sessions), of
    )
    lost = []
    for at in range(losses):
        name = rng.choice(instances)["name"]
        lost.append(InstanceLoss(name, 4.0 * at + 2 * rng.random(), 2 * rng.random()))
    simulation = Simulation(of, seed=seed, losses=lost)
    result = simulation.run(given_)

    columns = result.columns
    assert columns["index"].tolist() == list(range(60))
    assert columns["arrival_s"].tolist() == [arrival.request.arrived_at for arrival in given_]
    scheduler = simulation.scheduler
    assert scheduler.live == scheduler.queue_depth == 0
    for instance in scheduler.instances.values():
        assert (instance.in_flight, instance.awaiting_first_token) == (0, 0)
        assert (instance.pending_prefill_tokens, instance.context_tokens) == (0, 0)
    for engine in simulation.engines.values():
        assert engine.load()[:2] == (0, 0)

    assert set(columns["outcome"]) <= set(range(len(OUTCOMES)))
    for at, arrival in enumerate(given_):
        _check_row({name: column[at].item() for name, column in columns.items()}, arrival.request, of)


def _check_row(row: dict[str, Any], request: Any, of: Any) -> None:
    outcome = Outcome(OUTCOMES[row["outcome"]])
    attempted = row["attempts"] > 0
    first = not np.isnan(row["ttft_s"])
    assert row["e2e_s"] >= 0
    assert attempted == (row["instance"] < len(of.names)) == (row["model"] < len(of.config.models))
    assert row["attempts"] <= of.config.limits.max_attempts
    assert row["queue_wait_s"] <= np.float32(row["e2e_s"])
    if first:
        assert row["queue_wait_s"] < row["ttft_s"] <= row["e2e_s"]
    assert first == (row["output_tokens"] > 0)
    if not attempted:
        assert row["cost_usd"] == 0.0
        assert outcome.value.startswith(("rejected", "expired_in_queue"))
    if request.max_tokens is not None:
        assert row["output_tokens"] <= request.max_tokens

    cap = request.max_cost_usd
    if cap is not None:
        dearest = max(
            candidate.price.output_usd_per_mtok * 1e-6
            for instance in of.config.instances
            for candidate in of.config.candidates(instance).values()
        )
        assert row["cost_usd"] <= cap + dearest
        assert row["budget_overrun_usd"] <= dearest

    answered = outcome in (Outcome.OK, Outcome.LATE, Outcome.BUDGET_EXHAUSTED_MID_DECODE)
    slo: Slo | None = request.slo
    if slo is None or (outcome in OUTSIDE_ATTAINMENT and not answered):
        assert row["met"] == 2
        assert outcome is not Outcome.LATE
    elif not answered:
        assert row["met"] == 0
    else:
        kept = slo.met(row["ttft_s"], tpot_s(row["ttft_s"], row["e2e_s"], row["output_tokens"]), row["e2e_s"])
        assert row["met"] == kept
        assert (outcome is Outcome.LATE) <= (not kept)
    if not request.hard:
        assert outcome not in (Outcome.REJECTED_SLO, Outcome.EXPIRED_MID_DECODE)


@few_examples
@given(seed=st.integers(0, 2**32), slots=st.sampled_from([1, 4, None]), rate=st.sampled_from([3.0, 20.0]))
def test_littles_law(seed: int, slots: int | None, rate: float) -> None:
    """The router's counts over time are the times that requests spent: in the queue, and on instances."""
    of = fleet(*({**each, "max_concurrency": slots} for each in MIXED))
    simulation = Simulation(of, seed=seed)
    scheduler = simulation.scheduler
    waiting_s = serving_s = before = 0.0
    queued = running = 0

    def integrate(event: Event, now: float, instructions: list[Instruction]) -> None:
        nonlocal waiting_s, serving_s, before, queued, running
        waiting_s += queued * (now - before)
        serving_s += running * (now - before)
        before = now
        queued = scheduler.queue_depth
        running = sum(instance.in_flight for instance in scheduler.instances.values())

    listen(scheduler, integrate)
    columns = simulation.run(understood(workload(120, rate, seed=seed), of, policy="least_load")).columns
    spent_s = columns["e2e_s"].sum()
    waited_s = columns["queue_wait_s"].astype(float).sum()
    assert np.isclose(waiting_s, waited_s, rtol=1e-5, atol=1e-5)
    assert np.isclose(waiting_s + serving_s, spent_s, rtol=1e-9)
    assert slots is None or rate < 10 or waited_s > 1
