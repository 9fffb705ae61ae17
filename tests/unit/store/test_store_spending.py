"""Spending: the sums of rows by day, key, policy and model, and those of runs in the database."""

from __future__ import annotations

import time
from pathlib import Path

from router.store.entries import Entry
from router.store.queries import Store
from router.store.totals import MOST_TOKENS, Amounts, spending, today
from tests.records import entry_of, make_record

DAY_S = 86_400.0


def entry(**fields: object) -> Entry:
    return entry_of(make_record(1, **fields))


def test_rows_add_up_by_day_key_policy_and_model() -> None:
    batch = [
        entry(received_at=0.0, cost_usd=0.25),
        entry(received_at=DAY_S - 1, cost_usd=None),
        entry(received_at=0.0, key_name="team-b", cost_usd=0.5),
    ]
    assert spending(batch) == {
        ("1970-01-01", "team-a", "latency", "llama"): Amounts(2, 240, 160, 0.25),
        ("1970-01-01", "team-b", "latency", "llama"): Amounts(1, 120, 80, 0.5),
    }


def test_what_is_unknown_has_a_name_of_its_own_and_no_sum_is_too_large_for_a_database() -> None:
    added = spending(
        [
            entry(received_at=0.0, key_name=None, policy=None, model=None, cost_usd=float("nan")),
            entry(received_at=DAY_S, prompt_tokens=None, output_tokens=2**63 - 1),
            entry(received_at=DAY_S, prompt_tokens=None, output_tokens=2**63 - 1),
        ]
    )
    assert added == {
        ("1970-01-01", "", "", ""): Amounts(1, 120, 80, 0.0),
        ("1970-01-02", "team-a", "latency", "llama"): Amounts(2, 0, 2 * MOST_TOKENS, 0.001),
    }


async def test_budgets_are_told_by_key_period_and_run(tmp_path: Path) -> None:
    now, runs = time.time(), []
    for spent_usd in ([2.0, 1.0], [4.0]):
        store = await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")
        runs.append(store.run_id)
        for number, cost_usd in enumerate(spent_usd):
            received_at = now if number else 0.0
            store.writer.put(make_record(10 * len(runs) + number, received_at=received_at, cost_usd=cost_usd))
        await store.close()
    store = await Store.open(f"sqlite:///{tmp_path / 'headway.db'}")
    store.writer.put(make_record(99, received_at=now, cost_usd=8.0))  # this run's is counted as it is spent
    first, second = runs
    total, day = ("team-a", "total"), ("team-a", today(now))
    assert await store.spent(by_run=True) == {total: {first: 3.0, second: 4.0}, day: {first: 1.0}}
    assert await store.spent(by_run=False) == {total: {"": 7.0}, day: {"": 1.0}}
    await store.close()
