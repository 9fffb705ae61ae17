"""Requests of many kinds for a gateway that a page is to show: policies, SLOs, budgets, and clients that leave."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp

WORDS = (
    "queue", "latency", "token", "batch", "memory", "cache", "router", "model", "fleet", "price", "quality",
    "load",
)  # fmt: skip


def body(rng: random.Random, policies: tuple[str, ...]) -> dict[str, Any]:
    """One chat with a wish of its own."""
    prompt = " ".join(rng.choices(WORDS, k=int(rng.lognormvariate(4.5, 1.0)) + 3))
    routing: dict[str, Any] = {"policy": rng.choice(policies)}
    if rng.random() < 0.7:
        routing["slo"] = {"ttft_ms": rng.choice([150, 300, 800]), "tpot_ms": rng.choice([15, 40, 80])}
    if rng.random() < 0.12:
        routing["slo"] = {"ttft_ms": rng.choice([1, 60])}
        routing["on_miss"] = "reject"
    if rng.random() < 0.05:
        routing["max_cost_usd"] = rng.choice([1e-7, 2e-5])
    if rng.random() < 0.02:
        routing["min_quality"] = 0.99
    return {
        "model": rng.choice(["auto", "auto", "llama-3.1-8b", "qwen2.5-7b", "llama-3.1-70b"]),
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": int(rng.lognormvariate(4.7, 0.7)) + 2,
        "stream": True,
        "routing": routing,
    }


async def ask(
    http: aiohttp.ClientSession, url: str, asked: dict[str, Any], leave_after_s: float | None
) -> None:
    """One request; its client goes after `leave_after_s`."""
    try:
        async with asyncio.timeout(leave_after_s):
            async with http.post(f"{url}/v1/chat/completions", json=asked) as response:
                await response.read()
    except (TimeoutError, aiohttp.ClientError):
        return


async def load(
    url: str,
    rate_per_s: float,
    for_s: float,
    *,
    seed: int = 0,
    policies: tuple[str, ...] = ("latency", "slo", "price", "cost", "relevance"),
) -> None:
    """Poisson arrivals at `rate_per_s`, swelling and ebbing, until `for_s` seconds have passed."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        asyncio.TaskGroup() as group,
    ):
        while (past := loop.time() - began) < for_s:
            leave = rng.uniform(0.05, 1.5) if rng.random() < 0.04 else None
            group.create_task(ask(http, url, body(rng, policies), leave))
            swell = 1.6 if (past / for_s) % 0.5 > 0.3 else 0.7
            await asyncio.sleep(rng.expovariate(rate_per_s * swell))
