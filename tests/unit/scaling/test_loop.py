"""The loop of decisions, without a gateway."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.config import FleetConfig, loads
from router.scaling.actuator import Actuator
from router.scaling.loop import ScalingLoop
from router.store.state import MemoryState

FLEET = """
models: [{name: llama-3.1-8b, slo: {ttft_ms: 1000}}]
scaling:
  interval_s: 5
  pools: [{name: p, instance: {kind: vllm, hardware: l4, serves: {llama-3.1-8b: x}}, min_instances: 0}]
"""


def loop_of(config: FleetConfig) -> ScalingLoop:
    scheduler = SimpleNamespace(requests=tuple)
    gateway = SimpleNamespace(
        config=config,
        state=MemoryState(),
        peers=SimpleNamespace(followers={}),
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
