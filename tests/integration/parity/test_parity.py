"""One scheduler: the live gateway and the simulator do the same with the same workload, step by step.

The live side is the gateway as it serves (`Gateway`, `Runner`, `Relay`, `Monitor`, the scheduler, policies and
predictor of `router.wiring`) on a loop of virtual time, over engines that take every step by itself. The other
side is `benchmarks.simulator`, which jumps. Compared are all that the scheduler hears and says, in order: what
arrived, first tokens, ends, probes and load reports; each decision with all its candidates, their predictions,
scores and loads; and what became of every request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import policies
from backends.engine import profiles
from benchmarks.simulator import Fleet, InstanceLoss
from benchmarks.workloads.format import WorkloadRequest
from predictors.online.predictor import OnlinePredictor
from tests.integration.parity.live import LiveRun, live_run
from tests.integration.parity.scenarios import (
    LLAMA,
    MIXED,
    QWEN,
    asked,
    emulated,
    fleet,
    ollama,
    vllm,
    workload,
)
from tests.integration.parity.simulated import simulated_run
from tests.integration.parity.traces import Run, first_difference
from tests.unit.benchmarks_simulator.wrong import Wrong, hasty


def both(
    of: Fleet,
    requests: Sequence[WorkloadRequest],
    *,
    seed: int = 7,
    losses: Sequence[InstanceLoss] = (),
    predictor: Callable[[], OnlinePredictor | None] = lambda: None,
    **options: Any,
) -> Run:
    """Run a workload both ways, find no difference, and give back what was done."""
    simulated = simulated_run(of, asked(requests, of, **options), seed, losses, predictor())
    live = live_run(of, asked(requests, of, **options), seed, losses=losses, predictor=predictor())
    assert len(live.rows) == len(requests)
    difference = first_difference(simulated, live)
    assert difference is None, difference
    return live


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_every_policy_on_a_mixed_fleet(policy: str) -> None:
    def routing(rng: Random) -> dict[str, Any]:
        return rng.choice([{}, {"models": [LLAMA]}, {"models": [QWEN]}, {"min_quality": 0.5}, {"seed": 5}])

    run = both(fleet(), workload(250, 10.0, routing=routing), policy=policy)
    assert run.outcomes() == {"ok": 250}
    assert len({row["instance"] for row in run.rows.values()}) > 1


@pytest.mark.parametrize("policy", ["slo", "latency"])
def test_soft_slos_under_load(policy: str) -> None:
    of = fleet(scheduling={"ttft_weight": 0.3})
    run = both(of, workload(300, 14.0), policy=policy, slo={"ttft_ms": 300, "tpot_ms": 30, "e2e_ms": 6000})
    assert run.outcomes().keys() == {"ok", "late"}


def test_hard_slos_refuse_and_end_requests() -> None:
    def routing(rng: Random) -> dict[str, Any]:
        if rng.random() < 0.5:
            return {"policy": "slo"}
        slo = {"ttft_ms": 100 + 4000 * rng.random(), "e2e_ms": 1200 + 12000 * rng.random()}
        policy = ("slo", "latency", "least_load")[rng.randrange(3)]
        return {"policy": policy, "slo": slo, "on_miss": "reject"}

    instances = [{**each, "max_concurrency": 3} for each in MIXED]
    of = fleet(*instances, scheduling={"confidence": 0.1})
    run = both(of, workload(400, 30.0, routing=routing, prompt_tokens=1500, output_tokens=300))
    assert run.outcomes().keys() >= {
        "ok",
        "rejected_slo",
        "expired_in_queue",
        "expired_before_first_token",
        "expired_mid_decode",
    }


def test_a_short_request_timeout() -> None:
    of = fleet(
        *({**each, "max_concurrency": 5} for each in MIXED if each["name"] in {"l4-0", "desk-0", "a30-0"}),
        limits={"request_timeout_s": 1.5},
    )
    run = both(of, workload(250, 15.0, prompt_tokens=200, output_tokens=300), policy="least_load")
    assert run.outcomes().keys() >= {"ok", "expired_in_queue", "expired_before_first_token"}


def test_money_caps_cut_and_refuse() -> None:
    def routing(rng: Random) -> dict[str, Any]:
        return {
            "policy": ("price", "latency")[rng.randrange(2)],
            "max_cost_usd": 1e-5 * rng.lognormvariate(1, 1),
        }

    run = both(fleet(), workload(300, 8.0, routing=routing, output_tokens=300))
    outcomes = run.outcomes()
    assert outcomes.keys() == {"ok", "budget_exhausted_mid_decode", "rejected_budget"}
    assert min(outcomes.values()) > 10


def test_clients_bounds_on_output() -> None:
    requests = workload(250, 8.0, max_tokens=lambda rng: rng.choice([None, 16, 100, 9000]))
    run = both(fleet(), requests, policy="latency")
    assert run.count(what="Dispatch", max_output_tokens=16) > 10


def test_a_central_queue_with_priorities() -> None:
    def routing(rng: Random) -> dict[str, Any]:
        return {"priority": rng.randrange(3), "models": [(LLAMA, QWEN)[rng.randrange(2)]]}

    of = fleet(*({**each, "max_concurrency": 4} for each in MIXED))
    run = both(of, workload(300, 20.0, routing=routing, output_tokens=200), policy="latency")
    assert sum(row["queue_wait_s"] > 0.1 for row in run.rows.values()) > 100
    assert run.outcomes() == {"ok": 300}


def test_a_queue_that_overflows() -> None:
    of = fleet(*({**each, "max_concurrency": 2} for each in MIXED[:3]), limits={"max_queue": 8})
    run = both(of, workload(250, 12.0), policy="power_of_two")
    assert run.outcomes().keys() == {"ok", "rejected_overload"}
    assert run.count(what="Refuse", code="server_overloaded") > 20


@pytest.mark.parametrize("policy", ["latency", "least_load", "round_robin"])
@pytest.mark.parametrize("slots", [None, 5])
def test_instances_lost_and_back_under_load(policy: str, slots: int | None) -> None:
    of = fleet(
        *({**each, "max_concurrency": slots} for each in MIXED),
        probes={"interval_s": 0.7, "timeout_s": 0.5, "eject_after": 2, "return_after": 2},
    )
    losses = [
        InstanceLoss("a30-0", 3.1, 6.0),
        InstanceLoss("desk-0", 6.3, 3.0),
        InstanceLoss("h100-0", 9.05, 5.5),
    ]
    run = both(of, workload(350, 14.0, prompt_tokens=1500, output_tokens=150), policy=policy, losses=losses)
    assert run.count(what="Ended", how="failed", restartable=True) > 0
    assert run.count(what="Ended", how="failed", restartable=False) > 3
    assert run.count(what="Dispatch", attempt=2) > 0
    assert run.count(what="Probed", healthy=False) > 10
    assert run.outcomes()["backend_error"] > 3
    back = [step for step in run.steps if step.get("instance") == "a30-0" and step["what"] == "Dispatch"]
    assert any(step["at_s"] > 10 for step in back)


def test_the_whole_fleet_is_lost() -> None:
    of = fleet(*({**each, "max_concurrency": 4} for each in MIXED[:3]), probes={"interval_s": 0.5})
    losses = [InstanceLoss(each["name"], 3.9 + at * 0.01, 4.0) for at, each in enumerate(MIXED[:3])]
    run = both(of, workload(250, 16.0), policy="latency", losses=losses)
    assert run.outcomes()["rejected_no_instance"] > 10
    assert run.count(what="Refuse", code="upstream_error") > 0


@pytest.mark.parametrize("policy", ["lmetric", "latency"])
def test_prompts_that_begin_alike(policy: str) -> None:
    run = both(fleet(), workload(300, 5.0, sessions=12), policy=policy)
    plain = [replace(each, prefix_hashes=None) for each in workload(300, 5.0, sessions=12)]
    without = both(fleet(), plain, policy=policy)
    assert _mean_ttft_s(run) < 0.9 * _mean_ttft_s(without)


def _mean_ttft_s(run: Run) -> float:
    total_s: float = sum(row["ttft_s"] for row in run.rows.values())
    return total_s / len(run.rows)


def test_kv_memory_runs_out() -> None:
    """Sequences are preempted and computed again; reports of the engine say so."""
    small = replace(profiles.profile(f"{LLAMA}@a30"), kv_capacity_tokens=6000)
    of = fleet(
        vllm("a", LLAMA, "a30"), vllm("b", LLAMA, "a30"), ollama("c", LLAMA), given={f"{LLAMA}@a30": small}
    )
    run = both(of, workload(200, 6.0, output_tokens=200), policy="least_load")
    assert any(step.get("preemptions_total") for step in run.steps)


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

    def routing(rng: Random) -> dict[str, Any]:
        return {"max_cost_usd": 1e-5 * rng.lognormvariate(2, 1)} if rng.random() < 0.5 else {}

    requests = workload(200, 2.0, prompt_tokens=900, output_tokens=400, routing=routing)
    run = both(of, requests, policy="round_robin")
    assert run.outcomes().keys() >= {"ok", "rejected_invalid", "budget_exhausted_mid_decode"}
    told = {step["request"]: step["prompt_tokens"] for step in run.steps if step.get("how") == "ok"}
    assert any(told.get(each.id, each.prompt_tokens) < each.prompt_tokens for each in requests)


def test_a_burst_at_one_moment() -> None:
    """Equal requests on equal engines, all at once: much happens at the same instants."""
    of = fleet(*(vllm(f"a30-{at}", LLAMA, "a30", max_concurrency=3) for at in range(4)))
    requests = [
        WorkloadRequest(f"r{at}", 0.3 + 1.5 * (at // 30), 300, output_tokens=40 + at % 3) for at in range(150)
    ]
    run = both(of, requests, policy="least_load")
    assert run.outcomes() == {"ok": 150}


def test_models_take_turns_in_an_ollama() -> None:
    """One that has memory for a single model loads and unloads."""
    one = ollama("desk", LLAMA, QWEN, hardware="t4")
    of = fleet(one, vllm("l4", QWEN, "l4"))
    run = both(of, workload(120, 1.0, output_tokens=40), policy="random")
    loaded = {tuple(step["loaded_models"]) for step in run.steps if step.get("loaded_models") is not None}
    assert len(loaded) > 1


def test_emulated_instances_of_other_speeds() -> None:
    of = fleet(
        emulated("a", f"{LLAMA}@a30", 1.0),
        emulated("b", f"{LLAMA}@a30", 1.7),
        emulated("c", f"{QWEN}@l4", 3.1),
    )
    assert of.time_factor == 1
    run = both(of, workload(200, 6.0), policy="power_of_two")
    assert {row["instance"] for row in run.rows.values()} == {"a", "b", "c"}


@pytest.mark.parametrize("policy", ["least_load", "latency"])
def test_hedges(policy: str) -> None:
    """The predictor promises first tokens much too early, so that many attempts seem stuck; some instances are
    lost while two attempts run."""

    def routing(rng: Random) -> dict[str, Any]:
        found: dict[str, Any] = {"slo": {"ttft_ms": 200 + 2000 * rng.random(), "e2e_ms": 9000}}
        return {**found, "max_cost_usd": 1e-4} if rng.random() < 0.3 else found

    of = fleet(
        *({**each, "max_concurrency": 8} for each in MIXED),
        scheduling={"hedge": {"enabled": True, "max_share": 1.0}},
        probes={"interval_s": 0.7},
    )
    requests = workload(250, 12.0, routing=routing, prompt_tokens=1500, output_tokens=60)
    losses = [InstanceLoss(name, 2.0 + 3 * at, 2.0) for at, name in enumerate(("a30-0", "l4-0", "desk-1"))]
    run = both(of, requests, policy=policy, losses=losses, predictor=lambda: Wrong(bend=hasty))
    hedges = run.count(what="Dispatch", hedge=True)
    cancelled = run.count(what="Cancel")
    assert hedges > 20
    assert 10 < cancelled <= hedges
    hedged = sum(row["hedged"] for row in run.rows.values())
    assert 0.9 * hedges < hedged <= hedges  # after a failure a request may be hedged once more
    second = [step for step in run.steps if step["what"] == "FirstToken" and step["attempt"] > 1]
    assert len(second) > 3, "some hedge is faster"


def test_the_live_side_answers_its_clients() -> None:
    """What the comparison runs is a gateway: status lines, tokens and ends reach the clients."""

    def routing(rng: Random) -> dict[str, Any]:
        return rng.choice([{}, {"max_cost_usd": 1e-5}, {"slo": {"e2e_ms": 3000}, "on_miss": "reject"}])

    of = fleet(
        *({**each, "max_concurrency": 3} for each in MIXED),
        limits={"max_queue": 5},
        scheduling={"confidence": 0.2},
    )
    live = LiveRun(of, 7, [InstanceLoss("a30-0", 2.1, 3.0)])
    records = live.run(asked(workload(200, 20.0, routing=routing, output_tokens=150), of, policy="random"))
    assert len(records) == len(live.clients) == 200
    seen = set()
    for record in records:
        client = live.clients[record.id]
        assert client.response_complete
        head, body = b"".join(client.received).split(b"\r\n\r\n", 1)
        whole = body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        seen.add(record.outcome.value)
        if record.decoded:
            assert head.startswith(b"HTTP/1.1 200 ")
            assert f"x-headway-instance: {record.instance}".encode() in head
            assert body.count(b'"content":"a "') == record.output_tokens
            assert whole == (record.error_code is None)
        else:
            assert head.split()[1] in {b"400", b"429", b"502", b"503", b"504"}
            assert f'"code":"{record.error_code}"'.encode() in body
    assert seen >= {
        *("ok", "rejected_budget", "rejected_slo", "rejected_overload"),
        *("expired_mid_decode", "budget_exhausted_mid_decode", "backend_error"),
    }
