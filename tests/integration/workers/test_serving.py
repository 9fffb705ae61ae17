"""Two workers serve one port as one gateway: connections, metrics, a changed fleet, a worker that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import closing

import aiohttp

from tests.integration.gateway.live import MODELS, fleet_of
from tests.integration.workers.running import CHAT, by_worker, engine_at, serving, write_fleet
from tests.processes import is_running
from tests.servers.redis import RedisServer
from tests.waiting import until

EMULATED = {
    "name": "sim",
    "kind": "emulated",
    "profile": "qwen2.5-7b@a100-80g",
    "speed": 50.0,
    "serves": {"qwen2.5-7b": "qwen"},
}


async def test_workers_are_one_gateway(tmp_path, redis_url):
    async with engine_at() as engine:
        instances = [*fleet_of([engine], {}), EMULATED]
        file = write_fleet(tmp_path, redis_url, more={"instances": instances})
        async with serving(file) as gw:
            # Both get connections, and what they counted is on one page, whichever of them is asked.
            for _ in range(40):
                await gw.chat()
            for _ in range(10):
                found = await gw.metrics()
                counts = by_worker(found["headway_requests"], outcome="ok")
                assert counts.keys() == {"0", "1"}
                assert sum(counts.values()) == 40
                assert by_worker(found["gen_ai_server_request_duration_seconds"]) == counts
                assert by_worker(found["headway_worker_up"]) == {"0": 1, "1": 1}
            assert by_worker(found["headway_event_loop_stall_seconds"]).keys() == {"0", "1"}

            # An emulated engine runs once for all of them.
            assert gw.engine_processes() == 1
            assert (await gw.chat(model="qwen2.5-7b"))["headway"]["instance"] == "sim"

            async def models() -> list[str]:
                async with gw.http.get(f"{gw.url}/v1/models") as response:
                    return [each["id"] for each in (await response.json())["data"]]

            # A changed file reaches all, by SIGHUP to the supervisor or by a call to any one of them.
            gw.change(models=[*MODELS, {"name": "third"}])
            gw.process.send_signal(signal.SIGHUP)
            await gw.everywhere(models, ["llama-3.1-8b", "qwen2.5-7b", "third"])
            gw.change(models=MODELS, instances=[*instances, EMULATED | {"name": "late"}])
            async with gw.http.post(f"{gw.url}/admin/reload") as response:
                assert response.status == 200
            await gw.everywhere(models, ["llama-3.1-8b", "qwen2.5-7b"])
            assert gw.engine_processes() == 2  # `late` was started, once

            # So does an instance that is added at any one of them.
            async def instances_now() -> list[str]:
                async with gw.http.get(f"{gw.url}/admin/fleet") as response:
                    return [each["name"] for each in (await response.json())["instances"]]

            added = EMULATED | {"name": "added"}
            async with gw.http.post(f"{gw.url}/admin/instances", json=added) as response:
                assert response.status == 201
            await gw.everywhere(instances_now, ["a", "sim", "late", "added"])
            assert gw.engine_processes() == 3  # once again

            # A bad file is refused by all.
            gw.change(models=[])
            gw.process.send_signal(signal.SIGHUP)
            await until(lambda: "is not applied" in gw.log.read_text())
            await gw.everywhere(models, ["llama-3.1-8b", "qwen2.5-7b"])
            assert await gw.end(signal.SIGINT) == 0


async def test_all_read_a_changed_file_while_they_still_decide_alone(tmp_path):
    """Redis answers again, and each still decides from its share, so that changes do not reach the others."""
    with RedisServer(tmp_path / "redis") as redis:
        state = {"url": redis.url, "timeout_ms": 4000}  # they do so for 9 s
        async with (
            engine_at() as engine,
            serving(write_fleet(tmp_path, "", engine, more={"state": state})) as gw,
        ):
            await asyncio.to_thread(redis.kill)
            await until(lambda: gw.log.read_text().count("decides alone") == 2)
            await asyncio.to_thread(redis.start)

            async def answers() -> bool:
                async with gw.http.get(f"{gw.url}/admin/fleet") as response:
                    return (await response.json())["state"]["connected"]

            await gw.everywhere(answers, True)
            gw.change(models=[*MODELS, {"name": "third"}])
            gw.process.send_signal(signal.SIGHUP)
            await until(lambda: gw.log.read_text().count("is applied (models: 1 added") == 2)
            assert "answers again" not in gw.log.read_text()


async def test_a_killed_worker_takes_only_its_own_connections_along(tmp_path, redis_url):
    async with engine_at() as engine:
        async with serving(write_fleet(tmp_path, redis_url, engine)) as gw:
            done, broken = 0, 0
            stop = asyncio.Event()

            async def ask() -> None:
                nonlocal done, broken
                async with aiohttp.ClientSession() as http:  # connections are kept
                    while not stop.is_set():
                        try:
                            async with http.post(f"{gw.url}/v1/chat/completions", json=CHAT) as response:
                                assert response.status == 200
                                assert (await response.json())["usage"]["completion_tokens"] == 4
                                done += 1
                        except aiohttp.ClientConnectionError:
                            broken += 1
                        await asyncio.sleep(0.05)  # the start of a process needs the cores as well

            clients = [asyncio.create_task(ask()) for _ in range(4)]
            await until(lambda: done >= 30)
            # Nobody has been told to read this: who starts again serves what the other one serves.
            gw.change(models=[])
            killed, other = gw.workers()
            os.kill(killed, signal.SIGKILL)
            before = done
            await until(lambda: done >= before + 30)  # the other one goes on
            assert broken <= 4
            assert is_running(other)

            # It comes back, takes connections again, and the page says so.
            async def both() -> bool:
                found = await gw.metrics()
                restarts = by_worker(found["headway_worker_restarts"])
                assert sum(restarts.values()) <= 1
                up = by_worker(found["headway_worker_up"])
                return sum(restarts.values()) == 1 and up == {"0": 1, "1": 1}

            async with asyncio.timeout(60):
                while not await both():  # noqa: ASYNC110 (a test may poll)
                    await asyncio.sleep(0.1)
            new = [each for each in gw.workers() if each != other]
            assert len(new) == 1
            assert killed != new[0]
            stop.set()
            await asyncio.gather(*clients)
            assert broken <= 4
            for _ in range(20):
                await gw.chat()
                done += 1
            counts = by_worker((await gw.metrics())["headway_requests"])
            assert counts.keys() == {"0", "1"}
            assert await gw.end() == 0
        assert not is_running(other)

    # Every answer is a row, or counted as one that the kill took along.
    with closing(sqlite3.connect(tmp_path / "headway.db")) as database, database:
        rows = database.execute("select count(*) from requests").fetchone()[0]
        runs = database.execute(
            "select clean, recorded, finished, lost_finished, lost_in_flight from runs order by clean"
        ).fetchall()
    database.close()
    assert [bool(clean) for clean, *_ in runs] == [False, True, True]
    _, recorded, finished, lost_finished, lost_in_flight = runs[0]
    assert lost_finished == finished - recorded
    assert lost_in_flight <= 4
    # One may have been answered, and not yet counted as finished, when the process was killed.
    assert done - lost_in_flight <= rows + lost_finished <= done + broken
