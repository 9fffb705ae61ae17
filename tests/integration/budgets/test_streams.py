"""Answers that outgrow what is held for them: they wait for money and go on, or end where it ends."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from router.core.money.account import RequestMoney
from router.gateway.keys.accounts import TOTAL
from tests.integration.budgets.worlds import INPUT_USD, OUTPUT_USD, PROMPT_BOUND, budget, one_key
from tests.integration.gateway.live import bearer
from tests.integration.gateway.staged import DONE, chat, event, final, hangs, hedge_after, says, status, usage

KEY = {"headers": bearer("k")}


def tokens(number, *, at_once=1, each="t ", told=False, then=DONE):
    """So many events, some in a write, with the engine's count in each if `told`; then the end."""

    async def script(exchange):
        await exchange.begin(event())
        for first in range(0, number, at_once):
            numbers = range(first, min(number, first + at_once))
            await exchange.chunk(b"".join(event(each, **(usage(9, n + 1) if told else {})) for n in numbers))
            await asyncio.sleep(0)
        if then is None:
            await asyncio.Event().wait()
        await exchange.chunk(event(finish="stop") + then)
        await exchange.end()

    return script


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("at_once", [1, 50, 3000])
async def test_an_answer_waits_for_its_money_and_loses_nothing(tmp_path, at_once, stream):
    script = tokens(3000, at_once=at_once, told=True)
    async with one_key(tmp_path, script, limit_usd=budget(50_000), delay_s=0.05) as (gw, _, state):
        text, headers, finish = await chat(gw, stream=stream, max_tokens=8000, **KEY)
        assert (text, finish) == ("t " * 3000, "stop")
        row = await gw.row(headers["x-request-id"])
        assert (row["outcome"], row["output_tokens"]) == ("ok", 3000)
        assert row["cost_usd"] == pytest.approx(9 * INPUT_USD + 3000 * OUTPUT_USD)
        assert 3 <= state.takes <= 12  # ever larger steps


@pytest.mark.parametrize(("stream", "delay_s"), [(True, 0.0), (False, 0.02)])
@pytest.mark.parametrize(
    ("script", "width"),
    [
        (tokens(5000, then=None), 1),
        (tokens(5000, at_once=100, then=None), 1),
        (tokens(5000, at_once=5000, then=None), 1),
        (tokens(5000, each="one two six ", then=None), 3),
        (tokens(5000, at_once=7, told=True, then=None), 1),
    ],
)
async def test_an_engine_that_takes_no_notice_is_stopped_in_time(tmp_path, script, width, delay_s, stream):
    async with one_key(tmp_path, script, kind="openai", limit_usd=budget(700), delay_s=delay_s) as (
        gw,
        stage,
        _,
    ):
        text, headers, finish = await chat(gw, stream=stream, max_tokens=4096, **KEY)
        await asyncio.wait_for(stage.cut[0].wait(), 2)
        row = await gw.row(headers["x-request-id"])
        assert (finish, row["finish_reason"]) == ("length", "length")
        assert row["outcome"] == "budget_exhausted_mid_decode"
        assert next(stage.bodies[0][name] for name in ("max_tokens", "max_completion_tokens")) == 699
        # All of what is passed on is paid for, and nearly all of the money is used.
        count = len(text.split())
        assert 700 - 2 * width < count <= 700 + PROMPT_BOUND // 5
        assert count <= row["output_tokens"] <= count + width


async def test_an_honest_engine_ends_by_itself(tmp_path):
    """It is told its bound, and its own end and usage are passed on."""
    end = event("t ", finish="length") + final(9, 20) + DONE
    async with one_key(tmp_path, says(*["t "] * 19, end=end), limit_usd=budget(21)) as (gw, stage, _):
        text, headers, finish = await chat(gw, max_tokens=8000, **KEY)
        assert (text, finish, stage.bodies[0]["max_tokens"]) == ("t " * 20, "length", 20)
        row = await gw.row(headers["x-request-id"])
        assert row["outcome"] == "budget_exhausted_mid_decode"
        assert row["cost_usd"] == pytest.approx(9 * INPUT_USD + 20 * OUTPUT_USD)


async def test_who_needs_more_gets_what_others_gave_back(tmp_path):
    """Two answers share what neither could have alone; the one that goes on longer has the rest."""
    first_ends = asyncio.Event()

    async def waits(exchange):
        await exchange.begin(event("t "))
        await first_ends.wait()
        await exchange.chunk(event(finish="stop") + DONE)
        await exchange.end()

    async with one_key(tmp_path, waits, tokens(700), limit_usd=budget(1000)) as (gw, _, state):
        short = asyncio.create_task(chat(gw, **KEY))
        await gw.until(lambda: state.takes)
        long = asyncio.create_task(chat(gw, **KEY))
        await gw.until(lambda: state.takes > 3)
        first_ends.set()
        assert (await short)[2] == "stop"
        text, _, finish = await long
        assert (len(text.split()), finish) == (700, "stop")


