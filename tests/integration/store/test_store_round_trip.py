"""What is put comes back, from SQLite and from PostgreSQL alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.core.types import EndedHow, Outcome
from router.store import queries
from router.store.database import opened
from router.store.entries import ATTEMPT_COLUMNS, REQUEST_COLUMNS
from router.store.queries import Store
from router.store.records import RequestRecord, attempt_row, request_row
from router.store.runs import Lost, lost_so_far
from router.store.spend_report import spend_report
from tests.records import make_attempt, make_record, put, runs_of


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = await Store.open(store_url)
    yield opened
    await opened.close()


async def test_every_column_comes_back(store: Store) -> None:
    numbers = {
        name: float(i) + 0.5
        for i, name in enumerate(REQUEST_COLUMNS)
        if name.endswith(("_s", "_usd", "_p50", "_p90", "_p95", "quality", "propensity"))
    }
    record = make_record(
        1,
        outcome=Outcome.LATE,
        client_request_id="client-1",
        retry_count=2,
        hedged=True,
        max_tokens=4096,
        artifact="length@3",
        slo_met=False,
        error_code="x",
        **numbers,
    )
    put(store, record)
    assert await store.request("req_00000001", "team-a") == dict(
        zip(REQUEST_COLUMNS, request_row(record), strict=True)
    )
    assert await store.attempts("req_00000001") == [
        dict(zip(ATTEMPT_COLUMNS, attempt_row(record, record.attempt_states[0]), strict=True))
    ]
    explanation = await store.explanation("req_00000001")
    assert explanation["prefix"] == [11, 2**63 + 5]
    found = {each["instance"] for each in explanation["decisions"][0]["candidates"]}
    assert found == {"gpu-0", "gpu-1", "gpu-2"}


async def test_unknown_stays_unknown(store: Store) -> None:
    put(store, RequestRecord("req_1", 1.0, Outcome.REJECTED_AUTH))
    known = {name for name, value in (await store.request("req_1")).items() if value is not None}
    assert known == {"id", "received_at", "outcome", "attempts", "hedged", "decoded"}
    assert await store.explanation("req_1") is None
    assert await store.attempts("req_1") == []


async def test_another_keys_request_is_not_seen(store: Store) -> None:
    put(store, make_record(1))
    assert await store.request("req_00000001", "team-a") is not None
    assert await store.request("req_00000001", "team-b") is None
    assert await store.request("req_00000001", None) is None
    assert await store.request("req_00000001", any_key=True) is not None
    assert not await store.add_feedback("req_00000001", 0.5, "team-b")
    assert await store.feedback("req_00000001") == []


async def test_attempts_come_in_order(store: Store) -> None:
    made = [
        make_attempt(n, "gpu-0", "llama", float(n), ended_how=how, error=error)
        for n, how, error in (
            (2, EndedHow.HEDGE_LOST, None),
            (1, EndedHow.FAILED, "connection reset"),
            (3, EndedHow.CANCELLED, None),
        )
    ]
    put(store, make_record(1, attempt_states=made, attempts=3))
    read = await store.attempts("req_00000001")
    found = [(row["number"], row["ended_how"], row["error"]) for row in read]
    assert found == [(1, "failed", "connection reset"), (2, "hedge_lost", None), (3, "cancelled", None)]


async def test_filters_and_pages(store: Store) -> None:
    for number in range(60):
        put(
            store,
            make_record(
                number,
                received_at=1000.0 + number,
                policy="price" if number % 3 == 0 else "latency",
                outcome=Outcome.OK if number % 2 == 0 else Outcome.LATE,
                model="qwen" if number % 5 == 0 else "llama",
                instance=f"gpu-{number % 4}",
                key_name="a" if number < 30 else "b",
            ),
        )
    everything = await store.requests(limit=1000)
    assert [row["id"] for row in everything.requests] == [f"req_{n:08d}" for n in reversed(range(60))]
    assert everything.next_cursor is None

    seen: list[str] = []
    cursor = None
    while True:
        page = await store.requests(policy="price", limit=7, cursor=cursor)
        seen += [row["id"] for row in page.requests]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"req_{n:08d}" for n in reversed(range(0, 60, 3))]

    found = await store.requests(
        since=1010.0, outcome="late", policy="latency", model="qwen", instance="gpu-3", key="b"
    )
    expected = [n for n in reversed(range(60)) if n >= 30 and n % 2 and n % 3 and n % 5 == 0 and n % 4 == 3]
    assert [row["id"] for row in found.requests] == [f"req_{n:08d}" for n in expected]
    assert expected


async def test_a_long_search_ends_with_a_page_that_is_not_full(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_SEARCH_ROWS", 10)
    late = (5, 8, 47)
    for number in range(60):
        put(store, make_record(number, outcome=Outcome.LATE if number in late else Outcome.OK))
    page = await store.requests(outcome="late")
    assert [row["id"] for row in page.requests] == [f"req_{n:08d}" for n in reversed(late)]
    assert page.next_cursor is None

    monkeypatch.setattr(queries, "SEARCH_S", 0.0)
    lengths, seen, cursor = [], [], None
    while True:
        page = await store.requests(outcome="late", since=1_700_000_003.0, cursor=cursor)
        lengths.append(len(page.requests))
        seen += [row["id"] for row in page.requests]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"req_{n:08d}" for n in reversed(late)]
    assert lengths == [0, 1, 0, 0, 0, 2]
    assert len((await store.requests(limit=25)).requests) == 25  # without a filter there is nothing to search


async def test_requests_of_the_same_millisecond_are_told_apart(store: Store) -> None:
    at = 1_700_000_000.5
    for number, rest in enumerate(("c", "a", "b")):
        made = make_record(received_at=at + number / 4096)
        made.id = f"req_{int(at * 1000):011x}{rest * 16}"
        put(store, made)
    found = (await store.requests(since=at + 1 / 4096)).requests
    assert [row["id"][-1] for row in found] == ["b", "a"]


async def test_hostile_text_is_only_ever_a_value(store: Store) -> None:
    hostile = "x'; DROP TABLE requests; --"
    put(
        store,
        make_record(
            1,
            model_requested=hostile,
            client_request_id='"); DELETE FROM attempts; --',
            key_name=hostile,
            attempt_states=[make_attempt(1, hostile, "m", 1.0, error="'; DROP TABLE attempts; --")],
        ),
    )
    put(store, make_record(2))
    assert (await store.request("req_00000001", hostile))["model_requested"] == hostile
    assert (await store.attempts("req_00000001"))[0]["instance"] == hostile
    assert await store.request(hostile, any_key=True) is None
    assert (await store.requests(policy="' OR 1=1 --")).requests == []
    assert len((await store.requests(key=hostile)).requests) == 1
    assert (await store.requests(cursor="' OR ''='")).requests == []
    assert await store.add_feedback("req_00000001", 1.0, hostile)
    assert len((await store.requests()).requests) == 2


async def test_text_that_a_database_cannot_hold_costs_no_row(store: Store) -> None:
    for number in range(50):
        put(store, make_record(number))
    put(store, make_record(50, model_requested="nul\0and\ud800surrogate", finish_reason="x" * 10_000))
    put(store, make_record(51, max_tokens=10**30, key_name="also\0nul"))
    put(store, make_record(52, outcome="no outcome at all"))
    put(store, make_record(53, prefix=("not a hash",)))
    for number in range(54, 100):
        put(store, make_record(number))
    rows = (await store.requests(limit=1000)).requests
    assert [row["id"] for row in rows] == [f"req_{n:08d}" for n in reversed(range(100)) if n != 52]
    by_id = {row["id"]: row for row in rows}
    assert by_id["req_00000050"]["model_requested"] == "nul\ufffdand\ufffdsurrogate"
    assert by_id["req_00000051"]["max_tokens"] == 2**63 - 1
    assert await store.explanation("req_00000053") is None
    counts = store.counts()
    assert (counts.finished, counts.recorded, counts.dropped, counts.pending) == (100, 99, 1, 0)


async def test_a_record_put_twice_is_one_row(store: Store) -> None:
    put(store, make_record(1))
    await store.request("req_00000001", "team-a")
    put(store, make_record(1, output_tokens=999))
    assert (await store.request("req_00000001", "team-a"))["output_tokens"] == 80
    assert len((await store.requests()).requests) == 1


async def test_feedback_is_kept_with_its_request(store: Store) -> None:
    put(store, make_record(1))
    assert await store.add_feedback("req_00000001", 0.25, "team-a")
    assert await store.add_feedback("req_00000001", 1.0, "team-a")
    assert [given["quality"] for given in await store.feedback("req_00000001")] == [0.25, 1.0]
    assert not await store.add_feedback("req_99999999", 1.0, "team-a")


async def test_a_repeated_rating_is_kept_once(store: Store) -> None:
    """A caller repeats a call whose answer it did not get."""
    put(store, make_record(1))
    given = [(0.0, "judge"), (0.5, None), (0.5, None), (1.0, None), (0.5, None), (0.0, "judge")]
    places = [await store.add_feedback("req_00000001", quality, "team-a", by) for quality, by in given]
    assert places == [1, 2, 2, 3, 4, 4]
    assert [each["quality"] for each in await store.feedback("req_00000001")] == [0.0, 0.5, 1.0, 0.5]


@pytest.mark.parametrize("keep", [False, True])
async def test_prompts_are_kept_only_with_keep_prompts(store_url: str, keep: bool) -> None:
    from sqlalchemy import select

    from router.store import tables
    from router.store.database import create_engine, parse_url

    store = await Store.open(store_url, keep_prompts=keep)
    put(store, make_record(1, prompt="the secret\nprompt"))
    await store.close()
    engine = create_engine(parse_url(store_url))
    async with engine.connect() as connection:
        found = (await connection.execute(select(tables.explanations.c.prompt))).scalar_one()
    await engine.dispose()
    assert found == ("the secret\nprompt" if keep else None)


async def test_a_run_that_closes_is_clean(store_url: str, tmp_path: Path) -> None:
    for start in (0, 700):
        store = await Store.open(store_url)
        for number in range(start, start + 700):
            put(store, make_record(number))
        await store.close()
    async with opened(store_url) as engine:
        runs = await runs_of(Store(engine))
        assert [(run["clean"], run["arrived"], run["finished"], run["recorded"]) for run in runs] == [
            (True, 700, 700, 700)
        ] * 2
        assert len((await Store(engine).requests(limit=1000)).requests) == 1000
        assert await lost_so_far(engine) == Lost()
    assert list(tmp_path.glob("*-run-*")) == []


async def test_what_no_row_can_hold_is_in_no_row(store_url):
    """PostgreSQL refuses a NUL, and each driver half a surrogate pair; that is no outage."""
    store = await Store.open(store_url)
    try:
        assert await store.request("req\0", any_key=True) is None
        assert await store.attempts("\0") == await store.feedback("\0") == []
        assert not await store.add_feedback("\0", 1.0, None)
        for name in ("policy", "model", "instance", "key", "cursor"):
            assert (await store.requests(**{name: "a\0b"})).requests == []
            assert (await store.requests(**{name: "\udcff"})).requests == []
        assert (await spend_report(store, ["day"], keys=["\udcff"])).rows == []
    finally:
        await store.close()
    async with opened(store_url) as engine:
        assert await Store(engine).request("\udcff", any_key=True) is None
