"""What a client may ask, in which spelling, and what it sees of the choice."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.gateway.live import bearer, events, key, live, ollama, vllm
from tests.metrics_page import metrics_text

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("asked", "model", "policy"),
    [
        ("small:latest", "llama-3.1-8b", "latency"),
        ("qwen2.5-7b:latest:round_robin", "qwen2.5-7b", "round_robin"),
        ("auto:price", "qwen2.5-7b", "price"),
    ],
)
async def test_names_and_suffixes(shared, asked, model, policy):
    status, headers, answer = await shared.chat(model=asked)
    assert (status, answer["model"], answer["headway"]["policy"]) == (200, model, policy)
    assert headers["x-headway-model"] == model
    row = await shared.row(headers["x-request-id"])
    assert (row["model_requested"], row["model"], row["policy"]) == (asked, model, policy)
    # Ollama's API echoes the name as asked, in a stream and out of it.
    body = {"model": asked, "messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 2}}
    status, answer = await shared.post("/api/chat", body | {"stream": False})
    assert (status, answer["model"], answer["headway"]["model"]) == (200, asked, model)
    async with shared.http.post(f"{shared.url}/api/chat", json=body) as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    assert {line["model"] for line in lines} == {asked}


async def test_every_header_is_read(shared):
    headers = {
        "X-Headway-Policy": "round_robin",
        "x-headway-ttft-ms": "60000",
        "x-headway-tpot-ms": "500.5",
        "x-headway-e2e-ms": "9e4",
        "x-headway-on-miss": "reject",
        "x-headway-max-cost-usd": "0.01",
        "x-headway-min-quality": "0.55",
        "x-headway-models": "small, qwen2.5-7b",
        "x-headway-priority": "3",
        "x-llm-d-slo-ttft-ms": "1",
    }
    status, answered, answer = await shared.chat(headers=headers)
    assert (status, answer["model"]) == (200, "qwen2.5-7b")
    row = await shared.row(answered["x-request-id"])
    assert (row["slo_ttft_s"], row["slo_tpot_s"], row["slo_e2e_s"]) == (60.0, 0.5005, 90.0)
    assert (row["policy"], row["max_cost_usd"], row["slo_met"]) == ("round_robin", 0.01, True)
    llm_d = {"x-llm-d-slo-ttft-ms": "700", "x-llm-d-slo-tpot-ms": "90"}
    _, answered, _ = await shared.chat(headers=llm_d)
    row = await shared.row(answered["x-request-id"])
    assert (row["slo_ttft_s"], row["slo_tpot_s"], row["slo_e2e_s"]) == (0.7, 0.09, None)


async def test_the_answers_headers_and_its_headway_object(shared):
    client_id = {"x-request-id": "mine", "x-stainless-retry-count": "2"}
    _status, headers, answer = await shared.chat(model="small", headers=client_id)
    request_id = headers["x-request-id"]
    assert request_id != "mine"
    assert headers["openai-processing-ms"].isdigit()
    assert float(headers["x-headway-predicted-ttft-ms"]) > 0
    assert float(headers["x-headway-predicted-cost-usd"]) > 0
    told = answer["headway"]
    assert set(told) >= {
        "request_id", "policy", "model", "instance", "attempts", "ttft_ms", "e2e_ms", "cost_usd",
        "predicted", "slo_met", "outcome",
    }  # fmt: skip
    assert told["request_id"] == request_id
    assert (told["attempts"], told["slo_met"], told["outcome"]) == (1, None, "ok")
    assert told["instance"] == headers["x-headway-instance"]
    assert set(answer["usage"]) <= {
        "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details",
        "completion_tokens_details",
    }  # fmt: skip
    row = await shared.row(request_id)
    assert (row["client_request_id"], row["retry_count"], row["api"]) == ("mine", 2, "chat")
    assert row["cost_usd"] == pytest.approx(told["cost_usd"])
    price = (row["prompt_tokens"] * 0.05 + row["output_tokens"] * 0.25) / 1e6
    assert row["cost_usd"] == pytest.approx(price)
    assert row["finish_reason"] == answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == row["prompt_tokens"]


async def test_predict_is_a_dry_run(shared):
    rows = len(await shared.rows())
    before = metrics_text(shared.gateway)
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    status, told = await shared.post("/v1/routing/predict", body)
    assert status == 200
    assert {(c["instance"], c["model"]) for c in told["candidates"]} == {
        ("a", "llama-3.1-8b"), ("b", "qwen2.5-7b"), ("c", "llama-3.1-8b"),
    }  # fmt: skip
    (chosen,) = [candidate for candidate in told["candidates"] if candidate["chosen"]]
    assert (chosen["instance"], chosen["model"], chosen["reason"]) == (told["instance"], told["model"], None)
    for candidate in told["candidates"]:
        assert set(candidate) == {"instance", "model", "score", "chosen", "reason", "predicted"}
        assert set(candidate["predicted"]) == {
            "output_tokens_p50", "output_tokens_p90", "ttft_s_p50", "ttft_s_p95", "e2e_s_p50", "e2e_s_p95",
            "quality", "cost_usd", "p_miss",
        }  # fmt: skip
        assert candidate["predicted"]["ttft_s_p50"] > 0
        assert candidate["chosen"] or candidate["reason"]
    for extra in ({"prompt": "Hello"}, {"input": "Hello"}):
        assert (await shared.post("/v1/routing/predict", {"model": "small", **extra}))[0] == 200
    assert len(await shared.rows()) == rows
    told = [line for line in metrics_text(shared.gateway).splitlines() if b"headway_requests" in line]
    assert told == [line for line in before.splitlines() if b"headway_requests" in line]


async def test_predict_refuses_as_the_request_would_be(shared):
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}
    for change, status, code in (
        ({"model": "gpt-9"}, 404, "model_not_found"),
        ({"routing": {"policy": "fastest"}}, 400, "invalid_request"),
        ({"routing": {"max_cost_usd": 1e-9}}, 400, "budget_unattainable"),
        ({"routing": {"min_quality": 0.99}}, 400, "quality_unattainable"),
        ({"messages": 7}, 400, "invalid_request"),
    ):
        got, answer = await shared.post("/v1/routing/predict", body | change)
        assert (got, answer["error"]["code"]) == (status, code)


async def test_a_seed_fixes_the_choice(tmp_path):
    async with live(tmp_path, *(vllm(name) for name in "abcd")) as gw:

        async def chosen(**routing):
            _, headers, _ = await gw.chat(routing={"policy": "random"} | routing)
            return headers["x-headway-instance"]

        assert len({await chosen(seed=1) for _ in range(10)}) == 1
        assert len({await chosen() for _ in range(10)}) > 1


async def test_priority_goes_first_and_is_capped_by_the_key(tmp_path):
    keys = [key("low", max_priority=1), key("high", max_priority=9)]
    async with live(
        tmp_path, vllm("a", speed=1.0), instance={"a": {"max_concurrency": 1}}, auth={"keys": keys}
    ) as gw:
        order = []

        async def ask(name, priority):
            status, _, _ = await gw.chat(
                model="small", max_tokens=1, routing={"priority": priority}, headers=bearer(name)
            )
            order.append((name, priority))
            assert status == 200

        async with gw.stream(model="small", headers=bearer("low")):
            tasks = []
            for depth, (name, priority) in enumerate(
                [("low", 100), ("high", 0), ("high", 5), ("high", 2)], 1
            ):
                tasks.append(asyncio.create_task(ask(name, priority)))
                await gw.until(lambda depth=depth: gw.gateway.runner.scheduler.queue_depth == depth)
        await asyncio.gather(*tasks)
        assert order == [("high", 5), ("high", 2), ("low", 100), ("high", 0)]


async def test_what_a_key_fixes(tmp_path):
    keys = [
        key("locked", policy="price", locked=True),
        key("free", policy="price"),
        key("capped", max_cost_usd=0.00001, min_quality=0.55),
    ]
    async with live(tmp_path, vllm("a"), vllm("b", "qwen2.5-7b"), auth={"keys": keys}) as gw:

        async def policy(name, **body):
            status, _, answer = await gw.chat(headers=bearer(name), **body)
            assert status == 200, answer
            return answer["headway"]["policy"]

        assert await policy("locked", model="auto:slo", routing={"policy": "lmetric"}) == "price"
        assert await policy("free") == "price"
        assert await policy("free", model="auto:slo") == "slo"
        loosened = {"max_cost_usd": 1.0, "min_quality": 0.1}
        status, headers, answer = await gw.chat(
            headers=bearer("capped"), max_tokens=4000, routing=loosened, ignore_eos=True
        )
        assert (status, answer["model"]) == (200, "qwen2.5-7b")  # the only one of that quality
        assert answer["headway"]["outcome"] == "budget_exhausted_mid_decode"
        row = await gw.row(headers["x-request-id"])
        assert row["max_cost_usd"] == 0.00001


async def test_what_happened_is_told_to_the_callers_key_only(tmp_path):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("one"), key("two")]}) as gw:
        _, headers, _ = await gw.chat(headers=bearer("one"))
        request_id = headers["x-request-id"]
        path = f"/v1/routing/{request_id}"
        status, told = await gw.get(path, headers=bearer("one"))
        assert (status, told["request_id"], told["outcome"]) == (200, request_id, "ok")
        assert told["candidates"][0]["chosen"] is True
        (attempt,) = told["attempts"]
        assert set(attempt) == {
            "request_id", "number", "instance", "model", "started_at", "first_token_at", "ended_at",
            "output_tokens", "cost_usd", "ended_how", "error",
        }  # fmt: skip
        assert (await gw.get(path, headers=bearer("two")))[0] == 404
        assert (await gw.get("/v1/routing/req_none", headers=bearer("one")))[0] == 404
        given = {"request_id": request_id, "quality": 0.75}
        assert (await gw.post("/v1/feedback", given, headers=bearer("two")))[0] == 404
        assert (await gw.post("/v1/feedback", given, headers=bearer("one")))[0] == 200
        _, told = await gw.get(path, headers=bearer("one"))
        assert [each["quality"] for each in told["feedback"]] == [0.75]
        for bad in ({"quality": 2}, {"quality": "good"}, {"quality": None}, {"stars": 5}, {"request_id": 7}):
            status, answer = await gw.post("/v1/feedback", given | bad, headers=bearer("one"))
            assert (status, answer["error"]["code"]) == (400, "invalid_request")
            assert answer["error"]["param"] == next(iter(bad))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["vllm", "ollama"])
async def test_an_answer_cut_by_money(tmp_path, kind, stream):
    engine = vllm("a") if kind == "vllm" else ollama("a", "llama-3.1-8b")
    async with live(tmp_path, engine) as gw:
        cap = 0.00001
        async with gw.stream(
            model="small",
            stream=stream,
            max_tokens=1000,
            ignore_eos=True,
            stream_options={"include_usage": True},
            routing={"max_cost_usd": cap},
        ) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
        if stream:
            got = events(text)
            assert got[-1] == "[DONE]"
            last = got[-2]
            finish = [e["choices"][0]["finish_reason"] for e in got[:-1] if e["choices"]][-1]
        else:
            last = json.loads(text)
            finish = last["choices"][0]["finish_reason"]
        assert (finish, last["headway"]["outcome"]) == ("length", "budget_exhausted_mid_decode")
        row = await gw.row(response.headers["x-request-id"])
        assert (row["outcome"], row["finish_reason"]) == ("budget_exhausted_mid_decode", "length")
        assert row["output_tokens"] == last["usage"]["completion_tokens"] > 10
        assert row["cost_usd"] <= cap + 0.25e-6
        assert row["budget_overrun_usd"] <= 0.25e-6
        # An answer that the client's own bound ends is no cut.
        _, _, answer = await gw.chat(model="small", max_tokens=3, routing={"max_cost_usd": cap})
        assert (answer["choices"][0]["finish_reason"], answer["headway"]["outcome"]) == ("length", "ok")
