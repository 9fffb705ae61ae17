"""Whatever the fleet, the workload and the losses: the live gateway and the simulator do the same."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.simulator import InstanceLoss
from predictors.learned.models import load_models
from tests.integration.parity.live import live_run
from tests.integration.parity.scenarios import MIXED, any_wish, asked, fleet, workload
from tests.integration.parity.simulated import simulated_run
from tests.integration.parity.traces import first_difference
from tests.unit.benchmarks_simulator.wrong import Wrong, hasty


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    instances=st.lists(st.sampled_from(MIXED), min_size=2, max_size=5, unique_by=lambda each: each["name"]),
    slots=st.sampled_from([None, 1, 3, 8]),
    timeout_s=st.sampled_from([1.0, 4.0, 600.0]),
    max_queue=st.sampled_from([0, 5, 512]),
    rate=st.sampled_from([3.0, 10.0, 40.0]),
    sessions=st.sampled_from([0, 4]),
    losses=st.integers(0, 3),
    hedges=st.booleans(),
)
def test_anything(
    seed: int,
    instances: list[dict[str, Any]],
    slots: int | None,
    timeout_s: float,
    max_queue: int,
    rate: float,
    sessions: int,
    losses: int,
    hedges: bool,
) -> None:
    rng = Random(seed)
    of = fleet(
        *({**each, "max_concurrency": slots} for each in instances),
        limits={"request_timeout_s": timeout_s, "max_queue": max_queue},
        probes={"interval_s": 0.5, "eject_after": 2},
        scheduling={"confidence": rng.choice([0.2, 0.9]), "hedge": {"enabled": hedges, "max_share": 0.5}},
    )
    requests = workload(80, rate, seed=seed, output_tokens=120, routing=any_wish, sessions=sessions)
    at_s, lost = 0.0, []
    for _ in range(losses):
        at_s += 3 * rng.random()
        loss = InstanceLoss(rng.choice(instances)["name"], at_s, 3 * rng.random())
        at_s += loss.for_s
        lost.append(loss)
    bend = hasty if hedges else None
    simulated = simulated_run(of, asked(requests, of), seed, lost, Wrong(load_models(), bend=bend))
    live = live_run(of, asked(requests, of), seed, losses=lost, predictor=Wrong(load_models(), bend=bend))
    difference = first_difference(simulated, live)
    assert difference is None, difference
