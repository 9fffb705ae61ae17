"""On virtual time, as the tests of the gateway."""

from tests.virtual_time import database_work_is_waited_for, pytest_asyncio_loop_factories

__all__ = ["database_work_is_waited_for", "pytest_asyncio_loop_factories"]
