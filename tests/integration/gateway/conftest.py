"""A gateway that the tests of one module share, where they leave it as they found it."""

from __future__ import annotations

import pytest_asyncio

from tests.integration.gateway.live import live, ollama, vllm


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    """Two emulated vLLMs and an emulated Ollama under one gateway."""
    async with live(
        tmp_path_factory.mktemp("shared"), vllm("a"), vllm("b", "qwen2.5-7b"), ollama("c", "llama-3.1-8b")
    ) as gw:
        yield gw
