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
            assert (row["outcome"], row["policy"], row["output_tokens"], row["decoded"]) == (
                "ok",
                name,
                4,
                True,
            )
            assert 0 < row["ttft_s"] <= row["e2e_s"]
            assert row["cost_usd"] > 0
        assert len(await gw.rows()) == len(policies.POLICIES)


async def test_all_instances_gone_and_back(tmp_path):
    async with live(tmp_path, vllm("a"), vllm("b")) as gw:
        for engine in gw.engines.values():
            engine.kill()
        instances = gw.gateway.runner.scheduler.instances.values()
        await gw.until(lambda: not any(i.healthy for i in instances))
        status, headers, answer = await gw.chat(model="small")
        assert (status, answer["error"]["code"]) == (503, "no_instance")
        assert int(headers["Retry-After"]) >= 1
        assert (await gw.get("/readyz"))[0] == 503
        for engine in gw.engines.values():
            await engine.start()
        await gw.until(lambda: all(i.healthy for i in instances))
        assert (await gw.chat(model="small"))[0] == 200
        assert (await gw.get("/readyz"))[0] == 200
