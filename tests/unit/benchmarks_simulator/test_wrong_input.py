"""What cannot be simulated is said in one line, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.simulator import arrivals, check, open_fleet
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from router.config import FleetConfig
from tests.unit.benchmarks_simulator.worlds import MODEL, config, emulated, steady


def vllm(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "kind": "vllm", "url": "http://a:8000", "serves": {MODEL: MODEL}, **fields}


@pytest.mark.parametrize(
    ("instances", "told"),
    [
        ([vllm()], f"instance a: no engine profile for {MODEL} (name its hardware or its profile)"),
        ([vllm(hardware="abacus")], f"instance a: there is no engine profile '{MODEL}@abacus'"),
        ([], "the fleet has no instances"),
    ],
)
def test_fleets(instances: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        open_fleet(config(*instances))
    assert str(caught.value) == told


def test_an_engine_that_does_not_hold_its_models() -> None:
    models = ({"name": MODEL}, {"name": "qwen2.5-7b"})
    both = vllm(hardware="a30", serves={MODEL: MODEL, "qwen2.5-7b": "q"})
    with pytest.raises(WorkloadError, match=r"^instance a: the models do not fit together into the memory"):
        open_fleet(FleetConfig.model_validate({"models": models, "instances": (both,)}))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"routing": {"models": ["gpt-9"]}}, "request r0: unknown model 'gpt-9' in routing.models"),
        ({"routing": {"policy": "best"}}, "request r0: unknown policy 'best'"),
        ({"output_tokens": None}, "request r0: no output_tokens"),
        ({"output_tokens": {"qwen2.5-7b": 5}}, f"request r0: output_tokens says nothing of model {MODEL}"),
        (
            {"routing": {"slo": {"ttft_ms": -1}}},
            "request r0: routing.slo.ttft_ms must be a finite number greater than 0",
        ),
    ],
)
def test_requests(fields: dict[str, Any], told: str) -> None:
    fleet = open_fleet(config(emulated("a")))
    with pytest.raises(WorkloadError) as caught:
        list(arrivals(steady(1, 1.0, **fields), fleet))
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_an_unknown_policy_or_model_for_all() -> None:
    fleet = open_fleet(config(emulated("a")))
    with pytest.raises(WorkloadError, match=r"^request r0: unknown policy 'best'"):
        list(arrivals(steady(1, 1.0), fleet, policy="best"))
    with pytest.raises(WorkloadError, match=r"^request r0: .*gpt-9.* does not exist$"):
        list(arrivals(steady(1, 1.0), fleet, model="gpt-9"))


def test_a_model_that_nobody_serves() -> None:
    models = ({"name": MODEL}, {"name": "qwen2.5-7b"})
    fleet = open_fleet(FleetConfig.model_validate({"models": models, "instances": (emulated("a"),)}))
    asked = steady(3, 1.0, routing={"models": ["qwen2.5-7b"]})
    with pytest.raises(WorkloadError) as caught:
        check(asked, fleet)
    assert str(caught.value) == "request r0 asks for qwen2.5-7b, which no instance of the fleet serves"
    assert check(steady(3, 1.0), fleet) == 3


def test_an_empty_workload() -> None:
    with pytest.raises(WorkloadError, match=r"^the workload has no requests$"):
        check([], open_fleet(config(emulated("a"))))


def test_wishes_are_read_as_the_gateway_reads_them() -> None:
    fleet = open_fleet(config(emulated("a"), limits={"request_timeout_s": 30}))
    wish = {"slo": {"ttft_ms": 500}, "on_miss": "reject", "max_cost_usd": 0.001, "priority": 2, "seed": 7}
    requests = [
        WorkloadRequest("r0", 1.5, 700, 90, output_tokens=8, prefix_hashes=tuple(range(40)), routing=wish),
        WorkloadRequest("r1", 2.5, 10, output_tokens=8),
    ]
    first, second = arrivals(requests, fleet, policy="slo", slo={"e2e_ms": 9000})
    request = first.request
    assert (request.policy, request.hard, request.priority, request.seed) == ("slo", True, 2, 7)
    assert (request.arrived_at, request.expires_at, request.max_tokens) == (1.5, 31.5, 90)
    assert (request.prompt_tokens, request.prompt_tokens_bound) == (700, 700)
    assert (request.slo.ttft_s, request.slo.e2e_s, request.max_cost_usd) == (0.5, None, 0.001)
    assert len(request.prefix) == 32
    assert first.prefix_hashes == tuple(range(40))
    assert (second.request.slo.e2e_s, second.request.hard) == (9.0, False)
    assert first.output_tokens == second.output_tokens == {MODEL: 8}
