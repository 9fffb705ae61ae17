"""The simulator against what is known without it: queueing theory, arithmetic, and itself run again."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from benchmarks.simulator import OUTCOMES, InstanceLoss, Result, open_fleet, simulate
from benchmarks.workloads.format import WorkloadRequest
from tests.unit.benchmarks_simulator.worlds import MODEL, config, emulated, one_by_one, steady, understood

STEP_S = 0.01


def single_server(requests: list[WorkloadRequest], step_s: float = STEP_S, **profile_fields: Any) -> Result:
    """One instance that serves one request at a time, first come first served."""
    profile = replace(one_by_one(step_s), **profile_fields)
    server = {
        "name": "server",
        "kind": "vllm",
        "url": "http://server:8000",
        "hardware": "queue",
        "serves": {MODEL: MODEL},
    }
    limits = {"request_timeout_s": 1e6}
    fleet = open_fleet(config(server, limits=limits), {profile.name: profile})
    return simulate(fleet, understood(requests, fleet))


def test_a_single_server_follows_lindleys_recursion() -> None:
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.exponential(40 * STEP_S / 0.8, 1500)).tolist()  # 80 % of what it can serve
    tokens = rng.geometric(1 / 40, 1500).tolist()
    requests = [WorkloadRequest(f"r{at}", at_s[at], 1, output_tokens=tokens[at]) for at in range(1500)]
    result = single_server(requests)
    free_at_s = 0.0
    for at, each in enumerate(requests):
        begin_s = max(free_at_s, each.arrival_s)
        free_at_s = begin_s + tokens[at] * STEP_S
        assert result.columns["ttft_s"][at] == pytest.approx(begin_s + STEP_S - each.arrival_s, abs=1e-6)
        assert result.columns["e2e_s"][at] == pytest.approx(free_at_s - each.arrival_s, abs=1e-6)


def busy(seed: int = 1) -> list[WorkloadRequest]:
    rng = Random(seed)
    at_s = 0.0
    requests = []
    for number in range(200):
        at_s += rng.expovariate(8.0)
        requests.append(
            WorkloadRequest(f"r{number}", at_s, rng.randrange(1, 2000), output_tokens=rng.randrange(1, 300))
        )
    return requests


def fleet_of(*speeds: float, time_factor: float | None = None, **sections: Any) -> Any:
    hardware = ("a30", "l4", "a100-80g")
    instances = [emulated(f"i{at}", hardware[at % 3], speed) for at, speed in enumerate(speeds)]
    return open_fleet(config(*instances, **sections), time_factor=time_factor)


def same(one: Result, other: Result) -> bool:
    return all(np.array_equal(one.columns[name], other.columns[name], equal_nan=True) for name in one.columns)


def test_the_same_seed_gives_the_same_run() -> None:
    fleet = fleet_of(1, 1, 1)
    first, again, other = (
        simulate(fleet, understood(busy(), fleet, policy="random"), seed=seed) for seed in (4, 4, 5)
    )
    assert same(first, again)
    assert first.events == again.events
    assert list(first.timeline) == list(again.timeline)
    assert not same(first, other)


def test_time_compression_of_a_file_is_taken_out() -> None:
    plain, fast = fleet_of(1, 1, 1), fleet_of(6, 6, 6)
    assert (plain.time_factor, fast.time_factor) == (1, 6)
    assert same(
        simulate(plain, understood(busy(), plain, policy="latency")),
        simulate(fast, understood(busy(), fast, policy="latency")),
    )


def test_instances_of_different_speed_keep_their_ratio() -> None:
    """An emulated instance that is made twice as fast as its hardware is twice as fast here too."""
    single = fleet_of(2)
    assert single.time_factor == 2  # nothing to compare it with: a compression
    mixed = fleet_of(1, 1, 2)
    assert mixed.time_factor == 1
    given = fleet_of(3, 3, 6, time_factor=3)
    one, other = (
        simulate(fleet, understood(busy(), fleet, policy="round_robin")) for fleet in (mixed, given)
    )
    assert same(one, other)
    lone = [WorkloadRequest("r", 0.1, 300, output_tokens=100)]
    fast, slow = (fleet_of(speed, time_factor=1) for speed in (2, 1))
    ratio = [simulate(each, understood(lone, each)).columns["e2e_s"][0] for each in (slow, fast)]
    assert ratio[0] == pytest.approx(2 * ratio[1])


def test_a_lone_request_costs_and_takes_what_can_be_counted() -> None:
    fleet = fleet_of(1)
    (profile,) = fleet.profiles.values()
    result = simulate(fleet, understood(steady(1, 0.5, output_tokens=2), fleet))
    row = {name: column[0] for name, column in result.columns.items()}
    prefill_s = profile.prefill_s(200)
    assert row["ttft_s"] == pytest.approx(prefill_s)
    assert row["e2e_s"] == pytest.approx(prefill_s + profile.step_s(0, 1, 201))
    assert row["cost_usd"] == pytest.approx(200 * 0.03e-6 + 2 * 0.05e-6)
    assert (row["output_tokens"], row["attempts"], OUTCOMES[row["outcome"]]) == (2, 1, "ok")
    assert (result.instances[row["instance"]], result.models[row["model"]]) == ("i0", MODEL)


def test_money_cuts_an_answer_at_the_token_that_it_still_buys() -> None:
    fleet = fleet_of(1)
    cap = 200 * 0.03e-6 + 10.5 * 0.05e-6
    for tokens, outcome in ((50, "budget_exhausted_mid_decode"), (10, "ok")):
        requests = steady(1, 0.5, output_tokens=tokens, routing={"max_cost_usd": cap})
        row = simulate(fleet, understood(requests, fleet)).columns
        assert OUTCOMES[row["outcome"][0]] == outcome
        assert row["output_tokens"][0] == 10
        assert row["budget_overrun_usd"][0] == 0.0


def test_an_answer_that_fills_the_engines_memory_is_not_cut_by_money() -> None:
    cap = 200 * 0.03e-6 + 150.5 * 0.05e-6
    requests = steady(1, 0.5, output_tokens=500, routing={"max_cost_usd": cap})
    row = single_server(requests, kv_capacity_tokens=320).columns
    assert OUTCOMES[row["outcome"][0]] == "ok"
    assert row["output_tokens"][0] == 120


def test_a_request_that_comes_in_the_moment_of_anothers_first_token() -> None:
    requests = [WorkloadRequest(f"r{at}", 1.0 + 0.25 * at, 10, output_tokens=4) for at in range(2)]
    columns = single_server(requests, step_s=0.25).columns
    assert columns["ttft_s"].tolist() == [0.25, 1.0]
    assert columns["e2e_s"].tolist() == [1.0, 1.75]


def test_a_lost_instance_serves_nobody_until_it_is_back() -> None:
    fleet = open_fleet(config(emulated("a"), emulated("b"), probes={"interval_s": 0.5, "return_after": 2}))
    requests = steady(300, 0.1)
    loss = InstanceLoss("a", 5.02, 10.0)
    columns = simulate(fleet, understood(requests, fleet, policy="least_load"), losses=[loss]).columns
    on_a = columns["instance"] == 0
    ended_s = columns["arrival_s"] + columns["e2e_s"]
    ok = columns["outcome"] == OUTCOMES.index("ok")
    assert not np.any(on_a & ok & (ended_s > 5.02) & (ended_s < 15.02))
    assert np.any(on_a & ok & (ended_s <= 5.02))
    assert np.any(on_a & ok & (columns["arrival_s"] > 15.02))
    broken = columns["outcome"] == OUTCOMES.index("backend_error")
    assert 0 < broken.sum() < 20
    assert np.all(columns["arrival_s"][broken] <= 5.02)
    assert np.any(ok & (columns["attempts"] == 2))


def test_the_timeline_stays_short_and_tells_what_ran() -> None:
    fleet = open_fleet(config(emulated("a"), probes={"interval_s": 0.05}))
    result = simulate(fleet, understood(steady(400, 0.2), fleet))
    moments = result.timeline.moments
    assert 100 < len(moments) <= result.timeline.most
    assert all(sample.in_flight == sample.running + sample.waiting for sample in result.timeline)
    in_use = sum(sample.in_flight for sample in result.timeline) / len(moments)
    assert in_use == pytest.approx(result.columns["e2e_s"].sum() / result.end_s, rel=0.05)
    assert moments[-1][0].at_s > 0.9 * result.end_s


def test_requests_may_come_all_at_once() -> None:
    """Equal requests on equal engines: their steps end at the very same times."""
    instances = [emulated(f"i{at}", max_concurrency=2) for at in range(3)]
    fleet = open_fleet(config(*instances))
    requests = [replace(each, arrival_s=1.0) for each in steady(60, 1.0)]
    columns = simulate(fleet, understood(requests, fleet, policy="least_load")).columns
    assert set(columns["outcome"]) == {OUTCOMES.index("ok")}
    assert set(columns["output_tokens"]) == {50}
