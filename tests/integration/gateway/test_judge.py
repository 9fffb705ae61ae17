"""Answers that a served model judges in the background."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing

from benchmarks.compare.gateway import Gateway as Control
from benchmarks.replay.client import Target
from benchmarks.replay.row import Row
from router.gateway.records import MAX_JUDGEMENTS
from router.process import Process
from tests.contract.backends.fakes import Exchange, FakeEngine
from tests.integration.gateway.live import MODELS, bearer, key, live, vllm
from tests.integration.gateway.staged import Script, hangs, says, status, watched

SECRET = "tiger striped words"
GOOD = says("<feedback>Fine.</feedback>", "<score>4</score>")


@asynccontextmanager
async def judged(tmp_path, script: Callable[[int], Script], *, share=1.0, of_judge=None, **sections):
    """A gateway over an emulated engine and a judge that answers its n-th request by `script(n)`. Also the bodies that the
    judge got."""
    asked = []

    async def play(exchange: Exchange) -> None:
        if await watched(exchange):
            return
        asked.append(exchange.json)
        await script(len(asked))(exchange)

    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeEngine(play))
        judge = {"name": "judge-0", "kind": "vllm", "url": engine.url, "serves": {"judge-70b": "up"}}
        price = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 1.0}
        gw = await stack.enter_async_context(
            live(
                tmp_path,
                vllm("a"),
                models=[*MODELS, {"name": "judge-70b", "price": price}],
                extra_instances=[judge],
                auth={"keys": [key("team-a"), key("judge", **(of_judge or {}))]},
                judge={"model": "judge-70b", "key": "judge", "share": share},
                **sections,
            )
        )
        yield gw, asked


def counts(gw) -> dict[str, int]:
    """What came of the chosen answers."""
    return dict(gw.gateway.judged)


async def ask(gw, path="/v1/chat/completions", **body) -> str:
    """One answer to team-a; its request's id."""
    if "prompt" not in body and "input" not in body:
        body = {"messages": [{"role": "user", "content": f"What are {SECRET}?"}]} | body
    bound = "max_output_tokens" if "input" in body else "max_tokens"
    body = {"model": "llama-3.1-8b", bound: 6} | body
    async with gw.http.post(gw.url + path, json=body, headers=bearer("team-a")) as response:
        await response.read()
        assert response.status == 200
        return response.headers["x-request-id"]


async def settled(gw, total: int) -> dict[str, int]:
    await gw.until(lambda: sum(counts(gw).values()) == total)
    return counts(gw)


async def test_the_scores_are_feedback_of_the_judge_s_key(tmp_path):
    async with judged(tmp_path, lambda _: GOOD) as (gw, asked):
        ids = [
            await ask(gw),
            await ask(gw, stream=True),
            await ask(gw, "/v1/completions", prompt=f"What are {SECRET}?"),
            await ask(gw, "/v1/completions", prompt=f"What are {SECRET}?", stream=True),
            await ask(gw, "/v1/responses", input=f"What are {SECRET}?"),
            await ask(gw, "/api/chat"),
            await ask(gw, "/api/chat", stream=False),
        ]
        assert await settled(gw, len(ids)) == {"judged": 7, "unreadable": 0, "failed": 0, "dropped": 0}
        for request in ids:
            (given,) = await gw.gateway.store.feedback(request)
            assert (given["quality"], given["key_name"]) == (0.75, "judge")
        for body in asked:
            (message,) = body["messages"]
            assert f"<inputs>\n<query>\nWhat are {SECRET}?\n</query>\n</inputs>" in message["content"]
            answer = message["content"].partition("<response>\n")[2].partition("\n</response>")[0]
            assert answer.startswith("Emulated text")
        assert gw.gateway.predictor.feedback_counts() == {"llama-3.1-8b": 7}
        # The judge's own requests are recorded, come after others, and are not judged.
        rows = [row for row in await gw.rows() if row["key_name"] == "judge"]
        assert len(rows) == len(asked) == 7
        assert {(row["model"], row["priority"], row["outcome"]) for row in rows} == {("judge-70b", -1, "ok")}
        assert 'headway_judged_answers_total{result="judged"} 7' in await gw.metrics()


