"""Two ways to one shared state: the same object for one process, two replicas over a real Redis."""

from __future__ import annotations

import pytest
import pytest_asyncio

from router.store.memory_state import MemoryState
from tests.integration.state.replicas import Ear, Replica, replicas
from tests.servers.redis import RedisServer


@pytest.fixture(scope="package")
def server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as started:
        yield started


class Memory(Replica):
    """The state of one process, as a replica."""

    def __init__(self) -> None:
        self.state, self.ear = MemoryState(), Ear()


@pytest_asyncio.fixture(params=["memory", "redis"])
async def pair(request):
    if request.param == "memory":
        fallback = Memory()
        await fallback.start()
        yield fallback, fallback
        await fallback.state.aclose()
    else:
        server = request.getfixturevalue("server")
        async with replicas(server.url, 2) as started:
            yield tuple(started)
