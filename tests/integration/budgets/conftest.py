"""On virtual time, as the tests of the gateway."""

from tests.integration.gateway.conftest import pytest_asyncio_loop_factories, sqlite_threads_are_waited_for

__all__ = ["pytest_asyncio_loop_factories", "sqlite_threads_are_waited_for"]
