"""Every refusal of the contract that comes before an engine is asked: status, code, headers, row."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.gateway.live import MODELS, Live, bearer, key, live, vllm

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def refused(
    gw: Live, status: int, code: str, outcome: str, param: str | None = None, **body: Any
) -> Mapping[str, str]:
    """Ask, and check OpenAI's error shape and the row; gives the headers."""
    got, headers, answer = await gw.chat(**body)
    assert (got, list(answer)) == (status, ["error"]), answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    row = await gw.row(headers["x-request-id"])
    assert (row["outcome"], row["error_code"], row["decoded"]) == (outcome, code, False)
    assert (row["output_tokens"] or 0, row["cost_usd"] or 0, row["attempts"] or 0) == (0, 0, 0)
    return headers


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"routing": {"policy": "fastest"}}, "routing.policy"),
        ({"routing": {"models": ["nobody"]}}, "routing.models"),
        ({"headers": {"x-llm-d-slo-tpot-ms": "soon"}}, "x-llm-d-slo-tpot-ms"),
        ({"model": 7}, "model"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ],
)
async def test_bad_parameters_and_bad_bodies_are_400s_that_name_the_field(shared, body, param):
    await refused(shared, 400, "invalid_request", "rejected_invalid", param, **body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/v1/chat/completions", body) for body in (b"", b"{", b"7", b"\xff\xfe{}")),
        *((path, b"[]") for path in ("/v1/completions", "/v1/embeddings", "/api/chat")),
    ],
)
async def test_what_is_no_json_object_is_a_400_with_a_row(shared, path, body):
    async with shared.http.post(shared.url + path, data=body) as response:
        answer = await response.json()
        assert response.status == 400
        if path.startswith("/api"):
            assert isinstance(answer["error"], str)
        else:
            assert answer["error"]["code"] == "invalid_request"
        row = await shared.row(response.headers["x-request-id"])
    assert (row["outcome"], row["error_code"]) == ("rejected_invalid", "invalid_request")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/routing/predict"])
async def test_a_compressed_body_is_a_415(shared, path):
    headers = {"content-encoding": "gzip"}
    async with shared.http.post(shared.url + path, data=b"\x1f\x8b", headers=headers) as response:
        assert (response.status, "Content-Encoding" in await response.text()) == (415, True)
        if path != "/v1/routing/predict":
            row = await shared.row(response.headers["x-request-id"])
            assert (row["outcome"], row["error_code"]) == ("rejected_invalid", "unsupported_media_type")
    async with shared.http.get(shared.url + "/healthz", headers=headers) as response:
        assert response.status == 200


