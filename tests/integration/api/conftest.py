"""On virtual time. The tests of one module share a gateway with a model at each kind of engine."""

from __future__ import annotations

import pytest_asyncio

from tests.integration.gateway.live import live, ollama, vllm
from tests.virtual_time import database_work_is_waited_for, pytest_asyncio_loop_factories

__all__ = ["database_work_is_waited_for", "pytest_asyncio_loop_factories"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    """`qwen2.5-7b` at a vLLM, `llama-3.1-8b` at an Ollama."""
    async with live(
        tmp_path_factory.mktemp("shared"), vllm("b", "qwen2.5-7b"), ollama("c", "llama-3.1-8b")
    ) as gw:
        await gw.warm("c", "llama-3.1-8b")
        yield gw
