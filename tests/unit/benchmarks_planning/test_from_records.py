"""Cluster, models and requests of a fleet that runs, from its file and its records."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.planning.from_fleet import cluster_of, models_of, present
from benchmarks.planning.problem import PlanningProblem
from benchmarks.planning.reasons import reasons
from benchmarks.workloads.format import WorkloadError, read
from benchmarks.workloads.records import recorded_requests
from router.config import FleetConfig, load, loads
from router.store.records import RequestRecord
from tests.commands import Headway
from tests.records import keep
from tests.unit.benchmarks_planning.made import plan_files

FLEET = """
store: {{url: "sqlite+aiosqlite:///{store}"}}
defaults: {{policy: least_load}}
models: [{{name: llama-3.2-1b, aliases: [small]}}, {{name: llama-3.2-3b}}]
instances:
  - {{name: a, kind: vllm, url: "http://a", hardware: 2xl4, usd_per_hour: 1.4, serves: {{llama-3.2-3b: x}}}}
  - {{name: b, kind: vllm, url: "http://b", hardware: l4, usd_per_hour: 0.7, serves: {{llama-3.2-1b: {{name: y, quantization: fp8}}}}}}
"""
NOON = 1_700_000_000.0


def record(number: int, model: str, **fields: object) -> RequestRecord:
    made = RequestRecord(
        id=f"r{number:03}",
        received_at=NOON + number / 2,
        model_requested=model,
        prompt_tokens=400,
        output_tokens=60,
        slo_ttft_s=1.5,
        arrived_at=1.0,
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "h.db"
    records = [record(n, ("small", "llama-3.2-3b", "auto")[n % 3]) for n in range(60)]
    keep(path, [*records, record(60, "auto", output_tokens=None), record(61, "auto", prompt_tokens=None)])
    return path


@pytest.fixture
def fleet(store: Path) -> FleetConfig:
    return loads(FLEET.format(store=store))


def test_requests_are_those_of_the_records(store: Path, fleet: FleetConfig) -> None:
    header, requests = recorded_requests(f"sqlite+aiosqlite:///{store}", fleet, 100)
    assert len(requests) == 61
    assert [each.arrival_s for each in requests[:3]] == [0.0, 0.5, 1.0]
    found = [(each.routing or {}).get("models") for each in requests[:3]]
    assert found == [["llama-3.2-1b"], ["llama-3.2-3b"], None]
    assert requests[0].routing["slo"] == {"ttft_ms": 1500.0}
    # Without an answer: the median of the others.
    assert requests[60].output_tokens == 60
    assert header.details == {
        "left_out_without_prompt_tokens": 1,
        "left_out_of_other_models": 0,
        "without_an_answer": 1,
    }


def test_requests_for_other_models_do_not_count(tmp_path: Path, fleet: FleetConfig) -> None:
    keep(tmp_path / "other.db", [record(n, ("small", "gone")[n % 2]) for n in range(6)])
    header, requests = recorded_requests(f"sqlite+aiosqlite:///{tmp_path / 'other.db'}", fleet, 100)
    assert len(requests) == 3
    assert header.details["left_out_of_other_models"] == 3


def test_the_last_requests_count(store: Path, fleet: FleetConfig) -> None:
    _, requests = recorded_requests(f"sqlite+aiosqlite:///{store}", fleet, 12)
    assert [each.id for each in requests] == [f"r{number:03}" for number in range(50, 61)]


def test_a_store_without_answers(tmp_path: Path, fleet: FleetConfig) -> None:
    keep(tmp_path / "empty.db", [])
    with pytest.raises(WorkloadError, match="no requests with an answer"):
        recorded_requests(f"sqlite+aiosqlite:///{tmp_path / 'empty.db'}", fleet, 12)


def test_cluster_and_models_of_a_fleet_file(fleet: FleetConfig) -> None:
    (pool,) = cluster_of(fleet).pools
    assert (pool.gpu, pool.gpus, pool.node_gpus, pool.usd_per_hour) == ("l4", 3, 2, pytest.approx(0.7))
    models = models_of(fleet).models
    found = [(each.name, each.weights) for each in models]
    assert found == [("llama-3.2-1b", "fp8"), ("llama-3.2-3b", "fp16")]
    problem = PlanningProblem(cluster_of(fleet), models, {})
    placement = present(problem, fleet)
    seen = [(str(group.shape), group.models) for group in placement]
    assert seen == [("l4 tp1 pp1", (0,)), ("l4 tp2 pp1", (1,))]


def test_gpus_of_two_prices_are_those_of_their_instances(fleet: FleetConfig) -> None:
    a, b = fleet.instances
    both = (
        a.model_copy(update={"hardware": "l4", "usd_per_hour": 0.4}),
        b.model_copy(update={"name": "c", "usd_per_hour": 0.9}),
        b,
    )
    fleet = fleet.model_copy(update={"instances": both})
    placement = present(PlanningProblem(cluster_of(fleet), models_of(fleet).models, {}), fleet)
    found = sorted((group.shape.usd_per_hour, group.models) for group in placement)
    assert found == [(0.4, (1,)), (0.7, (0,)), (0.9, (0,))]


@pytest.mark.parametrize("usd_per_hour", [0.5, 0.7])
def test_a_plan_with_a_group_of_unlike_gpus_can_be_planned_again(usd_per_hour: float) -> None:
    row = "{{name: {0}, kind: emulated, profile: {1}, usd_per_hour: {2}, serves: {{{3}: {3}}}}}"
    unlike = "llama-3.1-70b@a100-80g:41+2xl4:19+2xl4:20"
    rows = [
        row.format("a", unlike, 2 + 4 * usd_per_hour, "llama-3.1-70b"),
        row.format("b", "llama-3.2-1b@l4", usd_per_hour, "llama-3.2-1b"),
    ]
    own = loads(f"models: [{{name: llama-3.1-70b}}, {{name: llama-3.2-1b}}]\ninstances: [{', '.join(rows)}]")
    cluster = cluster_of(own)
    pools = {each.gpu: (each.gpus, each.usd_per_hour) for each in cluster.pools}
    assert pools == {"l4": (5, usd_per_hour), "a100-80g": (1, 2.0)}
    assert not reasons(PlanningProblem(cluster, models_of(own).models, {}).with_unlike_groups())


def test_unlike_gpus_whose_prices_are_unknown_share_that_of_their_instance(fleet: FleetConfig) -> None:
    a = fleet.instances[0].model_copy(update={"hardware": "a100-80g:20+2xl4:8", "usd_per_hour": 6.0})
    alone = fleet.model_copy(update={"instances": (a,)})
    assert {each.gpu: each.usd_per_hour for each in cluster_of(alone).pools} == {"a100-80g": 2.0, "l4": 2.0}
    cheap = fleet.model_copy(
        update={"instances": (a.model_copy(update={"usd_per_hour": 1.2}), fleet.instances[1])}
    )
    found = [(each.gpu, each.usd_per_hour) for each in cluster_of(cheap).pools]
    assert found == [("l4", 0.7), ("a100-80g", 0.4), ("l4", 0.4)]
    none = fleet.model_copy(update={"instances": (a.model_copy(update={"usd_per_hour": None}),)})
    assert {each.usd_per_hour for each in cluster_of(none).pools} == {None}


def test_a_fallback_that_no_instance_serves_is_left_out() -> None:
    own = loads(
        "models: [{name: llama-3.2-1b, fallbacks: [llama-3.2-3b]}, {name: llama-3.2-3b}]\n"
        "instances: [{name: a, kind: vllm, url: 'http://a', hardware: l4, serves: {llama-3.2-1b: x}}]"
    )
    (model,) = models_of(own).models
    assert model.fallbacks == ()


def test_requests_for_a_model_without_instances_count_for_its_fallback(
    store: Path, tmp_path: Path, headway: Headway
) -> None:
    (tmp_path / "fleet.yaml").write_text(
        f"""
