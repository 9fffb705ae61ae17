"""On virtual time: the engines of these tests run on their event loop."""

from tests.virtual_time import lookups_are_waited_for, pytest_asyncio_loop_factories

__all__ = ["lookups_are_waited_for", "pytest_asyncio_loop_factories"]
