"""Requests that time ends: hard SLOs and the request's own limit, in the queue, at an engine, in mid-stream."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.gateway.live import events, fault, live, ollama, post, vllm

HARD_TTFT = {"slo": {"ttft_ms": 400}, "on_miss": "reject"}


async def test_a_hard_ttft_that_passes_at_an_engine(tmp_path):
    async with live(tmp_path, vllm("a"), ollama("b", "qwen2.5-7b", speed=200.0)) as gw:
        await gw.warm("b", "qwen2.5-7b")
        for model, name in (("llama-3.1-8b", "a"), ("qwen2.5-7b", "b")):
            for stream in (False, True):
                gw.engines[name].arm(fault("hang_before_first_token"))
                status, headers, answer = await gw.chat(
                    model=model, stream=stream, routing={"slo": {"ttft_ms": 500}, "on_miss": "reject"}
                )
                assert (status, answer["error"]["code"]) == (504, "ttft_timeout")
                assert headers["x-should-retry"] == "false"
                row = await gw.row(headers["x-request-id"])
                assert row["outcome"] == "expired_before_first_token"
                assert (row["decoded"], row["slo_met"], row["attempts"]) == (False, False, 1)
                assert row["ttft_s"] is None
                (attempt,) = await gw.gateway.store.attempts(row["id"])
                assert attempt["ended_how"] == "cancelled"
                # the engine is told to stop
                await gw.until(lambda name=name: not gw.engines[name].app.live)
                assert gw.instances[name].in_flight == 0


async def test_a_hard_ttft_that_passes_in_the_queue(tmp_path):
    async with (
        live(tmp_path, vllm("a", speed=1.0), instance={"a": {"max_concurrency": 1}}) as gw,
        gw.stream(model="small"),
    ):
        status, headers, answer = await gw.chat(model="small", routing=HARD_TTFT)
        assert (status, answer["error"]["code"]) == (504, "ttft_timeout")
        assert headers["x-should-retry"] == "false"
        row = await gw.row(headers["x-request-id"])
        assert (row["outcome"], row["attempts"], row["slo_met"]) == ("expired_in_queue", 0, False)
        assert row["queue_wait_s"] == row["e2e_s"] >= 0.4
        assert gw.gateway.runner.scheduler.queue_depth == 0


async def test_the_requests_own_time(tmp_path):
    instance = {"a": {"max_concurrency": 1}}
    limits = {"request_timeout_s": 0.4}
    async with live(tmp_path, vllm("a", speed=1.0), instance=instance, limits=limits) as gw:
        gw.engines["a"].arm(fault("hang_before_first_token"))
        first = asyncio.create_task(gw.chat(model="small"))
        await gw.until(lambda: gw.instances["a"].in_flight == 1)
        gw.engines["a"].arm(fault("hang_before_first_token"))
        status, headers, answer = await first
        assert (status, answer["error"]["code"]) == (504, "ttft_timeout")
        assert (await gw.row(headers["x-request-id"]))["outcome"] == "expired_before_first_token"
        gw.engines["a"].faults.clear()
        # After its first token an answer takes the time it takes.
        async with gw.stream(model="small", max_tokens=60) as response:
            status, headers, answer = await gw.chat(model="small")
            assert (status, answer["error"]["code"]) == (504, "ttft_timeout")
            row = await gw.row(headers["x-request-id"])
            assert (row["outcome"], row["slo_met"]) == ("expired_in_queue", None)
            assert events(await response.text())[-1] == "[DONE]"


async def test_a_hard_e2e_in_mid_stream(tmp_path):
    async with live(tmp_path, vllm("a"), ollama("b", "qwen2.5-7b")) as gw:
        await gw.warm("b", "qwen2.5-7b")
        for model, name in (("llama-3.1-8b", "a"), ("qwen2.5-7b", "b")):
            for policy in ("latency", "round_robin"):
                gw.engines[name].arm(fault("hang_mid_stream", after_tokens=3))
                routing = {"policy": policy, "slo": {"e2e_ms": 500}, "on_miss": "reject"}
                async with gw.stream(model=model, max_tokens=5, routing=routing) as response:
                    assert response.status == 200
                    got = events(await response.text())
                assert got[-1]["error"]["code"] == "deadline_exceeded"
                assert "[DONE]" not in got
                assert sum("error" in event for event in got) == 1
                row = await gw.row(response.headers["x-request-id"])
                assert (row["outcome"], row["decoded"], row["slo_met"]) == ("expired_mid_decode", True, False)
                assert row["output_tokens"] >= 1
                assert row["cost_usd"] > 0
                assert row["e2e_s"] == pytest.approx(0.5)


async def test_a_hard_e2e_without_streaming(tmp_path):
    async with live(tmp_path, vllm("a"), ollama("b", "qwen2.5-7b")) as gw:
        await gw.warm("b", "qwen2.5-7b")
        for model, name in (("llama-3.1-8b", "a"), ("qwen2.5-7b", "b")):
            gw.engines[name].arm(fault("hang_mid_stream", after_tokens=3))
            status, headers, answer = await gw.chat(
                model=model, max_tokens=5, routing={"slo": {"e2e_ms": 500}, "on_miss": "reject"}
            )
            assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
            assert headers["x-should-retry"] == "false"
            row = await gw.row(headers["x-request-id"])
            assert (row["outcome"], row["decoded"]) == ("expired_mid_decode", True)


async def test_a_hard_e2e_on_ollamas_api(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        gw.engines["a"].arm(fault("hang_mid_stream", after_tokens=3))
        body = {
            "model": "small",
            "messages": [{"role": "user", "content": "Hi"}],
            "options": {"num_predict": 5},
            "routing": {"slo": {"e2e_ms": 500}, "on_miss": "reject"},
        }
        async with gw.http.post(f"{gw.url}/api/chat", json=body) as response:
            assert response.status == 200
            lines = [json.loads(line) for line in (await response.text()).splitlines()]
        assert list(lines[-1]) == ["error"]
        assert not any(line.get("done") for line in lines)
        assert (await gw.row(response.headers["x-request-id"]))["outcome"] == "expired_mid_decode"


async def test_silence_in_mid_stream_is_the_idle_limit(tmp_path):
    async with live(tmp_path, vllm("a"), vllm("b"), limits={"idle_timeout_s": 0.4}) as gw:
        for engine in gw.engines.values():
            engine.arm(fault("hang_mid_stream", after_tokens=3))
        async with gw.stream(model="small", max_tokens=50) as response:
            got = events(await response.text())
        assert got[-1]["error"]["code"] == "upstream_error"
        assert "[DONE]" not in got
        row = await gw.row(response.headers["x-request-id"])
        assert (row["outcome"], row["decoded"], row["attempts"]) == ("backend_error", True, 1)
        # Not streaming, the other one answers in full.
        status, _headers, answer = await gw.chat(model="small", max_tokens=50)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 50)
        assert answer["headway"]["attempts"] in (1, 2)


async def test_a_slow_reader_does_not_trip_the_idle_limit(tmp_path):
    async with live(tmp_path, vllm("a", speed=300.0), limits={"idle_timeout_s": 0.2}) as gw:
        reader, writer = await asyncio.open_connection("127.0.0.1", gw.port, limit=1024)
        try:
            body = (
                b'{"model":"small","stream":true,"max_tokens":4000,"ignore_eos":true,'
                b'"messages":[{"role":"user","content":"Hello"}]}'
            )
            writer.write(post(body, b"connection: close"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(1.0)
            async with asyncio.timeout(20):
                rest = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
        assert b"data: [DONE]" in rest
        assert b'"error"' not in rest
        (row,) = await gw.rows()
        assert (row["outcome"], row["output_tokens"]) == ("ok", 4000)
