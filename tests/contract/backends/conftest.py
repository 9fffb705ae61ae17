"""On virtual time. One parametrised fixture: the dialect of every registered kind of engine."""

from __future__ import annotations

import pytest

from tests.contract.backends.dialects import DIALECTS, Dialect
from tests.virtual_time import lookups_are_waited_for, pytest_asyncio_loop_factories

__all__ = ["lookups_are_waited_for", "pytest_asyncio_loop_factories"]


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.kind)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    chosen = request.param
    assert isinstance(chosen, Dialect)
    return chosen
