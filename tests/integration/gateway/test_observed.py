"""What operators see of requests from outside: spans at a collector and at the engine, log lines, budgets and live
requests in the metrics; and instances that are found by label."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from router.discovery import ANNOTATION
from tests.contract.backends.fakes import FakeEngine
from tests.integration.gateway.live import live, vllm
from tests.integration.gateway.staged import says, staged
from tests.unit.discovery.cluster import cluster, pod

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.real_time  # spans leave from a thread of the exporter
async def test_a_request_is_traced_through_to_its_engine(tmp_path: Path) -> None:
    async with FakeEngine(lambda exchange: exchange.answer(200, b"")) as collector:
        traces = {"enabled": True, "endpoint": f"{collector.url}/v1/traces"}
        async with staged(
            tmp_path, says("Hi"), says("Hi"), kind="openai", engines="e", observability={"traces": traces}
        ) as (gw, stage):
            status, headers, _ = await gw.chat(headers={"traceparent": CALLER})
            assert status == 200
            assert (await gw.chat(model="nothing", headers={"traceparent": CALLER}))[0] == 404
            # no spans of its own, and the engine is not to make any
            assert (await gw.chat(headers={"traceparent": CALLER[:-2] + "00"}))[0] == 200
    spans = [
        span
        for request in collector.requests
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len(spans) == 4
    told = {span.name: span for span in spans}
    assert {span.trace_id.hex() for span in spans} == {CALLER[3:35]}
    answered, attempt = told["chat llama-3.1-8b"], told["attempt e"]
    attributes = {each.key: each.value for each in answered.attributes}
    assert attributes["headway.request_id"].string_value == headers["x-request-id"]
    assert answered.parent_span_id.hex() == CALLER[36:52]
    assert attempt.parent_span_id == answered.span_id
    assert stage.headers[0]["traceparent"] == f"00-{CALLER[3:35]}-{attempt.span_id.hex()}-01"
    assert re.fullmatch(f"00-{CALLER[3:35]}-[0-9a-f]{{16}}-00", stage.headers[1]["traceparent"])
    refused = {each.key: each.value.string_value for each in told["chat"].attributes}
    assert refused["error.type"] == "rejected_invalid"


async def test_engines_hear_of_no_trace_where_none_is_made(tmp_path: Path) -> None:
    async with staged(tmp_path, says("Hi"), kind="openai") as (gw, stage):
        assert (await gw.chat(headers={"traceparent": CALLER}))[0] == 200
    assert "traceparent" not in stage.headers[0]


async def test_each_request_has_a_log_line_without_its_prompt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with live(tmp_path, vllm("a"), observability={"log_requests": True}) as gw:
        _, headers, _ = await gw.chat(messages=[{"role": "user", "content": "the secret prompt"}])
        assert (await gw.chat(model="nothing"))[0] == 404
    lines = [record.__dict__["fields"] for record in caplog.records if record.name == "headway.requests"]
    answered, refused = lines
    assert answered["request_id"] == headers["x-request-id"]
    assert (answered["outcome"], answered["instance"], answered["attempts"]) == ("ok", "a", 1)
    assert (refused["outcome"], refused["error_code"]) == ("rejected_invalid", "model_not_found")
    assert "secret" not in json.dumps(lines) + caplog.text


def sample(page: str, name: str) -> float:
    """The value of one sample of a metrics page."""
    (line,) = [line for line in page.splitlines() if line.startswith(name + " ")]
    return float(line.rpartition(" ")[2])


async def test_metrics_tell_of_budgets_and_live_requests(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sk").hexdigest()
    auth = {"keys": [{"name": "k", "sha256": digest, "budget_usd_per_day": 2.0}]}
    async with live(tmp_path, vllm("a"), auth=auth) as gw:
        headers = {"authorization": "Bearer sk"}
        async with gw.stream(headers=headers) as response:
            await response.content.readany()
            page = await gw.metrics()
            assert sample(page, "headway_live_requests") == 1
            assert sample(page, 'headway_instance_serves{instance="a",model="llama-3.1-8b"}') == 1
        assert (await gw.chat(headers=headers))[0] == 200
        await gw.until(lambda: not gw.gateway.runner.scheduler.live)
        rows = await gw.rows()
        page = await gw.metrics()
        spent = sum(row["cost_usd"] or 0.0 for row in rows)
        assert spent > 0
        assert sample(page, 'headway_key_spent_usd{key="k",period="day"}') == pytest.approx(spent)
        assert sample(page, 'headway_key_budget_usd{key="k",period="day"}') == 2.0
        assert 'period="total"' not in page
        assert sample(page, "headway_replicas") == 1
        assert sample(page, 'headway_attempts_total{policy="latency"}') == 2


async def test_pods_become_instances_and_go_again(tmp_path: Path) -> None:
    async with cluster() as (state, url):
        entry: dict[str, Any] = {
            "kubernetes": {"selector": "app=vllm", "namespace": "llm", "server": url},
            "instance": {"kind": "vllm", "serves": {"llama-3.1-8b": "llama-3.1-8b"}, "max_concurrency": 8},
        }
        async with live(tmp_path, vllm("a"), discovery=[entry]) as gw:
            await state.put(pod("pod-1", "127.0.0.1"))
            await state.put(pod("a", "127.0.0.1"))  # its name is taken
            other = {ANNOTATION: '{"serves": {"another": "model"}}'}
            await state.put(pod("odd", "127.0.0.1", annotations=other))  # the fleet has no such model
            await gw.until(lambda: "pod-1" in gw.instances)
            assert gw.instances["pod-1"].max_concurrency == 8
            # an operator takes one out, and it stays out though its pod goes on
            assert (await gw.delete("/admin/instances/a"))[0] == 200
            assert set(gw.instances) == {"pod-1"}
            _, fleet = await gw.get("/admin/fleet")
            assert [each["name"] for each in fleet["instances"]] == ["pod-1"]
            # a reload brings back what the file has, and keeps what is found
            assert (await gw.post("/admin/reload", {}))[0] == 200
            assert set(gw.instances) == {"a", "pod-1"}
            await state.delete("pod-1")
            await gw.until(lambda: "pod-1" not in gw.instances)
            assert (await gw.chat())[0] == 200


@pytest.mark.parametrize("kept", [False, True])
async def test_prompts_are_stored_only_if_the_fleet_file_says_so(tmp_path: Path, kept: bool) -> None:
    file = tmp_path / "store.db"
    store = {"url": f"sqlite+aiosqlite:///{file}", "keep_prompts": kept}
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who am I?"}]
    async with live(tmp_path, vllm("a"), store=store) as gw:
        assert (await gw.chat(messages=chat))[0] == 200
    with closing(sqlite3.connect(file)) as database:
        stored = database.execute("SELECT prompt FROM explanations").fetchall()
    assert stored == [("Be brief.\nWho am I?" if kept else None,)]
    assert kept or not any(b"Who am I" in each.read_bytes() for each in tmp_path.glob("store.db*"))
