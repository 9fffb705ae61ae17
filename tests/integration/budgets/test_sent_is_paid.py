"""Whatever is sent to an engine counts: against caps and budgets before, on the bill afterwards, whoever left."""

from __future__ import annotations

import asyncio
import json

import pytest

from router.gateway.keys.accounts import TOTAL
from tests.integration.budgets.worlds import INPUT_USD, OUTPUT_USD, budget, one_key
from tests.integration.gateway.live import bearer, key
from tests.integration.gateway.staged import (
    DONE,
    chat,
    event,
    final,
    hangs,
    hedge_after,
    says,
    staged,
    status,
    usage,
)

KEY = {"headers": bearer("k")}
HIDDEN = "x" * 50_000
HI = {"role": "user", "content": "Hello"}


#: Long texts where they are easily missed.
HIDDEN_AT = (
    ("/v1/chat/completions", {"messages": [HI | {"name": HIDDEN}]}),
    ("/v1/chat/completions", {"messages": [HI | {"role": HIDDEN}]}),
    ("/v1/chat/completions", {"messages": [HI], "documents": [{"text": HIDDEN}]}),
    ("/v1/chat/completions", {"messages": [HI], "chat_template_kwargs": {"x": HIDDEN}}),
    ("/v1/completions", {"prompt": "Hello", "system": HIDDEN}),
    ("/v1/embeddings", {"input": "Hello", "instruction": HIDDEN}),
    ("/api/chat", {"messages": [HI | {"thinking": HIDDEN}]}),
    ("/api/generate", {"prompt": "Hello", "system": HIDDEN}),
)


@pytest.mark.parametrize("capped", ["request", "key"])
async def test_no_money_buys_what_is_hidden(tmp_path, capped):
    """Neither a cap nor a budget that pays a short prompt lets a long one through, wherever it stands."""
    limit_usd = budget(100) if capped == "key" else 1.0
    routing = {"max_cost_usd": budget(100)} if capped == "request" else {}
    async with one_key(tmp_path, limit_usd=limit_usd) as (gw, stage, _):
        for path, body in HIDDEN_AT:
            code, answer = await gw.post(path, {"model": "small", "routing": routing} | body, **KEY)
            assert code == (429 if capped == "key" else 400), (path, answer)
            assert stage.bodies == [], path


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_before_the_first_token_pays_the_prompt(tmp_path, stream):
    """And its tokens count against the key's limit."""
    async with one_key(tmp_path, hangs("role"), limit_usd=1.0) as (gw, stage, state):
        asking = asyncio.create_task(gw.chat(model="small", stream=stream, **KEY))
        await gw.until(lambda: stage.bodies)
        await gw.gone(asking)
        (row,) = await gw.rows()
        assert (row["outcome"], row["decoded"]) == ("client_cancelled", False)
        assert row["cost_usd"] == pytest.approx(2 * INPUT_USD)  # "Hello", by the estimate
        assert state.spent_usd("k", TOTAL) == row["cost_usd"]


@pytest.mark.parametrize("limit", ["client", "deadline"])
async def test_who_does_not_wait_for_an_answer_in_one_piece_pays_what_was_made(tmp_path, monkeypatch, limit):
    """Nobody sees its tokens: they are those that are predicted for the time, and no more than were asked for."""
    monkeypatch.setattr("router.core.admission.keeping", lambda options, _: (list(options), []))
    keys = [key("k", tokens_per_minute=1_000_000)]
    hard = {"routing": {"slo": {"e2e_ms": 500}, "on_miss": "reject"}} if limit == "deadline" else {}
    body = {"model": "small", "max_tokens": 8, "n": 2, "prompt_logprobs": 0} | hard
    async with staged(tmp_path, hangs("nothing"), auth={"keys": keys}) as (gw, stage):
        asking = asyncio.create_task(gw.chat(**body, **KEY))
        await gw.until(lambda: stage.bodies)
        if limit == "client":
            await asyncio.sleep(0.5)
            await gw.gone(asking)
        await asyncio.wait([asking])
        (row,) = await gw.rows()
        assert row["output_tokens"] == 16
        assert row["cost_usd"] == pytest.approx(2 * INPUT_USD + 16 * OUTPUT_USD)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [HI]}),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/completions", {"prompt": ["Hello", "you"]}),
        ("/v1/embeddings", {"input": "Hello"}),
    ],
)
async def test_who_leaves_pays_what_stands_in_members_that_nobody_knows(tmp_path, path, body):
    """An engine may write them into the prompt; nobody has told yet whether this one does."""
    async with one_key(tmp_path, hangs(), limit_usd=1.0) as (gw, stage, _):
        sent = {"model": "small", "written": "word " * 4000} | body
        asking = asyncio.create_task(gw.post(path, sent, **KEY))
        await gw.until(lambda: stage.bodies)
        await gw.gone(asking)
        (row,) = await gw.rows()
        assert row["cost_usd"] > 4000 * INPUT_USD


