"""The client's word for a conversation: what the scheduler gets of it, and what the engine does."""

from __future__ import annotations

import json

from router.core.events import Arrived
from router.gateway.intake.request import session_id
from tests.integration.gateway.live import bearer, key, live, vllm
from tests.integration.gateway.staged import chat, says, staged


def sessions_heard(gw):
    """The sessions of requests from here on."""
    scheduler = gw.gateway.runner.scheduler
    respond, found = scheduler.respond, []

    def hear(event, now):
        if isinstance(event, Arrived):
            found.append(event.request.session)
        return respond(event, now)

    scheduler.respond = hear
    return found


async def test_the_body_comes_before_the_header(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        found = sessions_heard(gw)
        await gw.chat(prompt_cache_key="of the body", headers={"x-session-id": "of the header"})
        await gw.chat(headers={"x-session-id": "of the header"})
        await gw.chat(prompt_cache_key=None, headers={"x-session-id": "of the header"})
        await gw.chat(prompt_cache_key="")
        await gw.chat()
        ollama = {"model": "small", "stream": False, "messages": [{"role": "user", "content": "x"}]}
        await gw.post("/api/chat", ollama)
        await gw.post("/api/chat", ollama, headers={"x-session-id": "of the header"})
        body, header = session_id(None, "of the body"), session_id(None, "of the header")
        assert found == [body, header, header, None, None, None, header]


async def test_no_two_keys_share_one_and_nobody_reads_it(tmp_path):
    keys = [key("one"), key("two")]
    async with live(tmp_path, vllm("a"), auth={"keys": keys}) as gw:
        found = sessions_heard(gw)
        for name in ("one", "two", "one"):
            await gw.chat(prompt_cache_key="user zebra", headers=bearer(name))
        first, second, third = found
        assert first == third != second
        assert "zebra" not in first + second
        assert session_id("a", "bc") != session_id("ab", "c")
        told = json.dumps(await gw.rows())
        assert "zebra" not in told
        assert first not in told


async def test_the_engine_gets_the_field_but_no_header(tmp_path):
    async with staged(tmp_path, says("a")) as (gw, stage):
        await chat(gw, prompt_cache_key="k", headers={"x-session-id": "h"})
        assert stage.bodies[0]["prompt_cache_key"] == "k"
