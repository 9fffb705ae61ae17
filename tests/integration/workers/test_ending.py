"""How several workers start and end: drained, at once, without their supervisor, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.integration.workers.running import CHAT, engine_at, lines, serving, start, write_fleet
from tests.processes import children, is_running
from tests.waiting import until


@pytest.mark.parametrize("how", ["drained", "by a service manager", "at once", "without supervisor"])
async def test_streams_under_way(tmp_path, redis_url, how):
    async with engine_at(2.0) as engine, AsyncExitStack() as stack:
        gw = await stack.enter_async_context(serving(write_fleet(tmp_path, redis_url, engine)))
        # At once: none may end by itself before.
        body = CHAT | {"stream": True, "max_tokens": 80}
        if how == "at once":
            body |= {"max_tokens": 4000, "ignore_eos": True}
        streams = [
            await stack.enter_async_context(gw.http.post(f"{gw.url}/v1/chat/completions", json=body))
            for _ in range(10)
        ]
        assert [each.status for each in streams] == [200] * 10
        workers = gw.workers()
        if how == "at once":
            gw.process.send_signal(signal.SIGTERM)
            await unready(gw)
            assert await gw.end(signal.SIGTERM) == 0
            for each in streams:
                assert (await lines(each))[-1]["error"]["code"] == "no_instance"
        else:
            if how == "by a service manager":  # as systemd, which signals all processes of a service
                for worker in workers:
                    os.kill(worker, signal.SIGTERM)
                await unready(gw)
            code = -signal.SIGKILL if how == "without supervisor" else 0
            ending = asyncio.create_task(gw.end(signal.SIGTERM if code == 0 else signal.SIGKILL), name="end")
            assert [(await lines(each))[-1] for each in streams] == ["[DONE]"] * 10
            assert await ending == code
        await until(lambda: not any(map(is_running, workers)))
        assert await gw.process.stdout.read() == b""  # it said once that it listens


async def test_workers_that_hear_both_signals_in_one_turn_end_at_once(tmp_path, redis_url):
    async with engine_at(2.0) as engine, AsyncExitStack() as stack:
        gw = await stack.enter_async_context(serving(write_fleet(tmp_path, redis_url, engine)))
        body = CHAT | {"stream": True, "max_tokens": 4000, "ignore_eos": True}
        url = f"{gw.url}/v1/chat/completions"
        streams = [await stack.enter_async_context(gw.http.post(url, json=body)) for _ in range(10)]
        workers = gw.workers()
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        await until(lambda: all(status(worker, "State") == "T" for worker in workers))
        for forwarded in (signal.SIGTERM, signal.SIGINT):
            gw.process.send_signal(signal.SIGTERM)
            await until(lambda number=forwarded: all(pending(worker, number) for worker in workers))
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        for each in streams:
            assert (await lines(each))[-1]["error"]["code"] == "no_instance"
        assert await gw.process.wait() == 0


def pending(pid: int, number: int) -> bool:
    """Whether the signal waits for a process."""
    return bool(int(status(pid, "ShdPnd"), 16) >> (number - 1) & 1)


def status(pid: int, field: str) -> str:
    """The first word of a field of what the kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


async def unready(gw) -> None:
    """Wait until a worker drains (or none takes connections any more)."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with gw.http.get(f"{gw.url}/readyz") as response:
                    if response.status == 503:
                        return
            except aiohttp.ClientConnectionError:
                return


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_reload_that_is_wanted_during_the_start_or_the_end(tmp_path, redis_url, workers):
    """It comes after the start, and ends nothing sooner."""
    async with engine_at() as engine:
        server = {"port": 0, "workers": workers}
        process = await start(write_fleet(tmp_path, redis_url, engine, more={"server": server}))
        try:
            await until(lambda: int(status(process.pid, "SigBlk"), 16) >> (signal.SIGHUP - 1) & 1)
            process.send_signal(signal.SIGHUP)
            assert (await process.stdout.readline()).startswith(b"Headway listens")
            log = tmp_path / "serve.log"
            await until(lambda: log.read_text().count("the fleet file is applied") == workers)
        finally:
            process.terminate()
            while process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGHUP)  # `send_signal` would take the exit code
                await asyncio.sleep(0.005)
            assert process.returncode == 0


@pytest.mark.parametrize("times", [1, 2])
async def test_a_worker_that_is_killed_while_it_starts_is_started_once_more(tmp_path, redis_url, times):
    async with engine_at() as engine:
        server = {"port": 0, "workers": 2}
        process = await start(write_fleet(tmp_path, redis_url, engine, more={"server": server}))
        await until(lambda: len(children(process.pid)) == 2)
        first, other = children(process.pid)
        os.kill(first, signal.SIGKILL)
        if times == 2:
            await until(lambda: {*children(process.pid)} - {first, other})
            os.kill(max(children(process.pid)), signal.SIGKILL)
        said = await process.stdout.readline()
        if times == 1:
            assert said.startswith(b"Headway listens")
            process.terminate()
        assert await process.wait() == (0 if times == 1 else 1)
        if times == 2:
            assert said == b""
            assert "did not start: exit code -9" in (tmp_path / "serve.log").read_text()


async def refused(file) -> str:
    """What `headway serve` says when it does not start."""
    process = await start(file)
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    said = (file.parent / "serve.log").read_text()
    assert (process.returncode, out) == (2, b""), said
    assert len(said.splitlines()) == 1, said
    return said


async def test_what_no_worker_can_serve_is_one_line(tmp_path, redis_url):
    store = {"url": f"sqlite+aiosqlite:///{tmp_path / 'absent' / 'headway.db'}"}
    assert "cannot open the store" in await refused(write_fleet(tmp_path, redis_url, more={"store": store}))


@pytest.mark.parametrize("shared", [False, True])
async def test_a_port_that_somebody_has_is_not_shared(tmp_path, redis_url, shared):
    with socket.socket() as other:
        if shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = write_fleet(tmp_path, redis_url, more={"server": {"port": port, "workers": 2}})
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in await refused(file)


async def test_memory_is_not_shared(tmp_path):
    file = write_fleet(tmp_path, "memory://")
    assert "server.workers: several workers share limits" in await refused(file)