store: {{url: "sqlite+aiosqlite:///{store}"}}
models: [{{name: llama-3.2-3b, fallbacks: [qwen2.5-7b, llama-3.2-1b]}}, {{name: llama-3.2-1b, aliases: [small]}}, {{name: qwen2.5-7b}}]
instances: [{{name: a, kind: vllm, url: "http://a", hardware: l4, serves: {{llama-3.2-1b: x}}}}]
"""
    )
    line = [
        "plan",
        "--config",
        str(tmp_path / "fleet.yaml"),
        "--from-store",
        "--time-s",
        "0.5",
        "--jobs",
        "1",
    ]
    data = headway.json(*line)
    assert data["workload"]["details"]["left_out_of_other_models"] == 0
    assert data["plans"][0]["requests"] == data["present"]["requests"] == 61


def test_hardware_without_profiles_needs_a_cluster_file(fleet: FleetConfig) -> None:
    text = FLEET.format(store="x.db").replace("hardware: 2xl4", "hardware: tpu")
    with pytest.raises(WorkloadError, match="instance a: no engine profiles for tpu; give --cluster"):
        cluster_of(loads(text))


def test_one_command_plans_from_records(store: Path, tmp_path: Path, headway: Headway) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET.format(store=store))
    out = tmp_path / "plan"
    line = ["plan", "--config", str(tmp_path / "fleet.yaml"), "--from-store", "--time-s", "1", "--jobs", "1"]
    data = headway.json(*line, "--what-if=-1xl4", "--what-if=-2xl4", "--out", out)
    assert data["policy"] == "least_load"
    assert data["present"]["usd_per_hour"] == pytest.approx(2.1)
    best = data["plans"][0]
    assert best["attainment"] >= data["present"]["attainment"] - 0.001
    fewer, none = data["what_if"]
    assert fewer["usd_per_hour"] <= 1.4 + 1e-9
    assert fewer["more_usd_per_hour"] == pytest.approx(fewer["usd_per_hour"] - best["usd_per_hour"])
    assert "infeasible" in none
    config = load(out / "fleet.yaml")
    assert config.store.url == f"sqlite+aiosqlite:///{store}"
    assert config.model("small") is not None


def test_a_fleet_with_a_model_of_a_cloud_is_planned_with_cluster_and_models(
    tmp_path: Path, headway: Headway
) -> None:
    (tmp_path / "fleet.yaml").write_text(
        """
