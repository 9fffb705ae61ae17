"""A second attempt beside a late one: whose first token comes first gives the whole answer, the other one nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.gateway.live import fault, live, vllm
from tests.integration.gateway.staged import (
    DONE,
    INPUT_USD,
    MODEL,
    OUTPUT_USD,
    after,
    chat,
    event,
    final,
    hangs,
    hedge_after,
    says,
    staged,
    status,
)

LATE_S = 0.03


async def attempts_of(gw, request_id):
    row = await gw.row(request_id)
    found = await gw.gateway.store.attempts(request_id)
    return row, sorted(found, key=lambda attempt: attempt["number"])


def all_free(gw):
    return all(
        (instance.in_flight, instance.awaiting_first_token) == (0, 0) for instance in gw.instances.values()
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("hung", ["nothing", "head", "role"])
async def test_a_hedge_wins(tmp_path, monkeypatch, hung, stream):
    sections = hedge_after(monkeypatch, LATE_S)
    answer = says("b", "b", "b", end=event(finish="stop") + final(9, 3) + DONE)
    async with staged(tmp_path, hangs(hung), answer, **sections) as (gw, stage):
        text, headers, finish = await chat(gw, stream=stream)
        assert (text, finish) == ("bbb", "stop")
        assert headers["x-headway-instance"] == stage.engines[1] != stage.engines[0]
        await asyncio.wait_for(stage.cut[0].wait(), 2)  # the loser's engine is told to stop
        row, (first, second) = await attempts_of(gw, headers["x-request-id"])
        assert (row["outcome"], row["hedged"], row["attempts"]) == ("ok", True, 2)
        assert (row["instance"], row["output_tokens"]) == (stage.engines[1], 3)
        assert row["ttft_s"] >= LATE_S
        assert first["ended_how"] == "hedge_lost"
        assert (first["output_tokens"], first["first_token_at"]) == (0, None)
        assert (second["ended_how"], second["output_tokens"]) == ("ok", 3)
        assert first["cost_usd"] > 0  # its prompt
        assert second["cost_usd"] == pytest.approx(9 * INPUT_USD + 3 * OUTPUT_USD)
        assert row["cost_usd"] == pytest.approx(first["cost_usd"] + second["cost_usd"])
        assert all_free(gw)


@pytest.mark.parametrize("hung", ["nothing", "head", "role"])
async def test_the_first_attempt_wins(tmp_path, monkeypatch, hung):
    sections = hedge_after(monkeypatch, LATE_S)
    first = after(0.15, says("a", "a", gap_s=0.02))
    async with staged(tmp_path, first, hangs(hung), **sections) as (gw, stage):
        text, headers, finish = await chat(gw)
        assert (text, finish, headers["x-headway-instance"]) == ("aa", "stop", stage.engines[0])
        await asyncio.wait_for(stage.cut[1].wait(), 2)
        row, attempts = await attempts_of(gw, headers["x-request-id"])
        assert (row["hedged"], row["instance"]) == (True, stage.engines[0])
        assert [attempt["ended_how"] for attempt in attempts] == ["ok", "hedge_lost"]
        assert all_free(gw)


@pytest.mark.parametrize("stream", [True, False])
async def test_first_tokens_of_the_same_moment_never_mix(tmp_path, monkeypatch, stream):
    sections = hedge_after(monkeypatch, LATE_S)
    waiting = []

    def together(letter):
        async def script(exchange):
            await exchange.begin(event())
            released = asyncio.Event()
            waiting.append((exchange, event(letter) * 5, released))
            if len(waiting) == 2:  # both engines' bytes are there when the gateway's loop turns next
                for each, tokens, go_on in waiting:
                    each.writer.write(b"%x\r\n%b\r\n" % (len(tokens), tokens))
                    go_on.set()
                waiting.clear()
            await released.wait()
            for _ in range(5):
                await exchange.chunk(event(letter))
            await exchange.chunk(event(finish="stop") + DONE)
            await exchange.end()

        return script

    rounds = 12
    scripts = [together(letter) for _ in range(rounds) for letter in "ab"]
    async with staged(tmp_path, *scripts, **sections) as (gw, stage):
        for number in range(rounds):
            text, headers, finish = await chat(gw, stream=stream)
            assert text in ("a" * 10, "b" * 10)
            assert finish == "stop"
            winner = number * 2 + "ab".index(text[0])
            assert headers["x-headway-instance"] == stage.engines[winner]
            _, attempts = await attempts_of(gw, headers["x-request-id"])
            assert sorted(attempt["ended_how"] for attempt in attempts) == ["hedge_lost", "ok"]
            assert attempts["ab".index(text[0])]["ended_how"] == "ok"
        await gw.until(lambda: all_free(gw))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("code", [500, 400])
@pytest.mark.parametrize("which", [0, 1])
async def test_one_of_two_fails_before_a_token(tmp_path, monkeypatch, which, code, stream):
    """The request goes on with the other one, without a third."""
    sections = hedge_after(monkeypatch, LATE_S)
    scripts = [after(0.2, says("x", "y")), after(0.2, says("x", "y"))]
    scripts[which] = after(0.08, status(code))
    async with staged(tmp_path, *scripts, **sections) as (gw, stage):
        text, headers, _ = await chat(gw, stream=stream)
        assert (text, headers["x-headway-instance"]) == ("xy", stage.engines[1 - which])
        row, attempts = await attempts_of(gw, headers["x-request-id"])
        assert (row["outcome"], row["attempts"], row["hedged"]) == ("ok", 2, True)
        assert (attempts[which]["ended_how"], attempts[which]["cost_usd"]) == ("failed", 0)
        assert attempts[1 - which]["ended_how"] == "ok"
        assert all_free(gw)


async def test_both_fail_and_nobody_is_left(tmp_path, monkeypatch):
    sections = hedge_after(monkeypatch, LATE_S)
    for scripts, code, outcome in (
        ((after(0.1, status(500)), after(0.1, status(500))), "upstream_error", "backend_error"),
        ((after(0.1, status(400)), after(0.1, status(400))), "invalid_request", "rejected_invalid"),
    ):
        async with staged(tmp_path, *scripts, **sections) as (gw, _):
            _, headers, told = await chat(gw)
            row, _ = await attempts_of(gw, headers["x-request-id"])
            assert (told, row["outcome"], row["attempts"]) == (code, outcome, 2)
            assert all_free(gw)


@pytest.mark.parametrize("which", [0, 1])
async def test_an_answer_without_a_token_ends_the_other(tmp_path, monkeypatch, which):
    sections = hedge_after(monkeypatch, LATE_S)
    scripts = [hangs(), hangs()]
    scripts[which] = after(0.1, says())
    async with staged(tmp_path, *scripts, **sections) as (gw, stage):
        text, headers, finish = await chat(gw)
        assert (text, finish, headers["x-headway-instance"]) == ("", "stop", stage.engines[which])
        await asyncio.wait_for(stage.cut[1 - which].wait(), 2)
        row, attempts = await attempts_of(gw, headers["x-request-id"])
        assert (row["outcome"], attempts[which]["ended_how"]) == ("ok", "ok")
        assert attempts[1 - which]["ended_how"] == "hedge_lost"
        assert all_free(gw)


@pytest.mark.parametrize("hung", ["nothing", "role"])
async def test_a_client_that_leaves_ends_both(tmp_path, monkeypatch, hung):
    sections = hedge_after(monkeypatch, LATE_S)
    async with staged(tmp_path, hangs(hung), hangs(hung), **sections) as (gw, stage):
        asking = asyncio.create_task(gw.chat(model="small"))
        await gw.until(lambda: len(stage.engines) == 2)
        await gw.gone(asking)
        for number in (0, 1):
            await asyncio.wait_for(stage.cut[number].wait(), 2)
        await gw.until(lambda: gw.gateway.store.counts().finished == 1)
        (row,) = await gw.rows()
        _, attempts = await attempts_of(gw, row["id"])
        assert (row["outcome"], row["hedged"]) == ("client_cancelled", True)
        assert [attempt["ended_how"] for attempt in attempts] == ["cancelled", "cancelled"]
        assert all_free(gw)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_hedge_that_won_breaks_in_mid_answer(tmp_path, monkeypatch, stream):
    """Streaming, the client is told; else there is another attempt, and nothing of the broken one in its answer."""
    sections = hedge_after(monkeypatch, LATE_S)
    broken = says("b", "b", end=b'data: {"error": {"message": "broken", "code": 500}}\n\n')
    async with staged(tmp_path, hangs(), broken, says("c", "c"), engines="abc", **sections) as (gw, _):
        text, headers, told = await chat(gw, stream=stream)
        assert (text, told) == (("bb", "upstream_error") if stream else ("cc", "stop"))
        row, attempts = await attempts_of(gw, headers["x-request-id"])
        hows = ["hedge_lost", "failed"] + ["ok"] * (not stream)
        assert [attempt["ended_how"] for attempt in attempts] == hows
        assert attempts[1]["output_tokens"] == 2
        assert row["cost_usd"] == pytest.approx(sum(attempt["cost_usd"] for attempt in attempts))
        assert all_free(gw)


async def test_many_requests_with_hedges_all_end(tmp_path, monkeypatch):
    """Answers of mixed lateness: each is one engine's whole, and no counter of an instance is left behind."""
    sections = hedge_after(monkeypatch, 0.02)
    delays = [0.0, 0.0199, 0.0201, 0.03, 0.05]
    scripts = [after(delays[n % 5], says(*[f"{n} "] * 3, gap_s=0.001 * (n % 3))) for n in range(200)]
    async with staged(tmp_path, *scripts, engines="abcd", **sections) as (gw, stage):
        got = await asyncio.gather(*(chat(gw) for _ in range(60)))
        for text, headers, finish in got:
            said = text.split()
            assert (len(said), len(set(said)), finish) == (3, 1, "stop")
            assert headers["x-headway-instance"] == stage.engines[int(said[0])]
        await gw.until(lambda: all_free(gw) and not gw.gateway.runner.scheduler.live)
        rows = await gw.rows()
        assert {row["outcome"] for row in rows} == {"ok"}
        assert any(row["hedged"] for row in rows)
        assert sum(row["attempts"] for row in rows) == len(stage.bodies)


