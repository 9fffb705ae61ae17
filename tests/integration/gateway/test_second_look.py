"""Answers that a served model checks before their clients get them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router.replay_decisions import replay
from tests.contract.backends.fakes import Exchange, FakeEngine
from tests.integration.gateway.live import bearer, key, live
from tests.integration.gateway.staged import DONE, Script, event, final, hangs, says, status, watched

POOR, GOOD = (says("<feedback>Hm.</feedback>", f"<score>{score}</score>") for score in (1, 5))
SECRET = "tiger striped words"


def answer(text: str) -> Script:
    """An answer of ten tokens to a prompt of eight."""
    return says(text, end=event(finish="stop") + final(8, 10) + DONE)


CHEAP, DEAR = answer("A guess."), answer("Well thought.")


def price(usd: float) -> dict[str, float]:
    return {"input_usd_per_mtok": usd, "output_usd_per_mtok": usd}


@asynccontextmanager
async def looking(
    tmp_path,
    *verdicts: Script,
    cheap: Script = CHEAP,
    dear: Sequence[Script] = (DEAR,) * 9,
    of_judge=None,
    look=None,
    **sections,
):
    """A gateway over a cheap model, a dear one, and a judge that gives these verdicts. Also the bodies that each got."""
    asked: dict[str, list[dict[str, Any]]] = {"cheap": [], "dear": [], "judge": []}
    scripts = {"cheap": (cheap,) * 9, "dear": dear, "judge": verdicts}

    async def play(name: str, exchange: Exchange) -> None:
        if await watched(exchange):
            return
        asked[name].append(exchange.json)
        await scripts[name][len(asked[name]) - 1](exchange)

    async with AsyncExitStack() as stack:
        instances = []
        for name in asked:
            engine = await stack.enter_async_context(FakeEngine(lambda x, name=name: play(name, x)))
            instances.append({"name": name, "kind": "vllm", "url": engine.url, "serves": {name: "m"}})
        gw = await stack.enter_async_context(
            live(
                tmp_path,
                models=[
                    {"name": "cheap", "price": price(1.0), "quality": 0.55},
                    {"name": "dear", "price": price(40.0), "quality": 0.9},
                    {"name": "judge", "price": price(0.01), "quality": 0.5},
                ],
                extra_instances=instances,
                auth={
                    "keys": [
                        key("team-a", models=["cheap", "dear"], policy="cost"),
                        key("judge", **(of_judge or {})),
                    ]
                },
                second_look={"model": "judge", "key": "judge", "auc": 0.95} | (look or {}),
                scheduling={"explore": 0.0},
                **({"probes": {"interval_s": 5, "eject_after": 100}} | sections),
            )
        )
        yield gw, asked


async def ask(gw, **body) -> tuple[str, dict[str, Any]]:
    """The answer of one chat, and its row."""
    body = {"messages": [{"role": "user", "content": f"What are {SECRET}?"}]} | body
    code, headers, said = await gw.chat(headers=bearer("team-a"), max_tokens=20, **body)
    assert code == 200, said
    assert said["headway"]["cost_usd"] == pytest.approx((await gw.row(headers["x-request-id"]))["cost_usd"])
    return said["choices"][0]["message"]["content"], await gw.row(headers["x-request-id"])


def counts(gw) -> dict[str, int]:
    return {name: count for name, count in gw.gateway.checked.items() if count}


async def attempts(gw, row) -> list[tuple[str, str]]:
    return [(each["model"], each["ended_how"]) for each in await gw.gateway.store.attempts(row["id"])]


CHEAP_USD, DEAR_USD = 18e-6, 18 * 40e-6


async def test_a_good_answer_is_delivered_and_a_poor_one_is_replaced(tmp_path):
    async with looking(tmp_path, GOOD, POOR) as (gw, asked):
        text, row = await ask(gw)
        assert (text, row["model"], row["attempts"], row["outcome"]) == ("A guess.", "cheap", 1, "ok")
        assert row["cost_usd"] == pytest.approx(CHEAP_USD)
        text, row = await ask(gw)
        assert (text, row["model"], row["attempts"], row["outcome"]) == ("Well thought.", "dear", 2, "ok")
        # Both answers are paid by the client's key, the verdict by the judge's.
        assert row["cost_usd"] == pytest.approx(CHEAP_USD + DEAR_USD)
        assert await attempts(gw, row) == [("cheap", "ok"), ("dear", "ok")]
        judged = [each for each in await gw.rows() if each["key_name"] == "judge"]
        assert {(each["model"], each["outcome"]) for each in judged} == {("judge", "ok")}
        assert len(judged) == 2
        assert [len(each) for each in asked.values()] == [2, 1, 2]
        for body in asked["judge"]:
            (message,) = body["messages"]
            assert f"<inputs>\n<query>\nWhat are {SECRET}?\n</query>\n</inputs>" in message["content"]
            assert "<output>\n<response>\nA guess.\n</response>\n</output>" in message["content"]
        assert counts(gw) == {"judged": 2}
        assert 'headway_checked_answers_total{result="judged"} 2' in await gw.metrics()


@pytest.mark.parametrize(
    "empty",
    [answer(""), answer(" \n"), says("", end=event(finish="content_filter") + final(8, 1) + DONE)],
    ids=["empty", "space", "refused"],
)
async def test_an_answer_without_text_is_replaced_without_a_verdict(tmp_path, empty):
    async with looking(tmp_path, cheap=empty) as (gw, asked):
        text, row = await ask(gw)
        assert (text, row["model"], row["attempts"], row["outcome"]) == ("Well thought.", "dear", 2, "ok")
        assert [len(each) for each in asked.values()] == [1, 1, 0]
        assert counts(gw) == {"judged": 1}


@pytest.mark.parametrize(
    ("verdict", "result"),
    [(says("I would say one."), "unreadable"), (status(400), "failed"), (hangs(), "failed")],
    ids=["unreadable", "failed", "too late"],
)
async def test_without_a_verdict_the_answer_is_delivered(tmp_path, verdict, result):
    async with looking(tmp_path, verdict, look={"timeout_s": 0.5}) as (gw, asked):
        text, row = await ask(gw)
        assert (text, row["model"], row["attempts"]) == ("A guess.", "cheap", 1)
        assert counts(gw) == {result: 1}
        assert asked["dear"] == []


@pytest.mark.parametrize(
    ("second", "how", "usd"),
    [(status(500), "failed", CHEAP_USD), (answer(""), "ok", CHEAP_USD + DEAR_USD)],
    ids=["fails", "is empty"],
)
async def test_the_first_answer_is_delivered_where_the_second_one_is_none(tmp_path, second, how, usd):
    async with looking(tmp_path, POOR, dear=[second]) as (gw, _):
        text, row = await ask(gw)
        assert (text, row["model"], row["outcome"]) == ("A guess.", "cheap", "ok")
        assert await attempts(gw, row) == [("cheap", "ok"), ("dear", how)]
        assert row["cost_usd"] == pytest.approx(usd)


async def test_the_judge_s_budget_ends_the_checks_only(tmp_path):
    async with looking(tmp_path, POOR, of_judge={"budget_usd": 1e-7}) as (gw, asked):
        text, row = await ask(gw)
        assert (text, row["outcome"]) == ("A guess.", "ok")
        assert asked["judge"] == []
        assert counts(gw) == {"failed": 1}


async def test_a_client_that_leaves_ends_its_check(tmp_path):
    async with looking(tmp_path, hangs()) as (gw, asked):
        asking = asyncio.create_task(ask(gw))
        await gw.until(lambda: asked["judge"])
        asking.cancel()
        await gw.until(lambda: not gw.gateway.runner.scheduler.live)
        rows = [await gw.row(each["id"]) for each in await gw.rows()]
        assert {each["outcome"] for each in rows} == {"client_cancelled"}
        assert counts(gw) in ({}, {"failed": 1})


async def test_streams_tools_and_several_answers_are_not_checked(tmp_path):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with looking(tmp_path) as (gw, asked):
        async with gw.stream(headers=bearer("team-a"), max_tokens=20) as response:
            await response.read()
        await ask(gw, tools=[tool])
        await ask(gw, n=2)
        await ask(gw, model="cheap")  # there is nothing to compare with
        await gw.chat(headers=bearer("judge"), routing={"policy": "cost"}, max_tokens=20)
        assert sum(map(len, asked.values())) == 5
        assert counts(gw) == {}


async def test_the_decisions_replay(tmp_path):
    log = tmp_path / "decisions.jsonl"
    async with looking(tmp_path, GOOD, POOR, observability={"decision_log": str(log)}) as (gw, _):
        await ask(gw)
        await ask(gw)
    events, differences = replay(log)
    assert events > 8
    assert differences == []
    assert '"Checked"' in log.read_text()
    assert SECRET not in log.read_text()


async def test_nothing_of_it_is_there_without_the_section(tmp_path):
    async with live(tmp_path) as gw:
        assert gw.gateway.checked is None
        assert (gw.server.handler._sample, gw.server.handler._check) == (None, None)
        assert gw.gateway.fleet.rules.check is None
