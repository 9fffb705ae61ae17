"""Health, metrics and the API's own description."""

from __future__ import annotations

import asyncio

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.gateway.live import fault, live, ollama, vllm


async def metrics(gw):
    async with gw.http.get(f"{gw.url}/metrics") as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(family, **labels):
    return sum(
        sample.value
        for sample in family.samples
        if sample.name in (family.name, f"{family.name}_total", f"{family.name}_count")
        and labels.items() <= sample.labels.items()
    )


async def test_the_metrics_of_the_contract(tmp_path):
    async with live(tmp_path, vllm("a"), ollama("b", "qwen2.5-7b")) as gw:
        empty = await metrics(gw)
        assert value(empty["headway_instance_health"], instance="a") == 1
        for body in (
            {"model": "small", "routing": {"slo": {"ttft_ms": 60000}}},
            {"model": "small", "routing": {"slo": {"ttft_ms": 0.01}}},
            {"model": "qwen2.5-7b:price"},
            {"model": "gpt-9"},
            {"model": "small", "routing": {"slo": {"ttft_ms": 0.01}, "on_miss": "reject"}},
        ):
            await gw.chat(**body)
        found = await metrics(gw)
        assert {
            "gen_ai_server_time_to_first_token_seconds",
            "gen_ai_server_time_per_output_token_seconds",
            "gen_ai_server_request_duration_seconds",
            "gen_ai_client_token_usage",
            "headway_requests",
            "headway_queue_depth",
            "headway_slo_offered",
            "headway_slo_met",
            "headway_prediction_ttft_ratio",
            "headway_spend_usd",
            "headway_budget_overruns",
            "headway_instance_health",
            "headway_decision_seconds",
            "headway_desired_replicas",
        } <= set(found)
        requests = found["headway_requests"]
        assert value(requests, model="llama-3.1-8b", instance="a", outcome="ok", policy="latency") == 1
        assert value(requests, outcome="late") == 1
        assert value(requests, policy="price", model="qwen2.5-7b", instance="b", outcome="ok") == 1
        assert value(requests, outcome="rejected_invalid") == 1
        assert value(requests, outcome="rejected_slo") == 1
        assert value(requests) == 5
        assert (value(found["headway_slo_offered"]), value(found["headway_slo_met"])) == (3, 1)
        assert value(found["headway_spend_usd"]) == pytest.approx(
            sum(r["cost_usd"] or 0 for r in await gw.rows())
        )
        assert value(found["gen_ai_server_time_to_first_token_seconds"]) == 3
        assert value(found["headway_decision_seconds"]) == 4
        # A client's own unknown names make no series.
        assert not any("gpt-9" in sample.labels.values() for f in found.values() for sample in f.samples)


async def test_the_start_of_a_gateway_is_no_stall(tmp_path):
    """`router.process` measures stalls from when it accepts connections."""
    async with live(tmp_path, vllm("a")) as gw:
        await asyncio.sleep(0.1)
        assert value((await metrics(gw))["headway_event_loop_stall_seconds"]) == 0


async def test_health_of_instances_is_told(tmp_path):
    async with live(
        tmp_path, vllm("a"), probes={"interval_s": 0.05, "eject_after": 1, "return_after": 1}
    ) as gw:
        for path in ("/healthz", "/health"):
            assert await gw.get(path) == (200, {"status": "ok"})
        assert await gw.get("/readyz") == (200, {"status": "ready"})
        gw.engines["a"].arm(fault("unhealthy", for_s=60))
        await gw.until(lambda: not gw.instances["a"].healthy)
        assert (await gw.get("/healthz"))[0] == 200
        assert (await gw.get("/readyz"))[0] == 503
        found = await metrics(gw)
        assert value(found["headway_instance_health"], instance="a") == 0
        assert value(found["headway_instance_ejections"], instance="a") == 1


async def test_prompts_stand_nowhere(tmp_path, caplog):
    secret = "a-word-that-nobody-else-says"
    caplog.set_level("DEBUG")
    async with live(tmp_path, vllm("a"), vllm("b")) as gw:
        messages = [{"role": "user", "content": secret}]
        _, headers, _ = await gw.chat(model="small", messages=messages)
        for engine in gw.engines.values():
            engine.arm(fault("status", status=500))
        _, _, failed = await gw.chat(model="small", messages=messages)
        _, _, refused = await gw.chat(model="small", messages=messages, max_tokens=0)
        _, told = await gw.get(f"/admin/requests/{headers['x-request-id']}")
        page = await gw.metrics()
    for where in (failed, refused, told, page, caplog.text):
        assert secret not in str(where)
    assert secret.encode() not in (tmp_path / "headway.db").read_bytes()


async def test_the_description_is_valid_and_whole(shared_description):
    document = shared_description
    assert document["openapi"].startswith("3.1.")
    paths = document["paths"]
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/api/chat", "/api/generate"):
        assert "post" in paths[path], path
    for path, method in (
        ("/api/embed", "post"),
        ("/api/show", "post"),
        ("/api/tags", "get"),
        ("/api/ps", "get"),
        ("/api/version", "get"),
        ("/v1/models", "get"),
        ("/v1/routing/predict", "post"),
        ("/v1/routing/{request_id}", "get"),
        ("/v1/feedback", "post"),
        ("/healthz", "get"),
        ("/health", "get"),
        ("/readyz", "get"),
        ("/metrics", "get"),
        ("/admin/fleet", "get"),
        ("/admin/instances", "post"),
        ("/admin/instances/{name}", "delete"),
        ("/admin/requests", "get"),
        ("/admin/requests/{request_id}", "get"),
        ("/admin/reload", "post"),
        ("/admin/scaling", "get"),
    ):
        assert method in paths[path], path
    identifiers = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(identifiers) == len(set(identifiers))
    # Every schema is JSON Schema 2020-12, which is what OpenAPI 3.1 takes, and every reference resolves.
    seen = 0
    for schema in schemas(document):
        jsonschema.Draft202012Validator.check_schema(schema)
        seen += 1
    assert seen > 30
    for reference in references(document):
        here = document
        for part in reference.removeprefix("#/").split("/"):
            here = here[part.replace("~1", "/")]


@pytest.fixture
async def shared_description(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        status, document = await gw.get("/openapi.json")
        assert status == 200
        yield document


def schemas(node):
    """Every schema of the document."""
    if isinstance(node, dict):
        if isinstance(node.get("schema"), dict):
            yield node["schema"]
        if isinstance(node.get("schemas"), dict):
            yield from node["schemas"].values()
        for member in node.values():
            yield from schemas(member)
    elif isinstance(node, list):
        for member in node:
            yield from schemas(member)


def references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for member in node.values():
            yield from references(member)
    elif isinstance(node, list):
        for member in node:
            yield from references(member)
