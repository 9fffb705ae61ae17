"""On virtual time, as the tests of the gateway. The counter files of gateways over PostgreSQL lie where the gateways run:
in the test's own directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.virtual_time import database_work_is_waited_for, pytest_asyncio_loop_factories

__all__ = ["database_work_is_waited_for", "pytest_asyncio_loop_factories"]


@pytest.fixture
def postgres_url(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return postgres_url
