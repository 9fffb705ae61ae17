"""`max_cost_usd` against engines that keep to nothing: it is passed by no more than one token's price, unless the engine
says at its end that there was more, and then the overrun is told."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.gateway.staged import (
    DONE,
    INPUT_USD,
    OUTPUT_USD,
    chat,
    event,
    final,
    says,
    staged,
    usage,
)

PROMPT_BOUND = 99  # of "Hello": the JSON of its message and what a chat template may add


def cap_for(tokens: int) -> dict[str, float]:
    """Routing parameters whose cap pays the prompt's bound and so many output tokens."""
    return {"max_cost_usd": PROMPT_BOUND * INPUT_USD + (tokens + 0.01) * OUTPUT_USD}


def endless(*, each="t ", gap_s=0.0, at_once=1, prompt=None, per_event=1):
    """Tokens for as long as somebody listens; with `prompt`, its count, the usage so far is in every event."""

    def told(count):
        return {} if prompt is None else usage(prompt, count)

    async def script(exchange):
        await exchange.begin(event(**told(0)))
        for number in range(0, 400, at_once):
            await exchange.chunk(
                b"".join(event(each, **told((number + k + 1) * per_event)) for k in range(at_once))
            )
            await asyncio.sleep(gap_s)
        await asyncio.Event().wait()

    return script


async def overruns(gw) -> float:
    """What the metric says."""
    lines = (await gw.metrics()).splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("headway_budget_overruns_total")
    )


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_an_engine_that_ignores_its_bound(tmp_path, kind):
    """However its bytes arrive."""
    ways = [
        (stream, endless(gap_s=gap_s, at_once=at_once))
        for stream in (True, False)
        for gap_s, at_once in ((0.002, 1), (0.0, 1), (0.0, 100))
    ]
    async with staged(tmp_path, *(script for _, script in ways), kind=kind) as (gw, stage):
        routing = cap_for(10)
        for number, (stream, _) in enumerate(ways):
            text, headers, finish = await chat(gw, stream=stream, routing=routing)
            assert (text, finish) == ("t " * 10, "length"), number
            body = stage.bodies[number]
            assert next(body[name] for name in ("max_tokens", "max_completion_tokens")) == 10
            assert "routing" not in body
            await asyncio.wait_for(stage.cut[number].wait(), 2)  # the engine is told to stop
            row = await gw.row(headers["x-request-id"])
            assert (row["outcome"], row["finish_reason"]) == ("budget_exhausted_mid_decode", "length")
            assert row["output_tokens"] == 11  # the one over its bound shows that the engine goes on
            assert row["cost_usd"] <= routing["max_cost_usd"] + OUTPUT_USD


@pytest.mark.parametrize("stream", [True, False])
async def test_several_tokens_an_event_by_what_they_say(tmp_path, stream):
    """The event that is not paid for in full is not passed on. Its estimate counts up to the cap."""
    async with staged(tmp_path, endless(each="one two six "), kind="openai") as (gw, _):
        text, headers, finish = await chat(gw, stream=stream, routing=cap_for(10))
        assert (text, finish) == ("one two six " * 3, "length")
        row = await gw.row(headers["x-request-id"])
        assert (row["outcome"], row["output_tokens"]) == ("budget_exhausted_mid_decode", 10)
        assert row["budget_overrun_usd"] == 0.0