@pytest.mark.parametrize("ends", ["client", "engine", "time"])
async def test_a_request_that_ends_while_it_waits_for_money(tmp_path, monkeypatch, ends):
    hard = {"routing": {"slo": {"e2e_ms": 300}, "on_miss": "reject"}} if ends == "time" else {}
    monkeypatch.setattr("router.core.admission.keeping", lambda options, _: (list(options), []))

    async def breaks(exchange):
        await exchange.begin(event("t ") * 600)
        exchange.close()

    script = breaks if ends == "engine" else tokens(600, at_once=600, then=None)
    async with one_key(tmp_path, script, status(500), limit_usd=budget(5000)) as (gw, _, state):
        async with gw.stream(model="small", **hard, **KEY) as response:
            state.delay_s = 0.1 if ends == "engine" else 1.0
            await gw.until(lambda: len(state.reserved) == 2)
            if ends == "client":
                await response.content.readany()
                response.close()
            else:
                text = await response.text()
                assert text.count('"content"') == (600 if ends == "engine" else text.count('"content"'))
                assert '"error"' in text
        row = await gw.row(response.headers["x-request-id"])
        outcome = {"client": "client_cancelled", "engine": "backend_error", "time": "expired_mid_decode"}
        assert row["outcome"] == outcome[ends]
        assert row["cost_usd"] > 0


async def test_a_client_that_reads_slowly_while_money_is_short(tmp_path):
    """Two reasons to pause: the stream goes on when neither holds."""
    script = tokens(2500, at_once=500, each="t" * 400 + " ")
    limit_usd = budget(200_000)
    async with one_key(tmp_path, script, kind="openai", limit_usd=limit_usd, delay_s=0.02) as (gw, _, _):
        body = {"model": "small", "stream": True, "max_tokens": 100_000}
        body["messages"] = [{"role": "user", "content": "Hello"}]
        url = f"{gw.url}/v1/chat/completions"
        async with (
            aiohttp.ClientSession(read_bufsize=2048) as slow,
            slow.post(url, json=body, **KEY) as response,
        ):
            count = 0
            async for line in response.content:
                count += line.count(b'"content"')
                if count % 250 == 0:
                    await asyncio.sleep(0.001)
        assert count == 2500


async def test_a_retry_whose_money_others_have_taken_meanwhile(tmp_path):
    """The scheduler knows what was left when the request came; the lease, what is left now."""
    go_on = asyncio.Event()

    async def breaks(exchange):
        await exchange.begin(event("t ") * 200)
        await go_on.wait()
        exchange.close()

    async with one_key(tmp_path, breaks, hangs(), says("never"), kind="openai", limit_usd=budget(400)) as (
        gw,
        stage,
        state,
    ):
        first = asyncio.create_task(gw.chat(model="small", max_tokens=200, **KEY))
        await gw.until(lambda: stage.bodies)
        held_usd = sum(state.reserved.values())
        second = asyncio.create_task(gw.chat(model="small", max_tokens=4000, **KEY))
        await gw.until(lambda: sum(state.reserved.values()) > held_usd)
        go_on.set()
        code, headers, answer = await first
        assert (code, answer["error"]["code"]) == (429, "insufficient_quota")
        assert headers["x-should-retry"] == "false"
        row = await gw.row(headers["x-request-id"])
        assert (row["outcome"], row["attempts"]) == ("rejected_budget", 2)
        assert len(stage.bodies) == 2
        await gw.gone(second)


@pytest.mark.parametrize("enough", [True, False])
async def test_a_hedge_is_begun_only_if_its_prompt_is_paid(tmp_path, monkeypatch, enough):
    sections = hedge_after(monkeypatch, 0.03)
    first = says("first") if not enough else hangs()

    async def late(exchange):
        await asyncio.sleep(0.1)
        await first(exchange)

    # Money for one prompt and some tokens; the scheduler is made to believe that there is more.
    monkeypatch.setattr(RequestMoney, "_left_of_budgets_usd", lambda money: money.reservation.left_usd)
    sections |= {"kind": "openai", "limit_usd": budget(100) if enough else budget(5)}
    async with one_key(tmp_path, late, says("hedge"), **sections) as (gw, stage, _):
        text, headers, finish = await chat(gw, max_tokens=3, **KEY)
        assert (text, finish) == ("hedge" if enough else "first", "stop")
        row = await gw.row(headers["x-request-id"])
        assert (row["hedged"], row["attempts"], len(stage.bodies)) == (True, 2, 1 + enough)


@pytest.mark.parametrize("rich", [True, False])
async def test_what_cannot_be_streamed_is_held_in_full(tmp_path, rich):
    """Or, where there is less, the engine is told what there is."""
    held_usd = []

    async def whole(exchange):
        held_usd.append(state.reserved["k", TOTAL])
        body = {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}], "object": "text_completion"}
        await exchange.answer(200, json.dumps(body | usage(9, 40)).encode())

    prompt_usd = 15 * INPUT_USD
    limit_usd = 1.0 if rich else prompt_usd + 501 * OUTPUT_USD
    async with one_key(tmp_path, whole, limit_usd=limit_usd) as (gw, stage, state):
        body = {"model": "small", "prompt": "Hello", "max_tokens": 2000, "use_beam_search": True, "n": 2}
        code, answer = await gw.post("/v1/completions", body, **KEY)
        assert (code, answer["usage"]["completion_tokens"]) == (200, 40)
        assert held_usd == [pytest.approx(prompt_usd + (4001 if rich else 501) * OUTPUT_USD)]
        assert stage.bodies[0]["max_tokens"] == (2000 if rich else 250)
