"""`headway export`: every row, in order, with its types, from both databases."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet, types

import router.export
from router.cli import main
from router.core.types import Outcome
from router.export import Csv, Parquet
from router.store import tables
from router.store.database import StoreError, parse_url
from router.store.entries import REQUEST_COLUMNS
from router.store.queries import Store
from router.store.records import RequestRecord, request_row
from tests.commands import Headway
from tests.records import make_record, written

DAY_S = 86_400.0


@pytest.fixture
def recorded(store_url: str, monkeypatch: pytest.MonkeyPatch) -> list[RequestRecord]:
    """25 requests on three days, read in batches of 4; the last has little but its id."""
    monkeypatch.setattr(router.export, "BATCH_ROWS", 4)
    monkeypatch.setenv("STORE_PASSWORD", parse_url(store_url).password or "none")
    made = [
        make_record(
            number,
            received_at=DAY_S * (number // 10) + number,
            policy="cost" if number % 3 == 0 else "latency",
            client_request_id='a "b", c\nd' if number == 2 else "",
        )
        for number in range(24)
    ]
    made.append(RequestRecord("req_99999999", 2 * DAY_S + 99, Outcome.REJECTED_AUTH))

    async def record() -> None:
        store = await Store.open(store_url)
        await written(store, made)
        assert await store.add_feedback("req_00000001", 0.5, "team-a")
        assert await store.add_feedback("req_00000003", 1.0, "team-a")
        await store.close()

    asyncio.run(record())
    return made


@pytest.fixture
def export(store_url: str, tmp_path: Path) -> Callable[..., Path]:
    url = parse_url(store_url)
    where = ["--url", url._replace(password=None).render_as_string()]
    if url.password is not None:
        where += ["--password-env", "STORE_PASSWORD"]

    def run(*words: str) -> Path:
        out = tmp_path / "out"
        assert main(["export", *where, "--out", str(out), *words]) == 0
        assert not out.with_name("out.part").exists()
        return out

    return run


def ids(path: Path, column: str = "id") -> list[Any]:
    return parquet.read_table(path).column(column).to_pylist()


def test_parquet_has_every_row_with_its_types(
    recorded: list[RequestRecord], export: Callable[..., Path]
) -> None:
    table = parquet.read_table(export("--format", "parquet"))
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert rows == [request_row(record) for record in recorded]
    assert tuple(table.column_names) == REQUEST_COLUMNS
    kinds = {name: table.schema.field(name).type for name in ("id", "attempts", "hedged", "cost_usd")}
    assert types.is_string(kinds["id"])
    assert types.is_int64(kinds["attempts"])
    assert types.is_boolean(kinds["hedged"])
    assert types.is_float64(kinds["cost_usd"])
    assert not table.schema.field("outcome").nullable


def test_a_pipe_is_written_directly(
    recorded: list[RequestRecord], export: Callable[..., Path], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "out")
    reader = os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK)
    assert export("--format", "csv").is_fifo()
    assert os.read(reader, 1 << 16).count(b"\n") >= len(recorded)
    os.close(reader)


def test_csv_tells_nothing_from_an_empty_text(
    recorded: list[RequestRecord], export: Callable[..., Path]
) -> None:
    text = export("--format", "csv").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == ",".join(REQUEST_COLUMNS)
    assert len(lines) == 1 + 25
    assert ',"a ""b"", c\ufffdd",' in lines[3]  # a line end is not kept
    first, last = lines[1].split(","), lines[-1].split(",")
    at = REQUEST_COLUMNS.index
    assert (first[at("client_request_id")], last[at("client_request_id")]) == ('""', "")
    assert (first[at("slo_met")], last[at("slo_met")]) == ("true", "")
    assert (first[at("cost_usd")], last[at("cost_usd")]) == ("0.0005", "")


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1", '=1,"x"'])
def test_no_text_of_a_client_is_a_formula(text: str) -> None:
    out = io.BytesIO()
    Csv(tables.requests, out).write([(text, -1, -0.5, "a=b", "")])
    first, *rest = next(csv.reader(io.StringIO(out.getvalue().decode().partition("\n")[2])))
    assert first == f"'{text}"
    assert rest == ["-1", "-0.5", "a=b", ""]


def test_rows_are_chosen_by_time_and_policy(
    recorded: list[RequestRecord], export: Callable[..., Path]
) -> None:
    day = ("--since", "1970-01-02", "--until", "1970-01-03T00:00:00Z", "--policy", "cost")
    assert ids(export("--format", "parquet", *day)) == [f"req_{n:08d}" for n in (12, 15, 18)]
    of = ("--format", "parquet", "--table")
    assert ids(export(*of, "attempts"), "request_id") == [record.id for record in recorded[:-1]]
    assert ids(export(*of, "attempts", *day), "request_id") == [f"req_{n:08d}" for n in (12, 15, 18)]
    assert ids(export(*of, "feedback"), "request_id") == ["req_00000001", "req_00000003"]
    assert ids(export(*of, "feedback", "--policy", "cost"), "request_id") == ["req_00000003"]
    assert ids(export(*of, "spend"), "requests") == [4, 6, 3, 7, 1, 1, 3]
    assert ids(export(*of, "spend", *day), "day") == ["1970-01-02"]
    assert ids(export(*of, "requests", "--since", "2100-01-01")) == []
    assert ids(export(*of, "spend", "--until", "0001-01-01"), "day") == []
    assert len(ids(export(*of, "spend", "--since", "0001-01-01T00:00+14:00"), "day")) == 7


def test_a_name_that_is_no_text_is_one_line(
    tmp_path: Path, recorded: list[RequestRecord], store_url: str, headway: Headway
) -> None:
    out = ("--format", "csv", "--out", str(tmp_path / "out"), "--policy", "\udcff")
    assert len(headway.err("export", "--url", store_url, *out, code=2).splitlines()) == 1


def test_a_value_of_another_type_is_told() -> None:
    """SQLite holds any type in any column, so a damaged file may."""
    rows = Parquet(tables.spend, io.BytesIO())
    with pytest.raises(StoreError, match="the column model has a value of another type"):
        rows.write([("2026-11-22", "run", "key", "latency", 7.5, 1, 2, 3, 0.5)])
    rows.close()


def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headway: Headway
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = ("--format", "parquet", "--out", str(tmp_path / "out"))
    told = headway.refusal("export", "--url", f"sqlite:///{tmp_path / 'none.db'}", *out)
    assert told.startswith("headway export: ")
    unset = ("--url", "postgresql://u@127.0.0.1:1/x", "--password-env", "NOT_SET")
    assert headway.refusal("export", *unset, *out).startswith("headway: ")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Terminal())
        told = headway.refusal("export", "--url", "sqlite://", "--format", "parquet", "--out", "-")
    assert told.startswith("headway export: ")
    days = ("--since", "2026-02-02", "--until", "2026-02-01")
    told = headway.refusal("export", "--url", "sqlite://", *out, *days)
    assert told.startswith("headway export: ")
    assert told.endswith("--since is after --until\n")
    assert list(tmp_path.iterdir()) == []