async def test_unknown_models(shared):
    await refused(shared, 404, "model_not_found", "rejected_invalid", "model", model="gpt-9")
    await refused(shared, 404, "model_not_found", "rejected_invalid", "model", model="gpt-9:latency")
    for path in ("chat", "generate", "embed"):
        body = {"model": "gpt-9", "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
        async with shared.http.post(f"{shared.url}/api/{path}", json=body) as response:
            assert (response.status, await response.json()) == (404, {"error": "model 'gpt-9' not found"})
            row = await shared.row(response.headers["x-request-id"])
        assert (row["outcome"], row["error_code"]) == ("rejected_invalid", "model_not_found")
        assert row["model_requested"] == "gpt-9"


async def test_a_prompt_over_every_context(shared):
    headers = await refused(
        shared,
        400,
        "context_length_exceeded",
        "rejected_invalid",
        "messages",
        messages=[{"role": "user", "content": "word " * 20_000}],
    )
    assert "retry-after" not in {name.lower() for name in headers}


@pytest.mark.parametrize(
    ("path", "field", "prompt"),
    [
        ("completions", "prompt", "word " * 20_000),
        ("completions", "prompt", ["word " * 20_000, "word " * 20_000]),
        ("embeddings", "input", "word " * 20_000),
        ("responses", "input", "word " * 20_000),
    ],
)
async def test_the_refusal_names_the_field_and_the_tokens_of_the_longest_prompt(shared, path, field, prompt):
    status, answer = await shared.post(f"/v1/{path}", {"model": MODELS[0]["name"], field: prompt})
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert 20_000 <= int(answer["error"]["message"].split()[4]) < 30_000  # not the sum of both


async def test_money_and_quality_out_of_reach(shared):
    await refused(
        shared,
        400,
        "budget_unattainable",
        "rejected_budget",
        "routing.max_cost_usd",
        routing={"max_cost_usd": 1e-9},
    )
    headers = await refused(
        shared,
        400,
        "quality_unattainable",
        "rejected_invalid",
        "routing.min_quality",
        routing={"min_quality": 0.99},
    )
    _, told = await shared.get(f"/admin/requests/{headers['x-request-id']}")
    assert {each["reason"] for each in told["candidates"]} == {"quality below 0.99"}
    assert told["decisions"][0]["decided_after_s"] >= 0
    status, _, answer = await shared.chat(routing={"min_quality": 0.55})
    assert (status, answer["model"]) == (200, "qwen2.5-7b")


async def test_a_hard_slo_out_of_reach(shared):
    for policy in ("latency", "round_robin"):
        headers = await refused(
            shared,
            429,
            "slo_unattainable",
            "rejected_slo",
            "routing.slo",
            routing={"policy": policy, "slo": {"ttft_ms": 0.01}, "on_miss": "reject"},
        )
        assert int(headers["Retry-After"]) >= 1
        assert headers["x-should-retry"] == "false"
        row = await shared.row(headers["x-request-id"])
        assert (row["slo_met"], row["slo_ttft_s"]) == (False, pytest.approx(1e-5))
        _, told = await shared.get(f"/admin/requests/{row['id']}")
        assert told["why"][0] == "no candidate could take it"
        assert told["why"][1].startswith("nearest ")
        for each in told["candidates"]:
            assert (each["chosen"], each["score"]) == (False, each["predicted"]["p_miss"])
            assert each["reason"].startswith("would miss its hard SLO with probability ")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"routing": {"slo": {"ttft_ms": 0.01}, "on_miss": "reject"}}, "would miss its hard SLO"),
        ({"routing": {"min_quality": 0.99}}, "quality below 0.99"),
        (
            {"messages": [{"role": "user", "content": "word " * 20_000}]},
            "context of 8192 tokens is too short",
        ),
    ],
)
async def test_a_dry_run_names_what_speaks_against_each_candidate(shared, more, reason):
    """As the record of the request itself does."""
    status, headers, answer = await shared.chat(**more)
    _, told = await shared.get(f"/v1/routing/{headers['x-request-id']}")
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **more}
    dry_status, dry = await shared.post("/v1/routing/predict", body)
    assert (dry_status, dry["error"]["code"]) == (status, answer["error"]["code"])
    assert len(dry["candidates"]) == 3
    for each, real in zip(dry["candidates"], told["candidates"], strict=True):
        assert reason in each["reason"]
        assert (each["instance"], each["model"], each["chosen"]) == (real["instance"], real["model"], False)


async def test_a_body_over_the_limit(tmp_path):
    async with live(tmp_path, vllm("a"), limits={"max_body_mb": 1}) as gw:

        async def refused_413(body: Any) -> None:
            async with gw.http.post(f"{gw.url}/v1/chat/completions", data=body) as response:
                assert response.status == 413
                assert (await response.json())["error"]["code"] == "request_too_large"
                row = await gw.row(response.headers["x-request-id"])
            assert (row["outcome"], row["error_code"]) == ("rejected_invalid", "request_too_large")

        async def pieces():
            for _ in range(40):
                yield b"x" * 65536

        await refused_413(io.BytesIO(b"x" * 1_100_000))
        await refused_413(pieces())  # chunked: its length is not told
        async with gw.http.post(f"{gw.url}/api/chat", data=io.BytesIO(b"x" * 1_100_000)) as response:
            assert response.status == 413
            assert isinstance((await response.json())["error"], str)
        assert (await gw.chat())[0] == 200


