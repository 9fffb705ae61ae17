"""The gateway, its engines and its clients run on virtual time, but for tests that are marked `real_time`.

The tests of one module may share a gateway, where they leave it as they found it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiosqlite.core
import pytest
import pytest_asyncio

from tests.integration.gateway.live import live, ollama, vllm
from tests.virtual_time import AwaitedWriterProcess, SqliteQueue, VirtualTimeLoop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    if item.get_closest_marker("real_time") is not None:
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True, scope="package")
def database_work_is_waited_for():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiosqlite.core, "SimpleQueue", SqliteQueue)
        patch.setattr("router.store.queries.WriterProcess", AwaitedWriterProcess)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    """Two emulated vLLMs and an emulated Ollama under one gateway."""
    async with live(
        tmp_path_factory.mktemp("shared"), vllm("a"), vllm("b", "qwen2.5-7b"), ollama("c", "llama-3.1-8b")
    ) as gw:
        yield gw