async def test_several_tokens_an_event_by_the_engines_count(tmp_path):
    """The text of one letter would not tell; the overrun is told to the operator, not delivered to the client."""
    script = endless(each="x", prompt=PROMPT_BOUND, per_event=4, at_once=7)
    async with staged(tmp_path, script) as (gw, stage):
        assert await overruns(gw) == 0
        text, headers, finish = await chat(gw, routing=cap_for(10))
        assert (text, finish) == ("xx", "length")
        assert stage.bodies[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        row = await gw.row(headers["x-request-id"])
        assert (row["outcome"], row["output_tokens"]) == ("budget_exhausted_mid_decode", 11)
        assert row["prompt_tokens"] == PROMPT_BOUND
        assert row["budget_overrun_usd"] == pytest.approx(0.99 * OUTPUT_USD)
        assert await overruns(gw) == 1


@pytest.mark.parametrize("asked", [False, True])
async def test_the_usage_that_only_the_router_asked_for_is_not_passed_on(tmp_path, asked):
    end = event(finish="stop", **usage(9, 2)) + final(9, 2) + DONE

    async def script(exchange):
        await exchange.events(event(**usage(9, 0)), event("a", **usage(9, 1)), event("b", **usage(9, 2)), end)

    async with staged(tmp_path, script) as (gw, _):
        options = {"include_usage": True} | ({"continuous_usage_stats": True} if asked else {})
        async with gw.stream(model="small", routing=cap_for(10), stream_options=options) as response:
            lines = [line for line in (await response.text()).split("\n") if line.startswith("data: {")]
        payloads = [json.loads(line[6:]) for line in lines]
        assert [("usage" in payload) for payload in payloads] == [asked] * 4 + [True]
        assert payloads[-1]["usage"]["completion_tokens"] == 2
        assert "".join(p["choices"][0]["delta"].get("content", "") for p in payloads[:-1]) == "ab"
        row = await gw.row(response.headers["x-request-id"])
        assert (row["outcome"], row["output_tokens"], row["prompt_tokens"]) == ("ok", 2, 9)


async def test_without_a_cap_nobody_is_asked_to_count(tmp_path):
    async with staged(tmp_path, says("a"), says("a")) as (gw, stage):
        await chat(gw)
        assert stage.bodies[0]["stream_options"] == {"include_usage": True}
    async with staged(tmp_path, says("a"), kind="openai") as (gw, stage):
        await chat(gw, routing=cap_for(10))  # it may be a server that refuses what it does not know
        assert stage.bodies[0]["stream_options"] == {"include_usage": True}


async def test_a_prompt_longer_than_its_bound_leaves_less_for_the_answer(tmp_path):
    """Which is known from the first event on."""
    left = ((0, 30), (100, 10), (140, 2), (150, 0), (4000, 0))
    async with staged(tmp_path, *(endless(prompt=PROMPT_BOUND + over) for over, _ in left)) as (gw, stage):
        routing = cap_for(30)
        for number, (over, paid) in enumerate(left):
            text, headers, finish = await chat(gw, routing=routing)
            assert (text, finish) == ("t " * paid, "length"), over
            await asyncio.wait_for(stage.cut[number].wait(), 2)
            row = await gw.row(headers["x-request-id"])
            assert row["outcome"] == "budget_exhausted_mid_decode"
            # It does not know of its narrower bound: it is not waited for to pass it.
            assert row["output_tokens"] == (31 if not over else paid)
            prompt_usd = (PROMPT_BOUND + over) * INPUT_USD
            assert row["cost_usd"] == pytest.approx(prompt_usd + row["output_tokens"] * OUTPUT_USD)
            assert row["cost_usd"] <= max(routing["max_cost_usd"] + OUTPUT_USD, prompt_usd)
            assert row["budget_overrun_usd"] == pytest.approx(
                max(0.0, row["cost_usd"] - routing["max_cost_usd"]), abs=1e-12
            )


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_usage_at_the_end_that_is_more_than_was_seen(tmp_path, kind):
    script = says("x", "y", "z", end=event(finish="stop") + final(PROMPT_BOUND, 40) + DONE)
    async with staged(tmp_path, script, kind=kind) as (gw, _):
        text, headers, finish = await chat(gw, routing=cap_for(10))
        assert (text, finish) == ("xyz", "stop")
        row = await gw.row(headers["x-request-id"])
        assert row["output_tokens"] == 40
        assert row["budget_overrun_usd"] == pytest.approx(29.99 * OUTPUT_USD)
        assert await overruns(gw) == 1


@pytest.mark.parametrize("counts", [True, False])
async def test_tokens_of_failed_attempts_are_paid(tmp_path, counts):
    """A broken attempt's tokens and prompt leave less for the next one."""
    told = [usage(50, k) if counts else {} for k in range(6)]

    async def breaks(exchange):
        await exchange.head()
        for number in range(1, 6):
            await exchange.chunk(event("a ", **told[number]))
        exchange.close()

    script = endless(each="b ", prompt=50 if counts else None)
    async with staged(tmp_path, breaks, script) as (gw, stage):
        routing = cap_for(60)
        _, headers, whole = await gw.chat(model="small", routing=routing, max_tokens=500)
        said = whole["choices"][0]["message"]["content"].split()
        paid = 60 - 5 - -(-(50 if counts else PROMPT_BOUND) // 5)  # five prompt tokens cost one output token
        assert said == ["b"] * paid
        assert stage.bodies[1]["max_tokens"] == paid
        row = await gw.row(headers["x-request-id"])
        assert (row["outcome"], row["attempts"]) == ("budget_exhausted_mid_decode", 2)
        assert row["cost_usd"] <= routing["max_cost_usd"] + OUTPUT_USD


async def test_a_cap_that_a_failure_has_used_up(tmp_path):
    async def breaks(exchange):
        await exchange.head()
        for _ in range(8):
            await exchange.chunk(event("a "))
        exchange.close()

    async with staged(tmp_path, breaks, says("b")) as (gw, stage):
        status, headers, answer = await gw.chat(model="small", routing=cap_for(9), max_tokens=500)
        assert (status, answer["error"]["code"]) == (502, "upstream_error")
        row = await gw.row(headers["x-request-id"])
        assert (row["outcome"], row["attempts"]) == ("backend_error", 1)
        assert row["cost_usd"] > 0
        assert len(stage.bodies) == 1


async def test_two_choices_share_what_is_paid(tmp_path):
    async def script(exchange):
        await exchange.head()
        for number in range(1, 100):
            for index in (0, 1):
                await exchange.chunk(event("t ", index=index, **usage(PROMPT_BOUND, number)))

    async with staged(tmp_path, script) as (gw, _):
        routing = cap_for(20)
        _, headers, whole = await gw.chat(model="small", n=2, routing=routing, max_tokens=100)
        told = [
            (choice["message"]["content"].count("t"), choice["finish_reason"]) for choice in whole["choices"]
        ]
        assert told == [(10, "length"), (10, "length")]
        row = await gw.row(headers["x-request-id"])
        assert (row["output_tokens"], row["outcome"]) == (21, "budget_exhausted_mid_decode")
        assert row["cost_usd"] <= routing["max_cost_usd"] + OUTPUT_USD


async def test_a_clients_own_bound_that_is_ignored_is_no_matter_of_money(tmp_path):
    async with staged(tmp_path, endless(), kind="openai") as (gw, _):
        text, headers, finish = await chat(gw, max_tokens=5, routing=cap_for(50))
        assert (text, finish) == ("t " * 5, "length")
        assert (await gw.row(headers["x-request-id"]))["outcome"] == "ok"
