"""The gateway, its engines and its clients run on virtual time, but for tests that are marked `real_time`.

The tests of one module may share a gateway, where they leave it as they found it.
"""

from __future__ import annotations

import pytest_asyncio

from tests.integration.gateway.live import live, ollama, vllm
from tests.virtual_time import database_work_is_waited_for, pytest_asyncio_loop_factories

__all__ = ["database_work_is_waited_for", "pytest_asyncio_loop_factories"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    """Two emulated vLLMs and an emulated Ollama under one gateway."""
    async with live(
        tmp_path_factory.mktemp("shared"), vllm("a"), vllm("b", "qwen2.5-7b"), ollama("c", "llama-3.1-8b")
    ) as gw:
        yield gw
