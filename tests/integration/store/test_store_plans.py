"""How the databases find rows: by an index, also in a table of millions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, Table, event, text

from router import export
from router.store import tables
from router.store.overview import overview, recent_by_instance
from router.store.overview_figures import Window
from router.store.queries import Store
from tests.records import make_record, put

NOW = 1_700_000_000.0


class Planned(Store):
    """A store that keeps the plans of all statements."""

    plans: list[str]

    async def rows(self, query: Select[Any]) -> list[dict[str, Any]]:
        compiled = query.compile(dialect=self._engine.dialect, compile_kwargs={"literal_binds": True})
        explained = await super().rows(text(f"EXPLAIN QUERY PLAN {compiled}"))  # type: ignore[arg-type]
        self.plans += [row["detail"] for row in explained]
        return await super().rows(query)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Planned]:
    opened = await Planned.open(f"sqlite:///{tmp_path / 'headway.db'}")
    assert isinstance(opened, Planned)
    opened.plans = []
    for number in range(300):
        put(opened, make_record(number, received_at=NOW + number))
    assert await opened.add_feedback("req_00000007", 0.5, "team-a") == 1
    opened.plans.clear()
    yield opened
    await opened.close()


READS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "a request": lambda store: store.request("req_00000007", "team-a"),
    "its attempts": lambda store: store.attempts("req_00000007"),
    "its explanation": lambda store: store.explanation("req_00000007"),
    "its feedback": lambda store: store.feedback("req_00000007"),
    "its feedback to learn": lambda store: store.feedback_to_learn("req_00000007", 1),
    "the last ones": lambda store: store.requests(since=NOW + 290.0),
    "the last ones that failed": lambda store: store.requests(since=NOW + 290.0, outcome="backend_error"),
    "the last minute": lambda store: recent_by_instance(store, 60.0, 60.0),
    "a window": lambda store: overview(store, Window.ending(NOW + 299.0, 300.0, 5)),
    "a sample of a window": lambda store: overview(store, Window.ending(NOW + 299.0, 300.0, 5), 100),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_rows_are_found_by_an_index(store: Planned, read: Callable[[Store], Awaitable[object]]) -> None:
    await read(store)
    of_tables = [each for each in store.plans if each.startswith(("SCAN", "SEARCH"))]
    assert any(each.startswith("SEARCH") for each in of_tables)
    # What is made by the statement itself may be read whole.
    own = ("SCAN CONSTANT ROW", "SCAN picked", "SCAN part", "SCAN anon_", "SCAN (")
    assert [each for each in of_tables if each.startswith("SCAN") and not each.startswith(own)] == []


async def test_a_sample_is_read_without_the_rest_of_its_window(store: Planned) -> None:
    told = await overview(store, Window.ending(NOW + 299.0, 300.0, 5), 100)
    assert told["sampled_share"] == 100 / told["requests"]
    counted, sampled = (each for each in store.plans if each.startswith("SEARCH"))
    of_time = "INDEX requests_received_at (received_at>? AND received_at<?)"
    assert counted == f"SEARCH requests USING COVERING {of_time}"
    assert sampled == f"SEARCH requests USING {of_time}"


@pytest.mark.parametrize("table", [tables.requests, tables.attempts], ids=str)
async def test_an_export_begins_at_its_first_row(
    store: Planned, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH_ROWS", 4)
    sent: list[tuple[str, Any]] = []
    event.listen(
        store._engine.sync_engine, "before_cursor_execute", lambda *given: sent.append((given[2], given[3]))
    )
    extract = export.Extract(table, since=NOW + 290.0)
    rows = [row async for batch in extract.batches(store._engine) for row in batch]
    assert [row[0] for row in rows] == [f"req_{number:08d}" for number in range(290, 300)]
    plans = []
    async with store._engine.connect() as connection:
        for sql, parameters in sent[:3]:
            explained = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters)
            plans += [row["detail"] for row in explained.mappings()]
    assert [each for each in plans if each.startswith("SCAN") or "TEMP B-TREE" in each] == []


async def test_an_export_of_feedback_begins_at_its_first_row(store: Planned) -> None:
    assert await store.add_feedback("req_00000295", 0.75, "team-a") == 1
    sent: list[tuple[str, Any]] = []
    event.listen(
        store._engine.sync_engine, "before_cursor_execute", lambda *given: sent.append((given[2], given[3]))
    )
    extract = export.Extract(tables.feedback, since=NOW + 290.0)
    assert [row[1] async for batch in extract.batches(store._engine) for row in batch] == ["req_00000295"]
    async with store._engine.connect() as connection:
        explained = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent[0][0]}", sent[0][1])
        plans = [row["detail"] for row in explained.mappings()]
    assert "SEARCH feedback USING INTEGER PRIMARY KEY (rowid>?)" in plans
    assert "SEARCH given USING COVERING INDEX ix_feedback_request_id (request_id>?)" in plans


async def test_postgresql_does_not_compile_statements(postgres_url: str) -> None:
    store = await Store.open(postgres_url)
    assert await store.rows(text("SHOW jit")) == [{"jit": "off"}]  # type: ignore[arg-type]
    await store.close()
