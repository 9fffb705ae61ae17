"""A Redis of each test's own."""

from __future__ import annotations

import pytest

from tests.servers.redis import RedisServer


@pytest.fixture
def redis(tmp_path):
    with RedisServer(tmp_path / "redis") as server:
        yield server
