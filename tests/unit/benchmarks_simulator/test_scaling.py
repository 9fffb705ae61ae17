"""Instances that come and go in a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from benchmarks.simulator import Simulation, arrivals, open_fleet
from benchmarks.simulator.scaling import WARM_FOR_S, Scaling
from benchmarks.workloads.format import WorkloadRequest
from policies.scaling import create
from router.config import loads
from router.core.events import Cancel
from router.core.types import Outcome
from router.scaling.pools import scaling_pools

FLEET = """
models: [{name: llama-3.1-8b, context_tokens: 16384}]
limits: {request_timeout_s: 600}
scaling:
  pools:
    - name: l4
      min_instances: 0
      max_instances: 4
      cooldown_s: 10
      cold_start_s: 40
      warm_start_s: 15
      instance: {kind: vllm, hardware: l4, max_concurrency: 8, usd_per_hour: 0.72, serves: {llama-3.1-8b: llama-3.1-8b}}
"""


def request(number, at_s, output_tokens=20):
    return WorkloadRequest(f"r{number}", at_s, 200, output_tokens=output_tokens, source="made")


def run(requests, scaler, seed=0, **settings):
    """The result, and the instructions' counts by their type."""
    config = loads(FLEET, "fleet.yaml")
    fleet = open_fleet(config)
    counts = Counter()
    pools = scaling_pools(config)
    scaling = Scaling(create(scaler, pools, settings), pools, fleet.places, interval_s=5.0)
    simulation = Simulation(
        fleet,
        seed=seed,
        scaling=scaling,
        on_instruction=lambda instruction, now: counts.update([type(instruction)]),
    )
    return simulation.run(arrivals(requests, fleet, policy="least_load")), counts


def bursts(seed):
    """1200 requests in some five minutes, in bursts, with answers of up to 200 tokens."""
    random, at_s, found = Random(seed), 0.0, []
    for number in range(1200):
        at_s += random.expovariate(5.0 if (at_s // 60) % 2 else 1.0)
        found.append(request(number, at_s, random.randint(10, 200)))
    return found


@pytest.mark.parametrize(
    ("scaler", "settings"),
    [
        ("queue", {"threshold": 0, "down_after_s": 5}),
        ("concurrency", {"window_s": 0}),
        ("kpa", {"stable_window_s": 10}),
    ],
)
def test_shrinking_ends_no_stream(scaler, settings):
    result, counts = run(bursts(1), scaler, **settings)
    assert result.usage.drained
    assert set(result.columns["outcome"]) == {list(Outcome).index(Outcome.OK)}
    assert set(result.columns["attempts"]) == {1}
    assert counts[Cancel] == 0


def test_the_same_seed_gives_the_same_run():
    first, second = (run(bursts(2), "kpa")[0] for _ in range(2))
    assert first.usage == second.usage
    assert (first.columns["ttft_s"] == second.columns["ttft_s"]).all()


def test_requests_wait_while_an_instance_wakes():
    result, _ = run([request(0, 1.0), request(1, 203.0), request(2, 204.0)], "concurrency", window_s=0)
    waited = result.columns["queue_wait_s"]
    assert waited[0] == 0.0
    # The decision is at 205 s, and the place was used before: a warm start.
    assert waited[1:] == pytest.approx([17.0, 16.0], abs=0.01)
    assert result.usage.warm_starts == 1


def test_a_start_is_cold_after_a_while():
    late_s = WARM_FOR_S + 300.0
    result, _ = run([request(0, 1.0), request(1, late_s + 3.0)], "concurrency", window_s=0)
    assert result.columns["queue_wait_s"][1] == pytest.approx(42.0, abs=0.01)
    assert (result.usage.cold_starts, result.usage.warm_starts) == (1, 0)


def test_a_request_that_waits_for_an_instance_keeps_its_time_limit():
    config = loads(FLEET, "fleet.yaml")
    fleet = open_fleet(config)
    (pool,) = scaling_pools(config)
    pools = (replace(pool, cold_start_s=700, warm_start_s=700),)
    scaling = Scaling(create("concurrency", pools, {"window_s": 0}), pools, fleet.places, interval_s=5.0)
    found = [request(0, 1.0), request(1, 203.0)]
    result = Simulation(fleet, scaling=scaling).run(arrivals(found, fleet, policy="least_load"))
    assert result.columns["outcome"][1] == list(Outcome).index(Outcome.EXPIRED_IN_QUEUE)
    assert result.columns["e2e_s"][1] == pytest.approx(600.0)


def test_time_is_paid_from_the_start_to_the_end_of_draining():
    # Four instances until the cool-down has passed, at 15 s; three leave idle, the last one drains its answer.
    result, _ = run([request(0, 0.0, 1000)], "concurrency", window_s=0)
    end_s = result.end_s
    assert end_s > 15.0
    assert result.usage.instance_s["l4"] == pytest.approx(3 * 15.0 + end_s)
    assert result.usage.gpu_hours == pytest.approx((45.0 + end_s) / 3600)
    assert result.usage.usd == pytest.approx(0.72 * (45.0 + end_s) / 3600)


def test_without_scaling_nothing_leaves():
    result, _ = run([request(0, 0.0), request(1, 500.0)], "none")
    assert result.usage.instance_s["l4"] == pytest.approx(4 * result.end_s)
