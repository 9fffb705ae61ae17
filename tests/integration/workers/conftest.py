"""A Redis for the workers of this directory's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.redis import RedisServer


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis server of our own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url