async def test_who_leaves_does_not_get_its_tokens_back(tmp_path):
    keys = [key("k", tokens_per_minute=3000)]
    async with staged(tmp_path, hangs(), says("a"), auth={"keys": keys}) as (gw, stage):
        asking = asyncio.create_task(gw.chat(model="small", messages=[HI | {"content": "x" * 4000}], **KEY))
        await gw.until(lambda: stage.bodies)
        await gw.gone(asking)
        _, headers, _ = await gw.chat(model="small", max_tokens=1, **KEY)
        assert 1990 < int(headers["x-ratelimit-remaining-tokens"]) < 2500  # what comes back comes with time


async def test_an_engine_that_was_never_reached_is_not_paid(tmp_path):
    async with one_key(tmp_path, status(500), status(500), status(500), limit_usd=1.0) as (gw, _, state):
        assert (await gw.chat(model="small", **KEY))[0] == 502
        assert state.spent_usd("k", TOTAL) == 0.0


async def test_the_engines_count_is_billed_even_above_what_was_held(tmp_path):
    """The overrun is recorded, and the budget is used up."""
    told = says("a", end=event(finish="stop") + final(10, 5000) + DONE)
    async with one_key(tmp_path, told, says("b"), limit_usd=budget(100)) as (gw, stage, state):
        _, headers, _ = await chat(gw, max_tokens=50, **KEY)
        row = await gw.row(headers["x-request-id"])
        assert row["cost_usd"] == pytest.approx(10 * INPUT_USD + 5000 * OUTPUT_USD)
        assert row["budget_overrun_usd"] == pytest.approx(row["cost_usd"] - budget(100))
        assert state.spent_usd("k", TOTAL) == pytest.approx(row["cost_usd"])
        code, _, answer = await gw.chat(model="small", **KEY)
        assert (code, answer["error"]["code"]) == (429, "insufficient_quota")
        assert len(stage.bodies) == 1


async def test_an_answer_in_one_piece_without_usage_is_counted(tmp_path):
    choice = {"index": 0, "text": "t " * 2000, "finish_reason": "stop"}
    data = json.dumps({"choices": [choice], "object": "text_completion"}).encode()
    body = {"model": "small", "prompt": "Hello", "max_tokens": 2000, "use_beam_search": True}
    async with one_key(tmp_path, lambda exchange: exchange.answer(200, data), limit_usd=1.0) as (
        gw,
        _,
        state,
    ):
        assert (await gw.post("/v1/completions", body, **KEY))[0] == 200
        assert state.spent_usd("k", TOTAL) == pytest.approx(2 * INPUT_USD + 2000 * OUTPUT_USD)


@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_that_is_too_large_is_paid_and_not_made_again(tmp_path, whole):
    """The request asked for it: three engines would have done the work three times, for nothing."""
    alike = {str(number): -1.0 for number in range(20)}

    async def large(exchange):
        logprobs = {"tokens": ["x"] * 4000, "top_logprobs": [alike] * 4000}
        choice = {"index": 0, "text": "x", "finish_reason": None, "logprobs": logprobs}
        data = json.dumps({"choices": [choice], "object": "text_completion"}).encode()
        if whole:
            await exchange.answer(200, data)
        else:
            await exchange.events(b"data: " + data + b"\n\n", DONE)

    more = {"prompt_logprobs": 20} if whole else {"echo": True, "logprobs": 20}
    body = {"model": "small", "prompt": "Hello " * 4000, "max_tokens": 5} | more
    async with one_key(tmp_path, large, large, large, engines="abc", limit_usd=1.0) as (gw, stage, state):
        code, answer = await gw.post("/v1/completions", body, **KEY)
        assert (code, answer["error"]["code"]) == (502, "upstream_error")
        assert len(stage.bodies) == 1
        assert state.spent_usd("k", TOTAL) == pytest.approx(6000 * INPUT_USD)


