"""The watch over an instance goes on, whatever its engine answers and whatever fails inside."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from router import background
from router.core.errors import UpstreamError
from router.core.events import LoadReported, Probed, Tick
from router.core.types import LoadReport
from router.gateway.fleet import monitor as monitor_module
from router.gateway.fleet.monitor import Monitor
from tests.virtual_time import loop_time, run


class Events:
    """A runner that keeps what it is told, and fails on demand."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.fails = False

    def apply(self, event: Any) -> None:
        self.seen.append(event)
        if self.fails:
            raise ZeroDivisionError

    async def until(self, event: Any) -> None:
        self.seen.clear()
        async with asyncio.timeout(60):
            while event not in self.seen:  # noqa: ASYNC110 (a test may poll)
                await asyncio.sleep(0.001)


class Backend:
    """Answers or raises what it is set to."""

    def __init__(self) -> None:
        self.probed: Any = True
        self.loaded: Any = LoadReport(running=1)
        self.unlike: Any = []

    async def probe(self) -> Any:
        return self._told(self.probed)

    async def load(self) -> Any:
        return self._told(self.loaded)

    async def mismatches(self) -> Any:
        return self._told(self.unlike)

    @staticmethod
    def _told(value: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_logged_at", {})
    background._failures.clear()


@pytest.mark.parametrize(
    "error", [OverflowError("inf"), ValueError(), KeyError(), RecursionError(), OSError()]
)
async def test_a_fault_in_a_round_is_counted_and_the_next_round_comes(error: Exception) -> None:
    events, backend = Events(), Backend()
    monitor = Monitor(events, 0.001, 1.0)  # type: ignore[arg-type]
    monitor.watch({"a": backend})  # type: ignore[dict-item]
    await events.until(LoadReported("a", LoadReport(running=1)))
    backend.loaded = error
    await events.until(Probed("a", True))
    backend.probed = error
    await events.until(Probed("a", False))
    backend.probed, backend.loaded = True, LoadReport(running=2)
    await events.until(LoadReported("a", LoadReport(running=2)))
    events.fails = True
    await events.until(Probed("a", True))
    events.fails = False
    await events.until(LoadReported("a", LoadReport(running=2)))
    assert background.failures()["monitor"] >= 3
    await monitor.stop()


async def test_waiting_requests_are_served_when_a_report_expires_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor_module, "_EXPIRED_S", 0.002)
    events = Events()
    monitor = Monitor(events, 60.0, 1.0)  # type: ignore[arg-type]
    monitor.watch({"a": Backend()})  # type: ignore[dict-item]
    await events.until(Tick())
    assert events.seen == [Probed("a", True), LoadReported("a", LoadReport(running=1)), Tick()]
    await monitor.stop()


async def test_an_engine_that_is_away_is_no_fault_of_ours() -> None:
    events, backend = Events(), Backend()
    backend.probed = UpstreamError("away")
    monitor = Monitor(events, 0.001, 1.0)  # type: ignore[arg-type]
    await monitor.probe_all({"a": backend})  # type: ignore[dict-item]
    assert events.seen == [Probed("a", False)]
    assert not background.failures()


@pytest.mark.parametrize(("interval_s", "count", "apart_s"), [(2.0, 120, 0.05), (0.4, 800, 0.025)])
def test_many_instances_are_not_probed_at_once(interval_s: float, count: int, apart_s: float) -> None:
    probed_s: list[float] = []

    class Timed(Backend):
        async def probe(self) -> Any:
            probed_s.append(loop_time())
            return True

    async def main() -> None:
        monitor = Monitor(Events(), interval_s, 1.0)  # type: ignore[arg-type]
        backends: dict[str, Any] = {str(at): Timed() for at in range(count)}
        await monitor.probe_all(backends)
        monitor.watch(backends)
        await asyncio.sleep(2 * interval_s)
        await monitor.stop()

    run(main())
    for begin in (0, count, 2 * count):  # the round before the start, and two of the watch
        turn = np.array(probed_s[begin : begin + count]) - probed_s[begin]
        assert turn == pytest.approx(np.arange(count) // 50 * apart_s)


async def test_an_instance_with_another_adapter_is_watched_by_that_one_alone() -> None:
    events, before, after = Events(), Backend(), Backend()
    after.loaded = LoadReport(running=2)
    monitor = Monitor(events, 0.001, 1.0)  # type: ignore[arg-type]
    monitor.watch({"a": before, "b": before})  # type: ignore[dict-item]
    await events.until(LoadReported("a", LoadReport(running=1)))
    monitor.watch({"a": after})  # type: ignore[dict-item]
    await events.until(LoadReported("a", LoadReport(running=2)))
    await events.until(LoadReported("a", LoadReport(running=2)))
    assert {event.report for event in events.seen if isinstance(event, LoadReported)} == {after.loaded}
    assert {event.instance for event in events.seen} == {"a"}
    await monitor.stop()
