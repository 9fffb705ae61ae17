"""The statement behind the overview's figures."""

from __future__ import annotations

from typing import Any, cast

import pytest
from sqlalchemy.dialects import registry

from router.store.overview import overview
from router.store.overview_figures import Window
from router.store.queries import Store


class Counted:
    """A store that counts so many rows, and keeps the text of every statement."""

    def __init__(self, dialect: str, rows: int) -> None:
        self.texts: list[str] = []
        self._dialect, self._rows = registry.load(dialect)(), rows

    async def flush(self) -> None:
        pass

    async def rows(self, statement: Any) -> list[dict[str, Any]]:
        self.texts.append(str(statement.compile(dialect=self._dialect)))
        return [{"n": self._rows}] if len(self.texts) % 2 else []


@pytest.mark.parametrize("dialect", ["sqlite.aiosqlite", "postgresql.asyncpg"])
@pytest.mark.parametrize("rows", [10, 1000])
async def test_all_windows_of_so_many_buckets_share_one_statement(dialect: str, rows: int) -> None:
    store = Counted(dialect, rows)
    for until in (1_796_000_000.5, 1_796_000_061.5, 1_796_900_000.0):
        await overview(cast("Store", store), Window.ending(until, 3600.0, 60), max_rows=100)
    assert len(store.texts) == 6
    assert len(set(store.texts)) == 2
