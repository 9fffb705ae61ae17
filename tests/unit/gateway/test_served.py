"""What a change of a large fleet costs: the work for what has changed."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from router.config import FleetConfig, loads, with_instances
from router.core.events import FleetChanged
from router.gateway.fleet.served import ServedFleet
from router.gateway.keys.tenants import Tenants
from tests.unit.gateway.test_changes import pods

DIGEST = "0" * 64
FILE = loads(
    f"models: [{{name: m0, context_tokens: 4096}}, {{name: m1}}]\nauth: {{keys: [{{name: k, sha256: '{DIGEST}'}}]}}"
)


class Scheduler:
    """Keeps the instances that it is given."""

    def __init__(self) -> None:
        self.instances: dict[str, Any] = {}

    @property
    def known_instances(self) -> dict[str, Any]:
        return self.instances

    def apply(self, event: Any) -> None:
        if isinstance(event, FleetChanged):
            self.instances = {each.name: each for each in event.instances}


def served() -> tuple[ServedFleet, AsyncMock]:
    """A fleet of 20 instances, and what makes its adapters."""
    scheduler: Any = Scheduler()
    runner = MagicMock(scheduler=scheduler, apply=scheduler.apply)
    make = AsyncMock(side_effect=lambda *_: MagicMock(busy=0, aclose=AsyncMock()))
    parts: dict[str, Any] = {
        "metrics": MagicMock(),
        "profile": lambda _: None,
        "load_tokenizers": lambda _: {},
    }
    keys = MagicMock(stored=(), lost=False)
    config = with_instances(FILE, pods(20))
    return ServedFleet(config, (), runner=runner, keys=keys, make_backend=make, **parts), make


async def change(fleet: ServedFleet, config: FleetConfig) -> None:
    fleet._install(await fleet.prepare(config))


async def test_a_change_makes_only_what_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, make = served()
    await change(fleet, fleet.config)
    before, rules = dict(fleet.backends), fleet.rules
    made: list[str] = []
    candidates = FleetConfig.candidates
    monkeypatch.setattr(
        FleetConfig, "candidates", lambda self, each: made.append(each.name) or candidates(self, each)
    )
    monkeypatch.setattr("router.gateway.fleet.rules.Tenants", MagicMock(side_effect=Tenants))
    make.reset_mock()
    *kept, last = fleet.config.instances
    new = pods(22)[20:]
    other = last.model_copy(update={"max_concurrency": 3})
    await change(fleet, with_instances(fleet.config, (*kept, other, *new)))
    assert made == ["pod19", "pod20", "pod21"]
    assert [call.args[0].name for call in make.call_args_list] == made
    assert [name for name, each in before.items() if fleet.backends[name] is not each] == ["pod19"]
    assert (fleet.rules.tenants, fleet.rules.working) == (rules.tenants, rules.working)
    assert fleet.rules.tenants is rules.tenants
    assert (fleet.rules.least_context_tokens, fleet.rules.most_context_tokens) == (4096, 4096)


async def test_a_change_of_models_or_limits_reaches_their_instances() -> None:
    fleet, make = served()
    await change(fleet, fleet.config)
    make.reset_mock()
    config = fleet.config
    m0, m1 = config.models
    await change(fleet, config.model_copy(update={"models": (m0, m1.model_copy(update={"quality": 0.5}))}))
    assert make.call_count == 0  # no instance serves m1
    smaller = m0.model_copy(update={"context_tokens": 1024})
    await change(fleet, config.model_copy(update={"models": (smaller, m1)}))
    assert make.call_count == 20
    assert fleet.rules.least_context_tokens == 1024
    limits = config.limits.model_copy(update={"connect_timeout_s": 1.0})
    await change(fleet, fleet.config.model_copy(update={"limits": limits}))
    assert make.call_count == 40
    probes = config.probes.model_copy(update={"timeout_s": 30.0})
    await change(fleet, fleet.config.model_copy(update={"probes": probes}))
    assert make.call_count == 60


async def test_other_keys_of_the_file_make_new_rules_for_them() -> None:
    fleet, _ = served()
    await change(fleet, fleet.config)
    (key,) = fleet.config.auth.keys
    auth = fleet.config.auth.model_copy(update={"keys": (key.model_copy(update={"max_priority": 2}),)})
    await change(fleet, fleet.config.model_copy(update={"auth": auth}))
    assert fleet.rules.working["k"].settings.max_priority == 2
    assert fleet.rules.working["k"].terms.max_priority == 2


async def test_the_event_loop_runs_between_new_adapters() -> None:
    fleet, make = served()
    turns = 0
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    made_at: list[int] = []
    make.side_effect = lambda *_: made_at.append(turns) or MagicMock(busy=0, aclose=AsyncMock())
    loop.call_soon(turn)
    await fleet.prepare(fleet.config)
    assert len(set(made_at)) == 20
