"""What docker-compose.yml starts, started by hand: two gateways, one truth, each part ended in turn."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.integration.deployment.stack import ADMIN_KEY, Stack
from tests.servers.postgres import PostgresServer

ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
ASK = {"model": "small", "messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 4}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Stack]:
    asyncio.run(postgres.execute("CREATE DATABASE compose"))
    with Stack(tmp_path_factory.mktemp("compose"), postgres, "compose") as running:
        asyncio.run(ready(running))
        yield running
    for number in range(len(running.gateways)):
        log = running.log(f"gateway-{number}")
        assert ADMIN_KEY not in log
        assert "Traceback" not in log, log


async def ready(stack: Stack) -> None:
    async with client() as session:
        await asyncio.gather(*(stack.until_ready(session, url) for url in stack.urls))


def client() -> aiohttp.ClientSession:
    """A client that opens a connection for each request, as gateways come and go."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


async def ask(session: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None) -> str:
    async with session.post(f"{url}/v1/chat/completions", json=ASK, headers=headers) as answer:
        body: dict[str, Any] = await answer.json()
        assert answer.status == 200, body
        return str(body["headway"]["request_id"])


async def recorded(session: aiohttp.ClientSession, url: str, ids: set[str]) -> None:
    """Wait until a gateway shows the rows of all of these requests."""
    async with asyncio.timeout(60):
        while True:
            async with session.get(
                f"{url}/admin/requests", params={"limit": "1000"}, headers=ADMIN
            ) as answer:
                if answer.status == 200:
                    rows = {row["id"]: row for row in (await answer.json())["requests"]}
                    if ids <= rows.keys():
                        assert {rows[each]["outcome"] for each in ids} <= {"ok", "late"}
                        return
            await asyncio.sleep(0.1)


async def fleet(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(f"{url}/admin/fleet", headers=ADMIN) as answer:
        return await answer.json()


async def until_state(session: aiohttp.ClientSession, url: str, name: str, value: object) -> None:
    """Wait until a gateway says this of the state that it shares."""
    async with asyncio.timeout(60):
        while True:
            if (await fleet(session, url))["state"][name] == value:
                return
            await asyncio.sleep(0.05)


async def until_answered(
    session: aiohttp.ClientSession, url: str, status: int, key: dict[str, str] | None = None
) -> None:
    """Wait until a gateway has heard of a key that was made at the other: within two seconds."""
    async with asyncio.timeout(60):
        while True:
            async with session.get(f"{url}/v1/models", headers=key) as answer:
                if answer.status == status:
                    return
            await asyncio.sleep(0.1)


async def make_key(session: aiohttp.ClientSession, url: str, **settings: object) -> dict[str, str]:
    """The headers of a new key."""
    async with session.post(f"{url}/admin/keys", json=settings, headers=ADMIN) as answer:
        assert answer.status == 201, await answer.text()
        return {"authorization": f"Bearer {(await answer.json())['key']}"}


async def test_it_runs_and_survives_each_part(stack: Stack) -> None:
    async with client() as session:
        first, second = stack.urls

        # nobody is answered before the first key is made
        for url in (first, second):
            await until_answered(session, url, 401)
        key = await make_key(session, first, name="first")
        await until_answered(session, second, 200, key)

        # one truth: what one gateway served the other shows, and each knows of the other
        ids = {await ask(session, url, key) for url in (first, second) * 3}
        await recorded(session, first, ids)
        await recorded(session, second, ids)
        await until_state(session, first, "replicas", 2)

        # a key made at one is a key of the other
        key = await make_key(session, first, name="team-a", requests_per_minute=2)
        await until_answered(session, second, 401)
        await until_answered(session, second, 200, key)
        statuses = []
        for number in range(7):
            url = stack.urls[number % 2]
            async with session.post(f"{url}/v1/chat/completions", json=ASK, headers=key) as answer:
                statuses.append(answer.status)
        assert statuses.count(200) == 2, statuses  # two a minute at both together
        assert statuses.count(429) == 5

        # Redis ends and comes back: requests go on, each gateway by its own view
        key = await make_key(session, first, name="team-b")
        await until_answered(session, second, 200, key)
        await asyncio.to_thread(stack.redis.kill)
        alone = {await ask(session, url, key) for url in (first, second) * 2}
        await until_state(session, second, "connected", False)
        await asyncio.to_thread(stack.redis.start)
        await until_state(session, second, "replicas", 2)
        await recorded(session, first, alone)

        # PostgreSQL ends and comes back: no row is lost
        async with stack.postgres.away():
            away = {await ask(session, url, key) for url in (first, second) * 2}
        await recorded(session, second, away)

        # an engine ends: requests go elsewhere
        assert stack.end("h100-0", signal.SIGKILL) == -signal.SIGKILL
        for url in (first, second) * 2:
            await ask(session, url, key)
        stack.start("h100-0")

        # a gateway ends: the other goes on and hears of it
        assert stack.end("gateway-0", signal.SIGKILL) == -signal.SIGKILL
        await ask(session, second, key)
        await until_state(session, second, "replicas", 1)
        stack.start("gateway-0")
        await stack.until_ready(session, first)
        await ask(session, first, key)

        # and in good order: what is under way is answered first
        body = {**ASK, "max_tokens": 200, "stream": True}
        async with session.post(f"{second}/v1/chat/completions", json=body, headers=key) as answer:
            assert answer.status == 200
            ending = asyncio.create_task(asyncio.to_thread(stack.end, "gateway-1", signal.SIGTERM))
            text = (await answer.read()).decode()
        assert text.rstrip().endswith("data: [DONE]")
        assert await ending == 0
