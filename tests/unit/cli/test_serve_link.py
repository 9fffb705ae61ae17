"""Two processes ask each other; neither waits for one that has gone."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from router import background
from router.link import Link, LinkError
from tests.waiting import until


@asynccontextmanager
async def linked(answer):
    """Two ends; the second answers."""

    async def nothing(what, content):
        raise LinkError(f"not {what}")

    one, other = socket.socketpair()
    first, second = await Link.open(one, nothing), await Link.open(other, answer)
    try:
        yield first, second
    finally:
        await first.aclose()
        await second.aclose()


async def test_answers_find_who_asked():
    """A long one is overtaken by a short one, and both sides ask at once."""
    go_on = asyncio.Event()

    async def answer(what, content):
        if what == "long":
            await go_on.wait()
        return [what, content]

    async with linked(answer) as (first, second):
        long = asyncio.create_task(first.request("long", "x" * 300_000))
        assert await first.request("short", {"a": None}) == ["short", {"a": None}]
        with pytest.raises(LinkError, match="not this"):
            await second.request("this")
        go_on.set()
        assert await long == ["long", "x" * 300_000]


async def test_what_fails_there_is_told_here(caplog, monkeypatch):
    monkeypatch.setattr(background, "_logged_at", {})

    async def answer(what, content):
        raise ValueError("a fault")

    async with linked(answer) as (first, _):
        with pytest.raises(LinkError, match="it failed"):
            await first.request("anything")
    assert "link failed (ValueError)" in caplog.text


async def test_nobody_waits_for_who_is_slow_or_gone():
    told = []

    async def answer(what, content):
        told.append(content)
        await asyncio.Event().wait()

    async with linked(answer) as (first, second):
        with pytest.raises(TimeoutError):
            await first.request("slow", 1, timeout_s=0.01)
        waiting = asyncio.create_task(first.request("slow", 2))
        await until(lambda: told == [1, 2])
        await second.aclose()
        with pytest.raises(LinkError, match="has ended"):
            await waiting
        await first.ended()
        with pytest.raises(LinkError, match="has ended"):
            await first.request("too late")
        first.notify("too late")
