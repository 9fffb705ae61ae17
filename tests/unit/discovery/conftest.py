"""On virtual time: the API server of these tests runs on their event loop."""

from tests.virtual_time import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
