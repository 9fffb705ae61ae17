"""The load generator against the canned engine, and against servers that go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from benchmarks.overhead import load, processes, wire
from benchmarks.overhead.plan import RESULTS, Plan
from benchmarks.overhead.processes import Cores, StartError, Target
from tests.contract.backends.fakes import Exchange, FakeEngine, Script
from tests.servers.ports import HeldPort
from tests.waiting import until


@pytest.fixture(scope="module")
def engine() -> Iterator[Target]:
    with processes.upstream(Cores()) as started:
        yield started


@pytest.fixture(autouse=True)
def long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window lasts until something has happened in it: on a busy machine its own time may be too short."""

    def enough(run: load.Load) -> bool:
        asked = run.started + len(run._due_ns)
        ended = run.answers + run._errors.total()
        return run.plan.mode == "hold" or (asked >= (20 if run.plan.mode == "open" else 3) and ended >= 3)

    async def window(run: load.Load) -> dict[str, Any]:
        await asyncio.sleep(run.plan.warmup_s)
        began = load._look(run.plan)
        run.measuring = True
        await asyncio.sleep(run.plan.duration_s)
        await until(lambda: enough(run))
        run.measuring = False
        return load._used(run.plan, began)

    monkeypatch.setattr(load.Load, "_window", window)


def plan(engine: Target, **settings: Any) -> Plan:
    given: dict[str, Any] = {
        "mode": "closed",
        "connections": 4,
        "duration_s": 0.2,
        "warmup_s": 0.05,
    } | settings
    return Plan(ports=engine.ports, bench_pids=engine.pids, **given)


def test_two_instances_on_two_ports(engine: Target) -> None:
    assert len(set(engine.ports)) == 2


def test_closed_loop_json_in_a_process_of_its_own(engine: Target) -> None:
    result = processes.generate(plan(engine, duration_s=1.0), Cores())
    assert result.failed == 0
    assert result.completed == result.started >= result.answers > 0
    assert result.latency.p50_us > 0
    assert result.bench_cpu_s > 0
    assert result.load_cpu_s > 0
    assert result == RESULTS.validate_json(orjson.dumps(result))


async def test_every_chunk_of_every_stream_is_seen(engine: Target) -> None:
    result = await load.run(plan(engine, stream=True, chunks=5, pace_us=5000, duration_s=0.3))
    assert result.failed == 0
    assert result.completed == result.started > 0
    assert result.relay.count == result.chunks > 0
    assert 0 < result.ttft.count <= result.started
    assert result.relay.p50_us > 0


async def test_an_answer_without_pace_comes_whole(engine: Target) -> None:
    result = await load.run(plan(engine, stream=True, chunks=50, duration_s=0.1))
    assert result.failed == 0
    assert result.chunks >= 50 * result.answers > 0


async def test_open_loop_keeps_its_rate_and_counts_from_the_scheduled_instant(engine: Target) -> None:
    # The answers take longer than the gap between requests, so most of them wait for the one connection.
    slow = plan(engine, mode="open", connections=1, rate_per_s=100.0, stream=True, chunks=3, pace_us=10_000)
    result = await load.run(slow)
    assert result.started >= 20
    assert result.errors == {}
    assert result.incomplete + result.completed == result.started
    assert result.latency.max_us > 30_000
    assert result.lag.max_us > 10_000


async def test_streams_are_held(engine: Target) -> None:
    result = await load.run(
        plan(
            engine,
            mode="hold",
            connections=20,
            stream=True,
            chunks=1000,
            pace_us=50_000,
            target_pids=engine.pids,
        )
    )
    assert result.held == result.started == 20
    assert result.failed == 0
    assert result.rss_mib > 1


@asynccontextmanager
async def server(script: Script) -> AsyncIterator[Target]:
    async with FakeEngine(script) as started:
        yield Target((int(started.url.rpartition(":")[2]),))


async def break_off(exchange: Exchange) -> None:
    await exchange.raw(wire.STREAM_HEAD + wire.content_chunk(1))
    exchange.close()


async def one_byte_a_write(exchange: Exchange) -> None:
    data = wire.STREAM_HEAD + wire.content_chunk(1) + wire.content_chunk(1) + wire.closing(2, False)
    for at in range(len(data)):
        await exchange.raw(data[at : at + 1])
        await asyncio.sleep(0)


def writes(data: bytes) -> Script:
    """The head of a stream with a first chunk, and these bytes."""
    return lambda exchange: exchange.raw(wire.STREAM_HEAD + wire.content_chunk(1) + data)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (lambda exchange: exchange.answer(503, b""), "status 503"),
        (break_off, "connection lost"),
        (writes(wire.closing(1, False)), "incomplete stream"),
        (writes(wire.content_chunk(1) + wire.LAST_CHUNK), "incomplete stream"),  # no end mark
    ],
)
async def test_what_goes_wrong_is_counted(script: Script, kind: str) -> None:
    async with server(script) as odd:
        result = await load.run(plan(odd, stream=True, chunks=2, pace_us=1000, connections=2, duration_s=0.1))
    assert set(result.errors) == {kind}
    assert result.errors[kind] == result.started > 2
    assert result.completed == result.answers == 0


async def test_chunks_cut_anywhere_are_put_together() -> None:
    async with server(one_byte_a_write) as odd:
        result = await load.run(plan(odd, stream=True, chunks=2, pace_us=1000, connections=1))
    assert result.errors == {}
    assert result.completed == result.started > 0


def test_nobody_there_is_told() -> None:
    with HeldPort() as port, pytest.raises(StartError, match="cannot connect"):
        processes.generate(plan(Target((port.number,))), Cores())
