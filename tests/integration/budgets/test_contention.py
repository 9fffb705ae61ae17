"""Many requests at once against little money: it is never passed, and it is used."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import aiohttp
import pytest

from router.gateway.keys.accounts import TOTAL
from tests.integration.budgets.worlds import INPUT_USD, OUTPUT_USD, PROMPT_USD, audited, budget, purse
from tests.integration.gateway.live import MODELS, Live, bearer, fault, key, live, vllm
from tests.integration.gateway.staged import event, hangs, hedge_after, staged

KEYS = ("a", "b", "c")


def params(rng: Random) -> dict[str, Any]:
    """A request of any kind."""
    found: dict[str, Any] = {"model": "auto", "ignore_eos": rng.random() < 0.5}
    found["messages"] = [{"role": "user", "content": "word " * rng.choice([1, 20, 300])}]
    if rng.random() < 0.7:
        found["max_tokens"] = rng.choice([1, 7, 60, 400, 4096])
    elif found["ignore_eos"]:
        found["max_tokens"] = 1000
    if rng.random() < 0.2:
        found["n"] = rng.choice([2, 3])
    routing: dict[str, Any] = {"policy": rng.choice(["round_robin", "latency", "random"])}
    if rng.random() < 0.3:
        routing["max_cost_usd"] = 2e-6 * rng.lognormvariate(3, 1)
    if rng.random() < 0.4:
        routing["slo"] = {"ttft_ms": 5}
    return found | {"routing": routing}


async def ask(gw: Live, secret: str, rng: Random) -> int | None:
    """One request, streamed or not, read to its end or left alone; its status, None if it was left."""
    leaves = rng.random() < 0.2
    body = params(rng) | {"stream": rng.random() < 0.6}
    url, headers = f"{gw.url}/v1/chat/completions", bearer(secret)
    if rng.random() < 0.1:
        url = f"{gw.url}/v1/embeddings"
        body = {"model": "small", "input": ["text " * rng.choice([1, 50])] * rng.choice([1, 3])}
    timeout = aiohttp.ClientTimeout(rng.uniform(0.005, 0.15) if leaves else 60)
    try:
        async with gw.http.post(url, json=body, headers=headers, timeout=timeout) as response:
            await response.read()
            return response.status
    except TimeoutError:
        return None


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
async def test_keys_under_one_maker(tmp_path, monkeypatch, delay_s):
    """Every kind of request and of end, engines that break; a budget of each key and one of all together."""
    auth = {"keys": [key(name) for name in KEYS]}
    hedged = hedge_after(monkeypatch, 0.002)
    engines = [vllm("x", speed=50.0), vllm("y", "qwen2.5-7b", speed=50.0), vllm("z", speed=50.0)]
    async with live(tmp_path, *engines, auth=auth, **hedged) as gw:
        own = {
            name: purse(name, budget(usd), day=1.0) for name, usd in zip(KEYS, (4e3, 2e4, 1e5), strict=True)
        }
        maker = purse("m", budget(4e4), day=budget(3e4))
        async with audited(gw, delay_s=delay_s, **{name: (own[name], maker) for name in KEYS}) as state:
            for engine in ("x", "z"):
                for kind in ("status", "error_mid_stream", "cut_mid_stream", "truncate_without_done"):
                    gw.engines[engine].arm(
                        fault(kind, count=4, **({} if kind == "status" else {"after_tokens": 5}))
                    )
            gate = asyncio.Semaphore(60)

            async def one(number: int) -> int | None:
                async with gate:
                    return await ask(gw, KEYS[number % 3], Random(number))

            statuses = await asyncio.gather(*map(one, range(240)))
        assert {200, 429, None} <= set(statuses) <= {200, 429, 502, 400, 503, None}
        assert statuses.count(200) > 60
        assert state.refused > 10
        rows = await gw.rows()
        assert {"ok", "client_cancelled", "rejected_budget", "budget_exhausted_mid_decode"} <= {
            row["outcome"] for row in rows
        }
        assert any(row["hedged"] for row in rows)
        assert any(row["attempts"] > 1 and not row["hedged"] for row in rows)


async def test_the_budget_is_used_before_anybody_is_refused(tmp_path):
    auth = {"keys": [key("k")]}
    limit_usd = budget(30_000)
    async with (
        live(tmp_path, vllm("x", speed=50.0), models=MODELS[:1], auth=auth) as gw,
        audited(gw, k=(purse("k", limit_usd),)) as state,
    ):
        rng = Random(3)

        async def keep_asking() -> None:
            while not state.refused:
                tokens = rng.choice([20, 60, 150, 300])
                body = {"max_tokens": 4096} if tokens == 60 else {"max_tokens": tokens, "ignore_eos": True}
                status, _, _ = await gw.chat(headers=bearer("k"), **body)
                assert status in {200, 429}

        await asyncio.gather(*(keep_asking() for _ in range(3)))
        assert state.spent_when_refused_usd >= 0.97 * limit_usd


async def test_a_long_wish_holds_no_more_than_a_usual_answer(tmp_path):
    """With money for ten usual answers ten run side by side, although each might take 4096 tokens."""

    auth = {"keys": [key("k")]}
    ten_usd = 10 * (PROMPT_USD + 257 * OUTPUT_USD)
    async with staged(tmp_path, *[lambda exchange: exchange.hang(event("t "))] * 12, auth=auth) as (
        gw,
        stage,
    ):
        async with audited(gw, k=(purse("k", ten_usd),)) as state:
            streams = [gw.stream(model="small", max_tokens=4096, headers=bearer("k")) for _ in range(12)]
            heads = await asyncio.gather(*(stream.__aenter__() for stream in streams))
            assert [head.status for head in heads].count(200) == 10
            assert len(stage.bodies) == 10
            assert sum(state.reserved.values()) == pytest.approx(2 * ten_usd)  # of the day and in all
            for stream in streams:
                await stream.__aexit__(None, None, None)
        assert len(await gw.rows()) == 12


async def test_requests_that_wait_for_an_engine_hold_their_money(tmp_path):
    """And give it back when their clients leave."""
    auth = {"keys": [key("k")]}
    async with staged(tmp_path, hangs("role"), engines="a", auth=auth) as (gw, _):
        gw.instances["a"].max_concurrency = 1
        async with audited(gw, k=(purse("k", budget(10_000)),)) as state:
            asking = [asyncio.create_task(gw.chat(headers=bearer("k"))) for _ in range(3)]
            await gw.until(lambda: gw.gateway.runner.scheduler.queue_depth == 2)
            assert sum(state.reserved.values()) == pytest.approx(2 * 3 * (PROMPT_USD + 5 * OUTPUT_USD))
            await gw.gone(*asking)
        assert state.spent_usd("k", TOTAL) == pytest.approx(2 * INPUT_USD)  # the prompt that was sent
