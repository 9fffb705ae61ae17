"""The gateway that the tests of one module share, with a model at each kind of engine."""

from __future__ import annotations

import pytest_asyncio

from tests.integration.gateway.live import live, ollama, vllm


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    """`qwen2.5-7b` at a vLLM, `llama-3.1-8b` at an Ollama."""
    async with live(
        tmp_path_factory.mktemp("shared"), vllm("b", "qwen2.5-7b"), ollama("c", "llama-3.1-8b")
    ) as gw:
        await gw.warm("c", "llama-3.1-8b")
        yield gw
