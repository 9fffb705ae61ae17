"""On virtual time: how often the loop decides is no matter of the machine."""

from tests.virtual_time import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
