"""A request's whole way through a real gateway over real sockets."""

from __future__ import annotations

import policies
from tests.integration.gateway.live import live, ollama, vllm


async def test_each_policy_answers_and_is_recorded(tmp_path):
    async with live(tmp_path, vllm("a"), vllm("b", "qwen2.5-7b"), ollama("c", "llama-3.1-8b")) as gw:
        for name in policies.POLICIES:
            status, headers, answer = await gw.chat(routing={"policy": name})
            assert status == 200, answer
            assert answer["choices"][0]["message"]["content"]
            assert answer["headway"]["policy"] == headers["x-headway-policy"] == name
            row = await gw.row(headers["x-request-id"])
            assert (row["outcome"], row["policy"]) == ("ok", name)
            assert (row["output_tokens"], row["decoded"]) == (4, True)
            assert 0 < row["ttft_s"] <= row["e2e_s"]
            assert row["cost_usd"] > 0
        assert len(await gw.rows()) == len(policies.POLICIES)


async def test_an_engine_that_dies_in_mid_stream_is_told_recorded_and_avoided(tmp_path):
    async with live(tmp_path, vllm("a", speed=1.0), vllm("b", speed=1.0)) as gw:
        body = {
            "model": "small",
            "stream": True,
            "max_tokens": 500,
            "messages": [{"role": "user", "content": "Hello"}],
        }
        async with gw.http.post(f"{gw.url}/v1/chat/completions", json=body) as response:
            victim = response.headers["x-headway-instance"]
            await response.content.readany()
            gw.engines[victim].kill()
            rest = await response.text()
        assert '"code":"upstream_error"' in rest
        assert "[DONE]" not in rest
        row = await gw.row(response.headers["x-request-id"])
        assert (row["outcome"], row["decoded"], row["instance"]) == ("backend_error", True, victim)
        other = "b" if victim == "a" else "a"
        for _ in range(4):
            status, headers, _ = await gw.chat(model="small")
            assert (status, headers["x-headway-instance"]) == (200, other)
        await gw.until(lambda: not gw.gateway.runner.scheduler.instances[victim].healthy)
        await gw.engines[victim].start()
        await gw.until(lambda: gw.gateway.runner.scheduler.instances[victim].healthy)


async def test_a_stream_asks_a_proxy_not_to_collect_it(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        async with gw.stream() as response:
            assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == (
                "no-cache",
                "no",
            )
        async with gw.http.post(f"{gw.url}/api/generate", json={"model": "auto", "prompt": "Hi"}) as response:
            assert response.headers["x-accel-buffering"] == "no"
        _, headers, _ = await gw.chat()
        assert "x-accel-buffering" not in headers
