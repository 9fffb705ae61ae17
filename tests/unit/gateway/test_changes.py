"""Changes of the fleet: what they cost the event loop."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from router.config import FleetConfig, loads, with_instances
from router.config.instances import InstanceConfig
from router.gateway.fleet import changes as changes_module
from router.gateway.fleet import overlay as overlay_module
from router.gateway.fleet.changes import FleetChanges
from router.gateway.fleet.overlay import Overlay, draining, removing, scaling
from router.store.memory_state import MemoryState
from tests.pace import lines

FILE = loads("models:\n" + "".join(f"  - {{name: m{number}}}\n" for number in range(100)))


def pods(count: int, serves: str = "m0") -> list[InstanceConfig]:
    return [
        InstanceConfig.model_validate(
            {"name": f"pod{number}", "kind": "vllm", "url": "http://127.0.0.1:1", "serves": {serves: "up"}}
        )
        for number in range(count)
    ]


def changes_of(file: FleetConfig, read_file: Any = None) -> tuple[FleetChanges, list[FleetConfig]]:
    """Changes, and the fleets that are served."""
    served: list[FleetConfig] = []

    async def prepare(config: FleetConfig) -> Any:
        served.append(config)
        return SimpleNamespace(made=AsyncExitStack())

    fleet = MagicMock(prepare=prepare, config=file)
    names = "runner", "peers", "read_models"
    parts: dict[str, Any] = {name: MagicMock() for name in names}
    state = MemoryState()
    made = FleetChanges(file, fleet=fleet, state=state, feedback=AsyncMock(), read_file=read_file, **parts)
    return made, served


async def test_pods_that_do_not_fit_are_left_out_in_two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = MagicMock(side_effect=with_instances)
    monkeypatch.setattr(changes_module, "with_instances", checks)
    changes, served = changes_of(FILE)
    found = pods(20)
    found[7] = found[7].model_copy(update={"serves": pods(1, "unknown")[0].serves})
    await changes.found(0, found)
    assert [each.name for each in served[-1].instances] == [f"pod{n}" for n in range(20) if n != 7]
    assert checks.call_count == 2


async def test_what_was_found_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = MagicMock(side_effect=with_instances)
    monkeypatch.setattr(changes_module, "with_instances", checks)
    monkeypatch.setattr(overlay_module, "with_instances", checks)
    changes, served = changes_of(FILE)
    await changes.found(0, pods(20))
    await changes.edit(draining("pod3"))
    await changes.edit(removing("pod4"))
    assert checks.call_count == 1
    assert [each.name for each in served[-1].instances] == [f"pod{n}" for n in range(20) if n != 4]
    await changes.found(0, pods(21))
    assert checks.call_count == 2
    assert [each.name for each in served[-1].instances] == [f"pod{n}" for n in range(21) if n != 4]


async def test_a_pod_with_the_name_of_a_pool_is_left_out() -> None:
    template = {"kind": "vllm", "hardware": "h100", "serves": {"m0": "up"}}
    pool = {"name": "pod1", "instance": template}
    changes, served = changes_of(FleetConfig.model_validate({**dict(FILE), "scaling": {"pools": [pool]}}))
    await changes.found(0, pods(3))
    assert [each.name for each in served[-1].instances] == ["pod0", "pod2"]


async def test_thousands_of_pods_that_are_gone_are_noted_in_little_time() -> None:
    changes, _ = changes_of(FILE)
    found = pods(3000)
    await changes.found(0, found)
    changes._apply = AsyncMock()  # type: ignore[method-assign]
    with lines() as counted:
        await changes.found(0, found[:1500])
    assert counted.run < 8 * len(found)
    assert changes.finds("pod1499")
    assert not changes.finds("pod1500")
    assert changes.may_have_requests("pod1500")
    assert not changes.may_have_requests("pod3000")


async def test_the_fleet_file_is_read_in_a_thread() -> None:
    readers: list[threading.Thread] = []

    def read() -> FleetConfig:
        readers.append(threading.current_thread())
        return FILE

    changes, _ = changes_of(FILE, read)
    await changes.reload()
    await changes.catch_up()
    changes.document_changed({**Overlay(revision=5, reloads=9).document()})
    await changes.catch_up()
    assert len(readers) == 2
    assert threading.main_thread() not in readers


def test_a_large_fleet_is_checked_in_little_time() -> None:
    fleet, found = with_instances(FILE, ()), pods(3000)
    with lines() as counted:
        whole = with_instances(fleet, found)
    assert counted.run < 50 * len(found)
    assert len(whole.instances) == 3000


def test_the_scaler_s_steps_are_one_change() -> None:
    file = with_instances(FILE, pods(4))
    before = Overlay(draining=frozenset({"pod1", "pod2"}), scaled_down=frozenset({"pod2"}))
    after = scaling(["pod1", "pod2"], ["pod0", "pod1", "pod9"])(before, file)
    assert (after.draining, after.scaled_down) == ({"pod0", "pod1"}, {"pod0"})
    assert scaling(["pod0"], ["pod1", "pod9"])(before, file) is before


def test_many_instances_drain_in_little_time() -> None:
    file = with_instances(FILE, pods(3000))
    with lines() as counted:
        scaling((), [f"pod{number}" for number in range(1000)])(Overlay(), file)
    assert counted.run < 3 * 3000
