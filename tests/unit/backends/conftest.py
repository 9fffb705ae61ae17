"""On virtual time: the engines of these tests run on their event loop."""

from tests.virtual_time import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
