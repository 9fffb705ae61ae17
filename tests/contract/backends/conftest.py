"""One parametrised fixture: every kind of backend."""

from __future__ import annotations

import pytest

import backends
from tests.contract.backends.dialects import DIALECTS, Dialect


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.kind)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    chosen = request.param
    assert isinstance(chosen, Dialect)
    return chosen


def pytest_sessionstart() -> None:
    assert {dialect.kind for dialect in DIALECTS} == set(backends.KINDS), "a kind lacks its dialect"