async def test_a_request_of_the_judge_s_key_is_not_judged(tmp_path):
    async with judged(tmp_path, lambda _: GOOD) as (gw, asked):
        answer, _, _ = await gw.chat(model="llama-3.1-8b", headers=bearer("judge"))
        assert answer == 200
        await ask(gw)
        assert (await settled(gw, 1))["judged"] == len(asked) == 1


async def test_a_judge_that_is_no_judge(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    scripts = [says("I would say four."), status(400), GOOD, says("<score>9</score>")]
    async with judged(tmp_path, lambda number: scripts[number - 1]) as (gw, _):
        ids = []
        for done in range(1, 5):
            ids.append(await ask(gw))
            await settled(gw, done)
        assert counts(gw) == {"judged": 1, "unreadable": 2, "failed": 1, "dropped": 0}
        assert [len(await gw.gateway.store.feedback(each)) for each in ids] == [0, 0, 1, 0]
    assert SECRET not in caplog.text
    assert "Emulated text" not in caplog.text


async def test_a_score_that_cannot_be_kept_is_no_fault(tmp_path, caplog):
    released = [asyncio.Event(), asyncio.Event()]

    def script(number: int) -> Script:
        async def later(exchange: Exchange) -> None:
            await released[number - 1].wait()
            await GOOD(exchange)

        return later

    async with judged(tmp_path, script) as (gw, _):
        rating = {"request_id": await ask(gw)}
        for each in range(MAX_JUDGEMENTS):
            rating["quality"] = each % 2
            assert (await gw.post("/v1/feedback", rating, headers=bearer("team-a")))[0] == 200
        released[0].set()
        assert (await settled(gw, 1))["failed"] == 1
        await ask(gw)
        path = tmp_path / "headway.db"
        path.rename(tmp_path / "aside.db")
        released[1].set()
        assert (await settled(gw, 2))["failed"] == 2
        (tmp_path / "aside.db").rename(path)
    assert "judge failed" not in caplog.text


async def test_the_budget_of_its_key_bounds_what_it_spends(tmp_path):
    async with judged(tmp_path, lambda _: GOOD, of_judge={"budget_usd": 0.0025}) as (gw, asked):
        for done in range(1, 4):
            await ask(gw)
            await settled(gw, done)
        assert counts(gw)["failed"] > 0
        assert counts(gw)["judged"] == len(asked) > 0
        rows = [row for row in await gw.rows() if row["key_name"] == "judge"]
        assert [row["outcome"] for row in rows] == ["ok"] * len(asked)  # and none that was refused
        assert 0.0 < sum(row["cost_usd"] for row in rows) <= 0.0025
    with closing(sqlite3.connect(tmp_path / "headway.db")) as database, database:
        ((arrived, finished),) = database.execute("SELECT arrived, finished FROM runs")
    assert arrived == finished == 3 + len(asked)  # what was refused is not counted as lost


async def test_what_its_key_s_limits_refuse_leaves_no_record(tmp_path):
    async with judged(tmp_path, lambda _: GOOD, of_judge={"requests_per_minute": 1}) as (gw, asked):
        for done in range(1, 4):
            await ask(gw)
            await settled(gw, done)
        assert (counts(gw)["judged"], counts(gw)["failed"], len(asked)) == (1, 2, 1)
        assert [row["key_name"] for row in await gw.rows()].count("judge") == 1


async def test_what_finds_the_queue_full_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr("router.gateway.judge.MOST_WAITING", 1)
    async with judged(tmp_path, lambda _: hangs()) as (gw, asked):
        for _ in range(2):
            await ask(gw)
        await gw.until(lambda: len(asked) == 2)  # both workers wait
        for _ in range(4):
            await ask(gw)
        assert counts(gw)["dropped"] == 3
        assert len(asked) == 2
    # It stops with them.


async def test_what_waits_when_the_gateway_stops_is_dropped(tmp_path):
    released = asyncio.Event()

    def script(_: int) -> Script:
        async def later(exchange: Exchange) -> None:
            await released.wait()
            await GOOD(exchange)

        return later

    async with judged(tmp_path, script) as (gw, asked):
        for _ in range(2):
            await ask(gw)
        await gw.until(lambda: len(asked) == 2)  # both workers wait
        await ask(gw)
        gw.gateway.draining = True
        released.set()
        found = await settled(gw, 3)
        assert (found["judged"], found["dropped"]) == (2, 1)
        rows = [row for row in await gw.rows() if row["key_name"] == "judge"]
        assert [row["outcome"] for row in rows] == ["ok", "ok"]  # and none that was refused


async def test_a_drain_does_not_wait_for_verdicts(tmp_path):
    async with judged(tmp_path, lambda _: hangs()) as (gw, asked):
        for _ in range(3):
            await ask(gw)
        await gw.until(lambda: len(asked) == 2)  # both workers wait, and so does an answer
        Process(gw.gateway, gw.server).stop()
        await gw.until(lambda: gw.server.should_exit, within_s=1.0)
        rows = [row for row in await gw.rows() if row["key_name"] == "judge"]
        assert [row["outcome"] for row in rows] == ["client_cancelled"] * 2


async def test_only_a_share_is_judged(tmp_path):
    async with judged(tmp_path, lambda _: GOOD, share=0.5) as (gw, asked):
        ids = [await ask(gw) for _ in range(24)]
        chosen = [each for each in ids if int(each[-8:], 16) < 1 << 31]
        await settled(gw, len(chosen))
        assert 0 < len(asked) == len(chosen) < 24
        assert [bool(await gw.gateway.store.feedback(each)) for each in ids] == [
            each in chosen for each in ids
        ]


async def test_what_a_judge_cannot_read_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr("router.gateway.judge.MOST_TEXT", 1000)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asks = [{"type": "text", "text": "What is it?"}, image]
    async with judged(tmp_path, lambda _: GOOD) as (gw, asked):
        await ask(gw, messages=[{"role": "user", "content": "long " * 200}])  # not even chosen
        await ask(gw, max_tokens=1000, min_tokens=1000)
        await ask(gw, max_tokens=1000, min_tokens=1000, stream=True)
        assert await settled(gw, 2) == {"judged": 0, "unreadable": 0, "failed": 0, "dropped": 2}
        monkeypatch.undo()
        await ask(gw, messages=[{"role": "user", "content": asks}])
        assert (await settled(gw, 3))["dropped"] == 3
        await ask(gw, n=2)
        await ask(gw)
        assert (await settled(gw, 4))["judged"] == len(asked) == 1


async def test_a_live_comparison_reads_its_scores(tmp_path):
    async with judged(tmp_path, lambda _: GOOD) as (gw, _):
        ids = [await ask(gw), await ask(gw, stream=True)]
        control = Control(gw.http, Target(gw.url, api_key="team-a"))
        assert await control.until_judged(60.0)
        rows = [Row(each, 0.0, 0.0, complete=True, headers={"x-request-id": each}) for each in ids]
        await control.look_up(rows, ratings=True)
        assert [(row.gateway_outcome, row.quality) for row in rows] == [("ok", 0.75)] * 2
    async with live(tmp_path, vllm("a")) as gw:
        assert not await Control(gw.http, Target(gw.url)).until_judged(60.0)


async def test_nothing_of_it_is_there_without_the_section(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        assert gw.gateway.judged is None
        assert (gw.server.handler._sample, gw.server.handler._check) == (None, None)
        assert "headway_judged" not in await gw.metrics()


async def test_an_answer_that_did_not_end_is_not_judged(tmp_path):
    async with judged(tmp_path, lambda _: GOOD) as (gw, asked):
        async with gw.stream(model="llama-3.1-8b", headers=bearer("team-a")) as response:
            await response.content.readany()
        await ask(gw)
        assert (await settled(gw, 1))["judged"] == len(asked) == 1
        await asyncio.sleep(1)
        assert len(asked) == 1


async def test_a_reload_takes_its_key_away(tmp_path):
    async with judged(tmp_path, lambda _: GOOD) as (gw, asked):
        gw.fleet["auth"] = {"keys": [key("team-a")]}
        del gw.fleet["judge"]
        await gw.gateway.changes.reload()
        await ask(gw)
        assert (await settled(gw, 1))["failed"] == 1
        assert asked == []
        assert [row["outcome"] for row in await gw.rows()] == ["ok", "rejected_auth"]
