"""The gateway and the simulator tell their schedulers the same of the same workload.

There is one scheduler, which decides the life of each request. What two drivers may do differently is what they report:
when a first token came, how many tokens an answer had, why an attempt failed. So the events are compared, in order, and
what is written of each request at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.engine import profiles
from benchmarks.simulator import Fleet, InstanceLoss, Simulation, arrivals
from benchmarks.workloads.format import WorkloadRequest
from predictors.learned.models import load_models
from predictors.online.predictor import OnlinePredictor
from router.core.types import EndedHow
from tests.integration.parity.live import live_run
from tests.integration.parity.traces import Trace, difference
from tests.unit.benchmarks_simulator.scenarios import (
    LLAMA,
    MIXED,
    QWEN,
    any_wish,
    emulated,
    fleet,
    ollama,
    vllm,
    workload,
)
from tests.unit.benchmarks_simulator.wrong import Wrong, hasty
from tests.unit.core.ledger import listen

Predictors = Callable[[], OnlinePredictor | None]


def simulated_run(
    of: Fleet,
    requests: Sequence[WorkloadRequest],
    losses: Sequence[InstanceLoss] = (),
    predictor: Predictors = lambda: None,
    **options: Any,
) -> Trace:
    trace, found = Trace(), list(arrivals(requests, of, **options))
    simulation = Simulation(of, seed=7, losses=losses, predictor=predictor())
    listen(simulation.scheduler, trace.take)
    trace.add_result(simulation.run(found), [each.request.id for each in found])
    return trace


def both(
    of: Fleet,
    requests: Sequence[WorkloadRequest],
    losses: Sequence[InstanceLoss] = (),
    predictor: Predictors = lambda: None,
    **options: Any,
) -> Trace:
    """Run a workload both ways, find no difference, and give back what was done."""
    simulated = simulated_run(of, requests, losses, predictor, **options)
    live = live_run(of, list(arrivals(requests, of, **options)), 7, losses, predictor())
    assert len(live.rows) == len(requests)
    found = difference(simulated, live)
    assert found is None, found
    return live


def test_hard_slos_caps_and_bounds_end_requests() -> None:
    def routing(rng: Random) -> dict[str, Any]:
        slo = {"ttft_ms": 100 + 4000 * rng.random(), "e2e_ms": 1200 + 12000 * rng.random()}
        return rng.choice(
            [
                {"policy": "slo", "slo": slo, "on_miss": "reject"},
                {"policy": "least_load", "slo": slo, "on_miss": "reject"},
                {"policy": "price", "max_cost_usd": 1e-5 * rng.lognormvariate(1, 1)},
                {"policy": "latency", "priority": rng.randrange(3), "models": [LLAMA]},
            ]
        )

    of = fleet(
        *({**each, "max_concurrency": 3} for each in MIXED),
        scheduling={"confidence": 0.1},
        limits={"request_timeout_s": 6.0, "max_queue": 25},
    )
    run = both(
        of,
        workload(
            500,
            30.0,
            routing=routing,
            prompt_tokens=1500,
            output_tokens=300,
            max_tokens=lambda rng: rng.choice([None, 16, 100, 9000]),
        ),
    )
    assert run.outcomes() >= {
        *("ok", "rejected_slo", "rejected_budget", "rejected_overload", "budget_exhausted_mid_decode"),
        *("expired_in_queue", "expired_before_first_token", "expired_mid_decode"),
    }
    assert any(each.get("truncated") for each in run.requests)


def hedged_with_losses() -> tuple[Fleet, list[WorkloadRequest], list[InstanceLoss], Predictors]:
    """The predictor promises first tokens much too early, so that many attempts seem stuck; some instances are lost while
    two attempts run."""

    def routing(rng: Random) -> dict[str, Any]:
        found: dict[str, Any] = {"slo": {"ttft_ms": 200 + 2000 * rng.random(), "e2e_ms": 9000}}
        if rng.random() < 0.2:  # some are cancelled while they decode
            return {"slo": {"e2e_ms": 1500}, "on_miss": "reject"}
        return {**found, "max_cost_usd": 1e-4} if rng.random() < 0.3 else found

    of = fleet(
        *({**each, "max_concurrency": 8} for each in MIXED),
        scheduling={"confidence": 0.5, "hedge": {"enabled": True, "max_share": 1.0}},
        probes={"interval_s": 0.7, "timeout_s": 0.5, "eject_after": 9},
    )
    requests = workload(250, 12.0, routing=routing, prompt_tokens=1500, output_tokens=60)
    losses = [InstanceLoss(name, 2.0 + 3 * at, 2.0) for at, name in enumerate(("a30-0", "l4-0", "desk-1"))]
    return of, requests, losses, lambda: Wrong(bend=hasty)


def test_hedges_and_lost_instances() -> None:
    run = both(*hedged_with_losses(), policy="least_load")
    assert run.hedges > 20
    assert run.cancelled > 10
    assert run.ended(EndedHow.FAILED, "error") > 3
    assert run.ended(EndedHow.FAILED, "unreachable") > 0
    second = [each for each in run.requests if each["what"] == "FirstToken" and each["attempt"] > 1]
    assert len(second) > 3, "some hedge is faster"


def test_engines_that_refuse_or_cut_prompts() -> None:
    """The fleet names no context: a vLLM refuses what its memory cannot hold, an Ollama cuts it."""
    small = replace(profiles.profile(f"{LLAMA}@a30"), kv_capacity_tokens=2000)
    cut = replace(profiles.profile(f"{LLAMA}-q4@rtx-4090"), kv_capacity_tokens=4000)
    of = fleet(
        vllm("a", LLAMA, "a30"),
        ollama("b", LLAMA, context_tokens=None),
        given={small.name: small, cut.name: cut},
        models=[{"name": LLAMA, "price": {"input_usd_per_mtok": 0.03, "output_usd_per_mtok": 0.05}}],
    )
    requests = workload(200, 2.0, prompt_tokens=900, output_tokens=400)
    run = both(of, requests, policy="round_robin")
    assert run.outcomes() >= {"ok", "rejected_invalid"}
    counted = {
        each["request_id"]: each["prompt_tokens"] for each in run.requests if each.get("prompt_tokens")
    }
    assert any(counted.get(each.id, each.prompt_tokens) < each.prompt_tokens for each in requests)


def test_a_burst_at_one_moment() -> None:
    """Equal requests on equal engines, all at once: much happens at the same instants."""
    of = fleet(*(vllm(f"a30-{at}", LLAMA, "a30", max_concurrency=3) for at in range(4)))
    requests = [
        WorkloadRequest(f"r{at}", 0.3 + 1.5 * (at // 30), 300, output_tokens=40 + at % 3) for at in range(150)
    ]
    assert both(of, requests, policy="least_load").outcomes() == {"ok"}


def test_engines_of_several_kinds_and_speeds() -> None:
    of = fleet(
        emulated("a", f"{LLAMA}@a30", 1.0),
        emulated("b", f"{QWEN}@l4", 3.1),
        {**emulated("two", f"{LLAMA}@a100-80g", 1.0), "serves": {LLAMA: "up/llama", QWEN: "up/qwen"}},
        ollama("desk", LLAMA, QWEN, hardware="t4"),  # it has memory for one model, and loads and unloads
    )
    run = both(of, workload(150, 4.0, sessions=8), policy="power_of_two")
    assert {row["instance"] for row in run.rows.values()} == {"a", "b", "desk", "two"}
    assert {row["model"] for row in run.rows.values() if row["instance"] == "two"} == {LLAMA, QWEN}
    assert len({step.get("loaded_models") for step in run.watches["desk"]}) > 2


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    instances=st.lists(st.sampled_from(MIXED), min_size=2, max_size=5, unique_by=lambda each: each["name"]),
    slots=st.sampled_from([None, 1, 3, 8]),
    timeout_s=st.sampled_from([1.0, 4.0, 600.0]),
    max_queue=st.sampled_from([0, 5, 512]),
    rate=st.sampled_from([3.0, 10.0, 40.0]),
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
    requests = workload(80, rate, seed=seed, output_tokens=120, routing=any_wish)
    at_s, lost = 0.0, []
    for _ in range(losses):
        at_s += 3 * rng.random()
        loss = InstanceLoss(rng.choice(instances)["name"], at_s, 3 * rng.random())
        at_s += loss.for_s
        lost.append(loss)
    both(of, requests, lost, lambda: Wrong(load_models(), bend=hasty if hedges else None))


# --- the comparison can fail --------------------------------------------------------------------------
def without_an_event(trace: Trace) -> None:
    trace.watches["a30-0"].pop()


def with_another_count(trace: Trace) -> None:
    next(each for each in trace.requests if each["what"] == "Ended")["output_tokens"] += 1


def with_a_first_token_a_moment_late(trace: Trace) -> None:
    next(each for each in trace.requests if each["what"] == "FirstToken")["at_s"] += 0.001


def with_another_row(trace: Trace) -> None:
    trace.rows["r0"]["e2e_s"] += 0.001


def with_a_cost_of_a_thousandth_more(trace: Trace) -> None:
    trace.rows["r0"]["cost_usd"] *= 1.001


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (without_an_event, "of a30-0: what is"),
        (with_another_count, "output_tokens is"),
        (with_a_first_token_a_moment_late, "FirstToken of r"),
        (with_another_row, "row of r0: e2e_s is"),
        (with_a_cost_of_a_thousandth_more, "row of r0: cost_usd is"),
    ],
)
def test_a_misreport_is_found(changed: Callable[[Trace], None], found: str) -> None:
    of, requests = fleet(*MIXED), workload(10, 12.0)
    simulated, other = (simulated_run(of, requests) for _ in range(2))
    assert difference(simulated, other) is None
    changed(other)
    assert found in (difference(simulated, other) or "")