@pytest.mark.parametrize("count", [-5, True, "many", 1e308, 10**30, 0])
async def test_a_count_that_cannot_be_true_is_not_billed(tmp_path, count):
    told = says("a", end=event(finish="stop") + event(**usage(count, count)) + DONE)
    async with one_key(tmp_path, told, limit_usd=1.0) as (gw, _, state):
        await chat(gw, max_tokens=50, **KEY)
        assert 0 < state.spent_usd("k", TOTAL) < budget(50)


async def test_limits_come_before_work(tmp_path):
    """A key over its limit has nothing counted by an engine, and a large body of its is not even read."""
    keys = [key("k", requests_per_minute=2)]
    async with staged(tmp_path, says("a"), says("b"), auth={"keys": keys}) as (gw, stage):
        for _ in range(2):
            assert (await gw.chat(model="small", **KEY))[0] == 200
        walked = []
        gw.gateway.tokens.count = walked.append
        for content in ("Hello", "x" * 100_000):
            messages = [HI | {"content": content}]
            routing = {"max_cost_usd": 1.0, "slo": {"ttft_ms": 9}}
            code, headers, _ = await gw.chat(model="small", messages=messages, routing=routing, **KEY)
            assert (code, headers["x-ratelimit-remaining-requests"]) == (429, "0")
            row = await gw.row(headers["x-request-id"])
            assert row["outcome"] == "rejected_rate"
            assert row["slo_met"] is (False if content == "Hello" else None)
        assert walked == []
        assert len(stage.bodies) == 2


async def test_a_body_that_is_wrong_counts_against_the_limit(tmp_path):
    keys = [key("k", requests_per_minute=1)]
    async with staged(tmp_path, auth={"keys": keys}) as (gw, _):
        assert (await gw.chat(model="small", max_tokens="many", **KEY))[0] == 400
        assert (await gw.chat(model="small", **KEY))[0] == 429


async def test_predictions_are_metered_like_requests(tmp_path):
    keys = [key("k", requests_per_minute=3, max_concurrency=1)]
    async with staged(tmp_path, hangs(), auth={"keys": keys}) as (gw, stage):
        asking = asyncio.create_task(gw.chat(model="small", **KEY))
        await gw.until(lambda: stage.bodies)  # its slot is taken, but nothing is sent for a dry run
        body = {"model": "small", "messages": [HI]}
        codes = [(await gw.post("/v1/routing/predict", body, **KEY))[0] for _ in range(3)]
        assert codes == [200, 200, 429]
        await gw.gone(asking)
        assert (await gw.chat(model="small", **KEY))[0] == 429


async def test_so_many_at_once(tmp_path, monkeypatch):
    """Whatever becomes of a request, its slot comes back."""
    keys = [key("k", max_concurrency=2), key("free")]
    hedged = hedge_after(monkeypatch, 0.05)
    scripts = (hangs(), hangs(), hangs(), hangs(), says("a"), says("b"))
    async with staged(tmp_path, *scripts, auth={"keys": keys}, **hedged) as (gw, stage):
        asking = [asyncio.create_task(gw.chat(model="small", stream=True, **KEY)) for _ in range(2)]
        await gw.until(lambda: len(stage.bodies) >= 2)
        code, headers, answer = await gw.chat(model="small", **KEY)
        assert (code, answer["error"]["code"], headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
        assert "max_concurrency" in answer["error"]["message"]
        await gw.until(lambda: len(stage.bodies) == 4)
        await gw.gone(*asking)
        assert (await gw.chat(model="small", max_tokens="wrong", **KEY))[0] == 400
        assert (await gw.chat(model="small", **KEY))[0] == 200
        assert (await gw.chat(model="small", **KEY))[0] == 200