models: [{name: llama-3.2-1b}, {name: gpt-4o}]
instances:
  - {name: a, kind: openai, url: "http://a", hardware: l4, serves: {gpt-4o: gpt-4o}}
  - {name: b, kind: vllm, url: "http://b", hardware: l4, serves: {llama-3.2-1b: x}}
"""
    )
    line = ["plan", "--config", str(tmp_path / "fleet.yaml"), "--rates", "llama-3.2-1b=1"]
    line += ["--slo", "ttft_ms=1500", "--limit", "20", "--time-s", "0.5", "--jobs", "1"]
    assert headway.refusal(*line) == "headway plan: no engine profiles for gpt-4o; give --models\n"
    data = headway.json(*line, *plan_files(tmp_path, "{gpu: l4, gpus: 1}", "{name: llama-3.2-1b}"))
    assert data["present"] is None
    assert data["plans"]


def test_limits_of_a_request_are_kept(tmp_path: Path, fleet: FleetConfig) -> None:
    limits = {"on_miss": "reject", "max_cost_usd": 0.01, "min_quality": 0.5, "priority": 3}
    path = tmp_path / "limits.db"
    keep(path, [record(0, "auto", **limits)])
    (request,) = recorded_requests(f"sqlite+aiosqlite:///{path}", fleet, None)[1]
    assert request.routing == {"slo": {"ttft_ms": 1500.0}, **limits}


def test_limits_that_change_nothing_are_left_out(tmp_path: Path, fleet: FleetConfig) -> None:
    usual = {"on_miss": "best_effort", "priority": 0}
    path = tmp_path / "usual.db"
    keep(path, [record(0, "auto", **usual), record(1, "auto", slo_ttft_s=None, **usual)])
    with_slo, without = recorded_requests(f"sqlite+aiosqlite:///{path}", fleet, None)[1]
    assert with_slo.routing == {"slo": {"ttft_ms": 1500.0}, "on_miss": "best_effort"}
    assert without.routing is None


def test_a_workload_of_the_records(store: Path, tmp_path: Path, headway: Headway) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET.format(store=store))
    out = tmp_path / "traffic.jsonl"
    for where in (("--config", str(tmp_path / "fleet.yaml")), ("--store", f"sqlite+aiosqlite:///{store}")):
        assert f"written to {out}" in headway.out(
            "workload", "from-store", *where, "--limit", "20", "--out", out
        )
        assert len(list(read(out))) == 19  # one has no prompt tokens
    headway.refusal("workload", "from-store", "--store", "sqlite+aiosqlite:///none.db", "--out", out)


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("auto:latency", None),
        ("small:price", ["llama-3.2-1b"]),
        ("llama-3.2-3b", ["llama-3.2-3b"]),
        (None, None),
    ],
)
def test_a_model_with_a_policy_is_that_model(
    tmp_path: Path, fleet: FleetConfig, name: str, models: list[str] | None
) -> None:
    keep(tmp_path / "named.db", [record(0, name)])
    url = f"sqlite+aiosqlite:///{tmp_path / 'named.db'}"
    (request,) = recorded_requests(url, fleet, None)[1]
    assert (request.routing or {}).get("models") == models
    (request,) = recorded_requests(url, None, None)[1]
    assert (request.routing or {}).get("models") == (["small"] if name == "small:price" else models)
