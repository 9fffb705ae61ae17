"""A Redis for each test, since each does to it what it likes."""

from __future__ import annotations

import pytest

from tests.servers.redis import RedisServer

#: A replica without Redis tries again after this time.
RETRY_S = 0.1


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr("router.store.redis_timer.RETRY_S", RETRY_S)


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def calm_server(tmp_path_factory):
    """One for tests that do it no harm."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as started:
        yield started