async def test_what_is_not_hedged(tmp_path, monkeypatch):
    """Several choices, several prompts, and what an engine answers in one piece."""
    sections = hedge_after(monkeypatch, 0.0)
    async with live(tmp_path, vllm("a"), vllm("b"), **sections) as gw:
        prompt = {"model": MODEL, "max_tokens": 2}
        for path, body in (
            ("chat/completions", {"n": 2, "messages": [{"role": "user", "content": "x"}]}),
            ("chat/completions", {"prompt_logprobs": 1, "messages": [{"role": "user", "content": "x"}]}),
            ("completions", {"prompt": ["x", "y"]}),
            ("embeddings", {"input": "x"}),
        ):
            await gw.post(f"/v1/{path}", prompt | body)
        assert not any(row["hedged"] for row in await gw.rows())


async def test_a_stuck_engine_is_hedged_by_what_is_predicted(tmp_path):
    """Nothing is forced: predictions, the SLO and the share decide."""
    scheduling = {"hedge": {"enabled": True, "max_share": 1.0}, "explore": 0.0}
    async with live(tmp_path, vllm("a"), vllm("b"), scheduling=scheduling) as gw:
        routing = {"policy": "round_robin", "slo": {"ttft_ms": 60}}
        for _ in range(30):  # predictions learn how fast these engines are
            assert (await gw.chat(model="small", routing=routing))[0] == 200
        for _ in range(4):
            gw.engines["a"].arm(fault("hang_before_first_token"))
            _, headers, _ = await gw.chat(model="small", routing=routing)
            row, attempts = await attempts_of(gw, headers["x-request-id"])
            gw.engines["a"].faults.clear()
            if attempts[0]["instance"] == "a":
                break
        assert (row["hedged"], row["instance"]) == (True, "b")
        assert [attempt["ended_how"] for attempt in attempts] == ["hedge_lost", "ok"]
