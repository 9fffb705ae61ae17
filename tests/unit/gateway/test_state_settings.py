"""The shared state that a fleet file names: opened with its password, or refused with one line."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from router import wiring
from router.config import ConfigError, FleetConfig, loads
from router.store.memory_state import MemoryState


def fleet(state: str, workers: int = 1) -> FleetConfig:
    return loads(f"models: [{{name: m}}]\nserver: {{workers: {workers}}}\nstate: {state}")


def test_memory_is_this_process_alone() -> None:
    state = wiring.create_state(fleet("{}"), {}, "run")
    assert isinstance(state, MemoryState)
    assert not state.health.shared


def test_what_the_file_says_reaches_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(
        "router.store.redis_state.RedisState", lambda *args, **kwargs: opened.append((args, kwargs))
    )
    wiring.create_state(
        fleet("{url: 'redis://h:6379/1', password_env: PW, name: blue, timeout_ms: 100, interval_ms: 50}", 4),
        {"PW": "p@ss/word"},
        "run-1",
    )
    wiring.create_state(fleet("{url: 'rediss://me@h', password_env: PW}"), {"PW": "x"}, "run-2")
    assert opened == [
        (
            ("redis://:p%40ss%2Fword@h:6379/1",),
            {"name": "blue", "run_id": "run-1", "timeout_s": 0.1, "interval_s": 0.05, "replicas": 4},
        ),
        (
            ("rediss://me:x@h",),
            {"name": "headway", "run_id": "run-2", "timeout_s": 0.25, "interval_s": 0.025, "replicas": 1},
        ),
    ]


def test_a_password_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigError, match="environment variable PW is not set"):
        wiring.create_state(fleet("{url: 'redis://h', password_env: PW}"), {}, "run")


@pytest.mark.parametrize("url", ["redis://h:port", "redis://h/0?colour=red"])
def test_a_url_that_is_none_is_refused_with_one_line(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^state: url: ") as refused:
        wiring.create_state(fleet(f"{{url: '{url}', password_env: PW}}"), {"PW": "swordfish"}, "run")
    assert "\n" not in str(refused.value)
    assert "swordfish" not in str(refused.value)


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["redis", *(name for name in sys.modules if name.startswith("redis."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"\.\[redis\]"):
        wiring.create_state(fleet("{url: 'redis://h'}"), {}, "run")
