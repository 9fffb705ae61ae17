"""The parts of the overview that need no database: bins, windows, groups of outcomes, and answers that are shared."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import create_engine, literal, select

from router.core.types import Outcome
from router.gateway.routes.overview import Shared
from router.store.overview_figures import TIME_BINS, Bins, Window, group_of, tree

AFTER_DECODING = ("ok", "late", "cut_short", "stopped")
BEFORE_DECODING = ("timed_out", "out_of_budget", "rejected", "failed", "left")


def sorted_in(bins: Bins, value: float) -> int:
    return sum(edge < value for edge in bins.edges)


def test_times_of_an_hour_have_a_bin() -> None:
    low, high = TIME_BINS.bounds(sorted_in(TIME_BINS, 3600.0))
    assert low < 3600.0 <= high


def test_sql_sorts_values_into_the_bins_that_they_belong_to() -> None:
    bins = Bins.logarithmic(0.01, 10.0, 7)
    values = [0.001, 0.01, *(0.01 * 1.1**n for n in range(90)), *bins.edges, 1e9]
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        asked = select(*(bins.index(literal(value)).label(f"v{at}") for at, value in enumerate(values)))
        assert list(connection.execute(asked).one()) == [sorted_in(bins, value) for value in values]
        assert connection.execute(select(bins.index(literal(None)))).scalar_one() is None
        assert connection.execute(select(tree(literal(3.0), []))).scalar_one() == 0
    engine.dispose()


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.99])
def test_a_quantile_lies_in_the_bin_of_the_true_one(share: float) -> None:
    rng = random.Random(3)
    values = sorted(rng.lognormvariate(-1.0, 1.2) for _ in range(5000))
    found = TIME_BINS.quantile(Counter(sorted_in(TIME_BINS, value) for value in values), share)
    assert found == pytest.approx(statistics.quantiles(values, n=100)[round(share * 100) - 1], rel=0.16)


def test_quantiles_of_nothing_of_one_and_at_the_ends() -> None:
    assert TIME_BINS.quantile({}, 0.5) is None
    low, high = TIME_BINS.bounds(7)
    assert low < (TIME_BINS.quantile({7: 1}, 0.5) or 0) < high
    last = len(TIME_BINS.edges)
    assert TIME_BINS.quantile({0: 1, last: 1}, 1.0) == pytest.approx(TIME_BINS.bounds(last)[1])


def test_every_outcome_has_a_group_and_those_before_decoding_are_apart() -> None:
    known = {group_of(outcome.value, decoded) for outcome in Outcome for decoded in (False, True)}
    assert known == {*AFTER_DECODING, *BEFORE_DECODING}
    for outcome in Outcome:
        if outcome.value.startswith(("rejected_", "expired_in", "expired_before")):
            assert group_of(outcome.value, False) in BEFORE_DECODING, outcome
    assert group_of("rejected_budget", False) == "out_of_budget"
    assert group_of("expired_before_first_token", False) == "timed_out"
    assert (group_of("backend_error", False), group_of("backend_error", True)) == ("failed", "cut_short")
    assert (group_of("client_cancelled", False), group_of("client_cancelled", True)) == ("left", "stopped")


@pytest.mark.parametrize(("window_s", "buckets"), [(900, 60), (3600, 60), (604800, 60), (61, 7), (60, 1)])
def test_a_window_ends_now_and_its_parts_begin_at_whole_times(window_s: float, buckets: int) -> None:
    window = Window.ending(1795325345.6, window_s, buckets)
    starts = window.starts()
    assert len(starts) == buckets
    assert starts[0] == window.since
    assert starts[-1] <= window.until < starts[-1] + window.bucket_s + 1e-6
    assert window.since / window.bucket_s == pytest.approx(round(window.since / window.bucket_s), abs=1e-6)


async def test_a_costly_answer_is_made_once_for_all_who_wait_and_again_for_a_while() -> None:
    now = 0.0
    made = 0
    shared = Shared(clock=lambda: now)

    async def make() -> dict[str, Any]:
        nonlocal made, now
        made += 1
        await asyncio.sleep(0)
        now += 2.0  # the time that it took
        return {"made": made}

    assert await asyncio.gather(*(shared.get("week", make) for _ in range(5))) == [{"made": 1}] * 5
    now += 7.9  # four times as long as it took is not over
    assert await shared.get("week", make) == {"made": 1}
    now += 0.2
    assert await shared.get("week", make) == {"made": 2}
    assert await shared.get("hour", make) == {"made": 3}


async def test_a_failure_is_not_kept() -> None:
    shared = Shared(clock=lambda: 0.0)

    async def fail() -> None:
        raise OSError("no database")

    async def work() -> int:
        return 7

    with pytest.raises(OSError, match="no database"):
        await shared.get("x", fail)
    assert await shared.get("x", work) == 7
