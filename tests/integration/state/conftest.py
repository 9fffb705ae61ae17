"""A Redis for each test, since each does to it what it likes."""

from __future__ import annotations

import pytest

from tests.servers.redis import RedisServer


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def calm_server(tmp_path_factory):
    """One for tests that do it no harm."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as started:
        yield started
