"""Databases: SQLite files, and a PostgreSQL server for all tests of one process, each in a database of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.postgres import PostgresServer, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A test that stops or pauses it starts or resumes it."""
    with running_postgres() as server:
        yield server


@pytest.fixture
async def postgres_url(postgres: PostgresServer) -> str:
    """A fresh database."""
    name = f"test_{secrets.token_hex(6)}"
    await postgres.execute(f'CREATE DATABASE "{name}"')
    return postgres.url(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each kind."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'headway.db'}"
    return request.getfixturevalue("postgres_url")
