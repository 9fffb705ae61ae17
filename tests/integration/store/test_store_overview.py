"""The overview's figures beside the same figures computed row by row, in both databases."""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest

from router.core.types import OUTSIDE_ATTAINMENT, Outcome
from router.store.overview import overview, recent_by_instance
from router.store.overview_figures import Window, group_of
from router.store.queries import Store
from router.store.records import RequestRecord


def recorded(number: int, now: float, window_s: float) -> list[RequestRecord]:
    """Requests of all kinds, spread over the window and a little beyond."""
    rng = random.Random(number)
    made = []
    for _ in range(number):
        outcome = rng.choice([Outcome.OK] * 8 + list(Outcome))
        answered = outcome in {Outcome.OK, Outcome.LATE}
        decoded = answered or outcome.value.endswith("mid_decode") or rng.random() < 0.3
        received_at = now - rng.random() * window_s * 1.1
        made.append(
            RequestRecord(
                f"req_{int(received_at * 1000):011x}{secrets.token_hex(8)}",
                received_at,
                outcome,
                api="chat",
                policy=rng.choice(["latency", "price", None]),
                model=rng.choice(["llama", "qwen"]) if decoded else None,
                instance=rng.choice(["a", "b"]) if decoded else None,
                key_name=rng.choice([None, *(f"team-{n}" for n in range(30))]),
                prompt_tokens=rng.randrange(1, 900),
                output_tokens=rng.randrange(1, 300) if decoded else None,
                decoded=decoded,
                predicted_ttft_s_p50=0.2 if decoded else None,
                predicted_ttft_s_p95=0.4 if decoded else None,
                predicted_e2e_s_p50=2.0 if decoded else None,
                predicted_output_tokens_p50=120.0 if decoded else None,
                ttft_s=rng.lognormvariate(-1.5, 0.5) if decoded else None,
                tpot_s=rng.lognormvariate(-4, 0.4) if answered else None,
                e2e_s=rng.lognormvariate(0.5, 0.8),
                cost_usd=rng.random() * 0.01 if decoded else None,
                slo_ttft_s=0.3 if rng.random() < 0.7 else None,
                slo_met=answered and rng.random() < 0.8,
            )
        )
    return made


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


