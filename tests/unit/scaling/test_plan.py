"""From a pool as it is to a pool as it is wanted."""

from __future__ import annotations

import pytest

from router.scaling.actuator import PoolState, Steps, steps


@pytest.mark.parametrize(
    ("wanted", "pool", "expected"),
    [
        (0, PoolState({}, {}), Steps(keep=[], start=0)),
        (2, PoolState({}, {}), Steps(keep=[], start=2)),
        (3, PoolState({"a": 1}, {}, fixed=1), Steps(keep=[], start=1)),
        (3, PoolState({"a": 1}, {}, starting=2), Steps(keep=[], start=0)),
        # Draining ones come back before others start, the busiest first.
        (2, PoolState({"a": 1}, {"b": 1, "c": 4}), Steps(keep=["c"], start=0)),
        (4, PoolState({"a": 1}, {"b": 1}), Steps(keep=["b"], start=2)),
        # Those that are starting go first, then those with the least requests.
        (1, PoolState({"a": 3, "b": 1}, {}, starting=1), Steps(abandon=1, drain=["b"])),
        (2, PoolState({"a": 0, "b": 0}, {}, starting=1), Steps(abandon=1, drain=[])),
        (2, PoolState({"a": 5, "b": 2, "c": 4}, {}), Steps(drain=["b"])),
        # One that does not answer goes before one that does.
        (1, PoolState({"a": 0, "b": 2}, {}, silent={"b"}), Steps(drain=["b"])),
        # Those that the actuator may not stop stay.
        (0, PoolState({"a": 0}, {}, fixed=2), Steps(drain=["a"])),
        # The last one goes only when it is idle.
        (0, PoolState({"a": 1}, {}), Steps(drain=[])),
        (0, PoolState({"a": 0}, {}), Steps(drain=["a"])),
        (0, PoolState({"a": 0, "b": 2}, {}), Steps(drain=["a"])),
        (0, PoolState({"a": 1, "b": 2}, {}, fixed=1), Steps(drain=["a", "b"])),
    ],
)
def test_steps(wanted: int, pool: PoolState, expected: Steps) -> None:
    found = steps(wanted, pool)
    assert found == expected
