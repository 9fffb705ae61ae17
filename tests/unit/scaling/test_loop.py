"""The loop of decisions, without a gateway."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from policies.scaling.types import Observation, PoolLoad
from router.config import FleetConfig, loads
from router.scaling import loop as loop_module
from router.scaling.actuator import Actuator
from router.scaling.loop import ScalingLoop
from router.scaling.turns import Turn
from router.store.memory_state import MemoryState

FLEET = """
models: [{name: llama-3.1-8b, slo: {ttft_ms: 1000}}]
scaling:
  interval_s: 5
  pools: [{name: p, instance: {kind: vllm, hardware: l4, serves: {llama-3.1-8b: x}}, min_instances: 0}]
"""


def loop_of(config: FleetConfig) -> ScalingLoop:
    scheduler = SimpleNamespace(requests=tuple, instances={})
    gateway = SimpleNamespace(
        config=config,
        state=MemoryState(),
        peers=SimpleNamespace(followers={}, counts_elsewhere={}, queued=dict),
        metrics=SimpleNamespace(all_series=tuple),
        runner=SimpleNamespace(scheduler=scheduler),
        rules=SimpleNamespace(names=None),
    )
    return ScalingLoop(cast(Any, gateway), Actuator(cast(Any, gateway)), "run")


async def test_a_decision_that_fails_while_a_request_waits_is_not_repeated_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, turns = loop_of(loads(FLEET)), 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await asyncio.sleep(0)
        assert turns < 100
        raise RuntimeError

    monkeypatch.setattr(loop, "_turn", turn)
    monkeypatch.setattr(loop, "_asleep", lambda: True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.35):
            await loop._follow()
    assert 2 <= turns <= 4


def test_a_reload_changes_the_lease_and_the_targets() -> None:
    loop = loop_of(loads(FLEET))
    scaler = loop._scaler
    loop._use(loads(FLEET))
    assert loop._scaler is scaler
    loop._use(loads(FLEET.replace("interval_s: 5", "interval_s: 60")))
    assert loop._turns.lease_s == 121.0
    scaler = loop._scaler
    loop._use(loads(FLEET.replace("interval_s: 5", "interval_s: 60").replace("1000", "500")))
    assert loop._scaler is not scaler


async def test_a_wall_clock_that_is_set_does_not_change_how_long_the_scaler_saw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone_s, set_s = 0.0, 0.0  # since the start, and by how much the wall clock was set
    clock = SimpleNamespace(time=lambda: 1e9 + gone_s + set_s, monotonic=lambda: 5.0 + gone_s)
    monkeypatch.setattr(loop_module, "time", clock)
    loop = loop_of(loads(FLEET))
    seen: list[Observation] = []

    def desired(observation: Observation) -> dict[str, int]:
        seen.append(observation)
        return {"p": 0}

    monkeypatch.setattr(loop._scaler, "desired", desired)
    for set_s in (0.0, -3600.0, -3600.0, 3600.0, 0.0):  # noqa: B007 (read by the clock)
        gone_s += 5.0
        await loop._turn()
    assert [each.seconds for each in seen] == [5.0] * 5
    assert [each.now_s - 1e9 for each in seen] == [5.0, 10.0, 15.0, 3620.0, 3625.0]
    # Another replica, whose clock is ahead, decides: time goes on from there.
    other = Turn(99, "other", Observation(1e9 + 9000.0, 5.0, {"p": PoolLoad(0)}, {}), {"p": 0})
    loop._decided_elsewhere(other)
    gone_s += 5.0
    await loop._turn()
    assert (seen[-1].seconds, seen[-1].now_s - 1e9) == (5.0, 9005.0)
