"""Emulated engines on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from emulator_client import serve
from emulator_profiles import QUICK, SLOW, emulated

from backends.emulator.instance import EmulatedInstance
from tests.virtual_time import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
async def vllm() -> AsyncIterator[EmulatedInstance]:
    async with serve(emulated("v", "vllm", {"tiny": QUICK})) as (instance,):
        yield instance


@pytest.fixture
async def slow_vllm() -> AsyncIterator[EmulatedInstance]:
    async with serve(emulated("v", "vllm", {"tiny": SLOW})) as (instance,):
        yield instance


@pytest.fixture
async def ollama_server() -> AsyncIterator[EmulatedInstance]:
    models = {"tiny": QUICK, "other:1b": QUICK}
    async with serve(emulated("o", "ollama", models)) as (instance,):
        yield instance