async def test_missing_and_wrong_keys(tmp_path):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("sesame")]}) as gw:
        for headers in (
            None,
            bearer("wrong"),
            {"Authorization": "Basic c2VzYW1l"},
            {"Authorization": "Bearer"},
        ):
            got = await refused(gw, 401, "invalid_api_key", "rejected_auth", headers=headers)
            assert got["www-authenticate"] == "Bearer"
        body = {"model": "small", "messages": [{"role": "user", "content": "x"}]}
        async with gw.http.post(f"{gw.url}/api/chat", json=body) as response:
            assert response.status == 401
            assert isinstance((await response.json())["error"], str)
            row = await gw.row(response.headers["x-request-id"])
        assert (row["outcome"], row["key_name"]) == ("rejected_auth", None)
        for path in (
            "/v1/models",
            "/v1/models/small",
            "/v1/routing/x",
            "/api/tags",
            "/api/ps",
            "/api/version",
        ):
            assert (await gw.get(path))[0] == 401, path
            assert (await gw.get(path, headers=bearer("sesame")))[0] == (404 if "routing" in path else 200), (
                path
            )
        for path in ("/v1/routing/predict", "/v1/feedback", "/api/show"):
            assert (await gw.post(path, {}))[0] == 401, path
        for path in ("/healthz", "/readyz"):
            assert (await gw.get(path))[0] == 200
        assert await gw.metrics()
        status, headers, _ = await gw.chat(headers=bearer("sesame"))
        assert status == 200
        assert (await gw.row(headers["x-request-id"]))["key_name"] == "sesame"


async def test_over_a_rate_limit(tmp_path):
    keys = [key("slow", requests_per_minute=1), key("words", tokens_per_minute=1000)]
    async with live(tmp_path, vllm("a"), auth={"keys": keys}) as gw:
        for name, kind, limit in (("slow", "requests", "1"), ("words", "tokens", "1000")):
            status, headers, _ = await gw.chat(headers=bearer(name))
            assert (status, headers[f"x-ratelimit-limit-{kind}"]) == (200, limit)
            much = {"max_tokens": 5000, "headers": bearer(name)}
            headers = await refused(gw, 429, "rate_limit_exceeded", "rejected_rate", **much)
            assert int(headers["Retry-After"]) >= 1
            assert "x-should-retry" not in headers
        body = {"model": "small", "messages": [{"role": "user", "content": "x"}]}
        async with gw.http.post(f"{gw.url}/api/chat", json=body, headers=bearer("slow")) as response:
            assert (response.status, response.headers["Retry-After"] >= "1") == (429, True)
            assert isinstance((await response.json())["error"], str)


@pytest.mark.parametrize("max_queue", [0, 1])
async def test_a_full_queue(tmp_path, max_queue):
    instance = {"a": {"max_concurrency": 1}}
    async with live(tmp_path, vllm("a", speed=1.0), instance=instance, limits={"max_queue": max_queue}) as gw:
        async with gw.stream(model="small"):
            waiting = [asyncio.create_task(gw.chat(model="small")) for _ in range(max_queue)]
            await gw.until(lambda: gw.gateway.runner.scheduler.queue_depth == max_queue)
            headers = await refused(gw, 503, "server_overloaded", "rejected_overload", model="small")
            assert int(headers["Retry-After"]) >= 1
            body = {"model": "small", "messages": [{"role": "user", "content": "x"}]}
            async with gw.http.post(f"{gw.url}/api/chat", json=body) as response:
                assert response.status == 503
                assert isinstance((await response.json())["error"], str)
        for status, headers, _ in await asyncio.gather(*waiting):
            assert status == 200
            assert (await gw.row(headers["x-request-id"]))["queue_wait_s"] > 0


async def test_no_live_instance_and_no_instance_at_all(tmp_path):
    async with live(tmp_path, vllm("a"), probes={"interval_s": 0.05, "eject_after": 1}) as gw:
        headers = await refused(gw, 503, "no_instance", "rejected_no_instance", model="qwen2.5-7b")
        assert int(headers["Retry-After"]) >= 1
        gw.engines["a"].kill()
        await gw.until(lambda: not gw.instances["a"].healthy)
        await refused(gw, 503, "no_instance", "rejected_no_instance", model="small")
        status, answer = await gw.post("/api/generate", {"model": "small", "prompt": "Hi"})
        assert (status, list(answer)) == (503, ["error"])


async def test_while_draining(tmp_path):
    async with (
        live(tmp_path, vllm("a", speed=1.0)) as gw,
        gw.stream(model="small", max_tokens=60) as response,
    ):
        gw.gateway.draining = True
        headers = await refused(gw, 503, "no_instance", "rejected_no_instance")
        assert int(headers["Retry-After"]) >= 1
        assert (await gw.get("/readyz"))[0] == 503
        assert (await gw.get("/healthz"))[0] == 200
        assert "[DONE]" in await response.text()  # what was under way goes on
