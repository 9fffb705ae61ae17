"""The pauses of the actuator `processes` after crashes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from router.scaling.processes import Processes, _Engine


async def test_the_pause_has_a_limit_however_often_engines_crash() -> None:
    actuator = Processes(cast(Any, None), cast(Any, None))
    pool = cast(Any, SimpleNamespace(name="p"))
    for _ in range(1100):  # a day of crashes: 2 to this power is no float
        actuator._failed(_Engine(pool, 0, actuator._pauses_s.get("p", 0.0)))
    assert actuator._pauses_s == {"p": 60.0}
