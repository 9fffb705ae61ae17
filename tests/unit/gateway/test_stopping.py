"""How a serving process hears that it has to stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from router.background import Tasks
from router.process import Process


async def test_a_second_stop_in_the_same_turn_of_the_loop_stops_at_once() -> None:
    """Both signals may come before the drain has begun."""
    scheduler = SimpleNamespace(live=0)
    gateway: Any = SimpleNamespace(draining=False, tasks=Tasks(), runner=SimpleNamespace(scheduler=scheduler))
    server: Any = SimpleNamespace(
        should_exit=False, force_exit=False, server_state=SimpleNamespace(tasks=set())
    )
    process = Process(gateway, server)
    process.stop()
    assert (gateway.draining, server.force_exit) == (True, False)
    process.stop()
    assert (server.should_exit, server.force_exit) == (True, True)