async def test_every_figure_is_that_of_the_rows(store_url: str) -> None:
    now = time.time()
    window = Window.ending(now, 600, 12)
    store = await Store.open(store_url)
    try:
        records = recorded(1500, now, 600)
        for record in records:
            store.writer.put(record)
        told = await overview(store, window)
        few = await overview(store, window, max_rows=500)
        empty = await overview(store, Window.ending(now - 9000, 600, 12))
        asked_at = time.time()
        recent = await recent_by_instance(store, 300, 600)
        answered_at = time.time()
    finally:
        await store.close()

    inside = [each for each in records if window.since <= each.received_at <= window.until]
    assert told["requests"] == told["totals"]["requests"] == len(inside)
    assert told["sampled_share"] == 1.0
    for bucket in told["buckets"]:
        here = [
            each
            for each in inside
            if bucket["start"] < each.received_at <= bucket["start"] + told["bucket_s"]
        ]
        offered = [each for each in here if each.slo_ttft_s and each.outcome not in OUTSIDE_ATTAINMENT]
        met = [each for each in offered if each.slo_met]
        assert bucket["outcomes"] == Counter(each.outcome.value for each in here)
        assert bucket["groups"] == Counter(group_of(each.outcome, each.decoded) for each in here)
        assert (bucket["offered"], bucket["met"]) == (len(offered), len(met))
        assert bucket["goodput_per_s"] == pytest.approx(len(met) / bucket["seconds"])
        assert bucket["output_tokens"] == sum(each.output_tokens or 0 for each in here)
    times = [each.ttft_s for each in inside if each.ttft_s is not None]
    assert told["latency"]["ttft_s"]["p50"] == pytest.approx(_middle(times), rel=0.16)
    assert sum(bar["count"] for bar in told["latency"]["ttft_s"]["histogram"]) == len(times)
    assert told["prediction"]["ttft"]["count"] == len(times)
    assert told["prediction"]["ttft"]["p50"] == pytest.approx(_middle(times) / 0.2, rel=0.13)
    whole = [each for each in inside if each.outcome in {Outcome.OK, Outcome.LATE}]
    assert told["prediction"]["e2e"]["count"] == len(whole)
    assert sum(bar["count"] for bar in told["latency"]["e2e_s"]["histogram"]) == len(whole)

    for by, attribute in (("policy", "policy"), ("model", "model"), ("key", "key_name")):
        spent: dict[str, float] = {}
        for each in inside:
            name = getattr(each, attribute) or ""
            spent[name] = spent.get(name, 0.0) + (each.cost_usd or 0.0)
        named = told["spend"][by]["names"]
        dearest = sorted(spent, key=lambda name: -spent[name])[:20]
        assert [each["name"] for each in named] == dearest
        assert [each["cost_usd"] for each in named] == pytest.approx([spent[name] for name in dearest])
        others = told["spend"][by]["others"]
        assert (others is None) == (len(spent) < 20)
        if others is not None:
            assert others["cost_usd"] == pytest.approx(
                sum(spent.values()) - sum(spent[name] for name in dearest)
            )

    # A sample says so, counts all of what it did not read, and is near.
    assert few["requests"] == few["totals"]["requests"] == len(inside)
    assert 0.2 < few["sampled_share"] < 0.5
    assert few["totals"]["cost_usd"] == pytest.approx(told["totals"]["cost_usd"], rel=0.25)
    assert few["totals"]["attainment"] == pytest.approx(told["totals"]["attainment"], abs=0.15)
    assert few["latency"]["ttft_s"]["p50"] == pytest.approx(told["latency"]["ttft_s"]["p50"], rel=0.3)

    assert empty["requests"] == 0
    assert empty["totals"]["attainment"] is None
    assert empty["latency"]["ttft_s"] == {"p50": None, "p95": None, "p99": None, "histogram": []}

    assert [each["instance"] for each in recent] == ["a", "b"]
    of_a = [
        each
        for each in records
        if each.instance == "a" and each.received_at + (each.e2e_s or 0.0) >= asked_at - 300
    ]
    later = [each for each in of_a if each.received_at + (each.e2e_s or 0.0) >= answered_at - 300]
    assert len(later) <= recent[0]["requests"] <= len(of_a)
    within = sum(each.ttft_s <= 0.4 for each in of_a) / len(of_a)  # type: ignore[operator]
    assert recent[0]["within_p95"] == pytest.approx(within, abs=0.02)
    assert recent[0]["predicted_ttft_s"] == pytest.approx(0.2)


def _served(received_at: float, e2e_s: float) -> RequestRecord:
    return RequestRecord(
        f"req_{int(received_at * 1000):011x}{secrets.token_hex(8)}",
        received_at,
        Outcome.OK,
        api="chat",
        model="llama",
        instance="a",
        output_tokens=10,
        decoded=True,
        e2e_s=e2e_s,
    )


async def test_a_request_counts_in_the_minute_in_which_it_ended(store_url: str) -> None:
    """Not in that in which it came: an answer that takes a minute would never count."""
    store = await Store.open(store_url)
    try:
        for e2e_s in (90.0, 80.0, 10.0):
            store.writer.put(_served(time.time() - 100, e2e_s))
        (recent,) = await recent_by_instance(store, 60, 600)
    finally:
        await store.close()
    assert (recent["requests"], recent["output_tokens"]) == (2, 20)


class _Arriving:
    """A store that records one more request after each statement."""

    def __init__(self, store: Store) -> None:
        self._store, self.flush = store, store.flush

    async def rows(self, statement: Any) -> list[dict[str, Any]]:
        found = await self._store.rows(statement)
        self._store.writer.put(_served(time.time() - 10, 1.0))
        await self._store.flush()
        return found


async def test_the_total_is_that_of_its_parts_while_requests_arrive(store_url: str) -> None:
    store = await Store.open(store_url)
    try:
        store.writer.put(_served(time.time() - 10, 1.0))
        told = await overview(cast("Store", _Arriving(store)), Window.ending(time.time(), 600, 12))
    finally:
        await store.close()
    assert told["requests"] == told["totals"]["requests"] == told["totals"]["outcomes"]["ok"] == 2
    assert told["spend"]["model"]["names"][0]["requests"] == 2
