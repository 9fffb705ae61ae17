"""The figures of the page at /ui: the records of a time window, aggregated inside the database.

One statement reads each row once into a narrow relation of bins and amounts, and groups that in several ways. Above
`MAX_ROWS` rows in the window those of many short intervals are read; the others are counted, not read.
"""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func

from router.core.types import OUTSIDE_ATTAINMENT, Outcome
from router.store.overview_figures import (
    MAX_NAMES,
    PREDICTED,
    RATIO_BINS,
    SPLITS,
    SUMS,
    TIME_BINS,
    TIMES,
    Tally,
    Window,
    tree,
)
from router.store.queries import Store
from router.store.tables import requests

#: About the most rows that one answer reads; above it a share of the window is read.
MAX_ROWS = 100_000


async def overview(store: Store, window: Window, max_rows: int = MAX_ROWS) -> dict[str, Any]:
    """All figures of a window. Counts and amounts are scaled up if rows were sampled (`sampled_share` below 1); quantiles
    come from bins. Raises StoreError."""
    await store.flush()
    count = sa.select(func.count().label("n")).select_from(requests).where(_inside(requests, window))
    counted = (await store.rows(count))[0]["n"]
    share, source, condition = _sample(window, counted, max_rows)
    picked = _picked(window, source, condition)
    rows = await store.rows(_everything(picked))
    read = sum(row["n"] for row in rows if row["part"] == "outcome")
    if share == 1.0:
        counted = read  # some may have been recorded since they were counted
    tally = Tally(counted / read if read and share < 1.0 else 1.0)
    for row in rows:
        tally.take(row)
    return {
        "since": window.since,
        "until": window.until,
        "bucket_s": window.bucket_s,
        "requests": counted,
        "sampled_share": share,
        **tally.answer(window, counted),
    }


async def recent_by_instance(store: Store, window_s: float, longest_s: float) -> list[dict[str, Any]]:
    """By instance, of the requests that ended in the last `window_s` seconds: how many, mean actual and predicted TTFT of
    those that have both, the share within the predicted 95 % quantile, and the output tokens. `longest_s`: no request takes
    longer."""
    since = time.time() - window_s
    columns = requests.c
    both = sa.and_(columns.ttft_s.is_not(None), columns.predicted_ttft_s_p50.is_not(None))
    query = (
        sa.select(
            columns.instance,
            func.count().label("requests"),
            func.avg(sa.case((both, columns.ttft_s))).label("ttft_s"),
            func.avg(sa.case((both, columns.predicted_ttft_s_p50))).label("predicted_ttft_s"),
            func.avg(
                sa.case(
                    (sa.and_(both, columns.ttft_s <= columns.predicted_ttft_s_p95), 1.0),
                    (sa.and_(both, columns.predicted_ttft_s_p95.is_not(None)), 0.0),
                )
            ).label("within_p95"),
            func.coalesce(func.sum(columns.output_tokens), 0).label("output_tokens"),
        )
        .where(
            columns.received_at >= since - longest_s,  # which has an index
            columns.received_at + func.coalesce(columns.e2e_s, 0.0) >= since,
            columns.instance.is_not(None),
        )
        .group_by(columns.instance)
        .order_by(columns.instance)
    )
    await store.flush()
    return [row | {"output_tokens": int(row["output_tokens"])} for row in await store.rows(query)]


# --- the statement ------------------------------------------------------------------------------------
#: A sample is read from so many equal parts of the window: with fewer, a burst counts for too much or too little.
_PARTS = 65_536


def _sample(
    window: Window, counted: int, max_rows: int
) -> tuple[float, sa.FromClause, sa.ColumnElement[bool]]:
    """The share of the window to read, what to read from and the condition: an interval of that share in each part of the
    window. The index on `received_at` finds its rows, so no others are read."""
    if counted <= max_rows:
        return 1.0, requests, _inside(requests, window)
    share = max_rows / counted
    first = sa.select(sa.literal(0, sa.BigInteger).label("n")).cte("part", recursive=True)
    part = first.union_all(sa.select(first.c.n + 1).where(first.c.n < _PARTS - 1))
    # The interval's place in its part looks random: traffic with a period must not fall into all of them or none.
    place = sa.cast((31 * part.c.n * part.c.n + 7919 * part.c.n) % 10_007, sa.Double) / 10_007.0
    part_s = (window.until - window.since) / _PARTS
    start = sa.literal(window.since) + part_s * part.c.n + (1.0 - share) * part_s * place
    within = sa.and_(requests.c.received_at >= start, requests.c.received_at < start + share * part_s)
    return share, requests.join(part, within), sa.true()


def _inside(table: sa.FromClause, window: Window) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.received_at >= window.since, table.c.received_at <= window.until)


def _picked(window: Window, source: sa.FromClause, condition: sa.ColumnElement[bool]) -> sa.CTE:
    """One narrow row for each request: its time bucket, its names, bins and amounts."""
    columns = requests.c
    # Parameters, so that the statement is the same for every window: SQLAlchemy keeps the last 500, of 2 MB each.
    starts = [sa.literal(start) for start in window.starts()[1:]]
    has_slo = (
        columns.slo_ttft_s.is_not(None) | columns.slo_tpot_s.is_not(None) | columns.slo_e2e_s.is_not(None)
    )
    offered = has_slo & columns.outcome.not_in([outcome.value for outcome in OUTSIDE_ATTAINMENT])
    whole = columns.outcome.in_([Outcome.OK.value, Outcome.LATE.value])
    # How soon a request was refused says nothing about latency.
    times = {name: sa.case((whole, columns[name])) if name == "e2e_s" else columns[name] for name in TIMES}
    # An answer that was cut short says nothing about predicted lengths.
    valid = {"ttft": columns.ttft_s.is_not(None), "e2e": whole, "output_tokens": whole}
    ratios = {
        f"ratio_{name}": RATIO_BINS.index(
            sa.case((sa.and_(valid[name], columns[predicted] > 0), columns[actual] / columns[predicted]))
        )
        for name, (actual, predicted) in PREDICTED.items()
    }
    return (
        sa.select(
            tree(columns.received_at, starts).label("at"),
            columns.outcome,
            sa.case((columns.decoded.is_(True), 1), else_=0).label("decoded"),
            *(func.coalesce(columns[column], "").label(name) for name, column in SPLITS.items()),
            *(TIME_BINS.index(column).label(name) for name, column in times.items()),
            *(bins.label(name) for name, bins in ratios.items()),
            sa.case((offered, 1), else_=0).label("offered"),
            sa.case((offered & columns.slo_met.is_(True), 1), else_=0).label("met"),
            func.coalesce(columns.prompt_tokens, 0).label("prompt_tokens"),
            func.coalesce(columns.output_tokens, 0).label("output_tokens"),
            func.coalesce(columns.cost_usd, 0.0).label("cost_usd"),
        )
        .select_from(source)
        .where(condition)
        .cte("picked")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _everything(picked: sa.CTE) -> Any:
    """All groupings in one statement, so that all figures are from the same moment. Columns: `part` (the grouping), `at`
    (time bucket), `name`, `bin`, `n`, and sums."""
    columns = picked.c
    sums = [func.sum(columns[name]).label(name) for name in SUMS]
    nothing = [sa.literal(0).label(name) for name in SUMS]
    parts: list[sa.Select[Any]] = [
        sa.select(
            sa.literal("outcome").label("part"),
            columns.at.label("at"),
            sa.cast(columns.outcome, sa.String).label("name"),
            columns.decoded.label("bin"),
            func.count().label("n"),
            *sums,
        ).group_by(columns.at, columns.outcome, columns.decoded)
    ]
    parts += [
        sa.select(sa.literal(name), columns.at, sa.literal(""), columns[name], func.count(), *nothing)
        .where(columns[name].is_not(None))
        .group_by(columns.at, columns[name])
        for name in (*TIMES, *(f"ratio_{each}" for each in PREDICTED))
    ]
    for name in SPLITS:
        dearest = (
            sa.select(
                sa.literal(name),
                sa.cast(sa.null(), sa.Integer),
                columns[name],
                sa.literal(0),
                func.count(),
                *sums,
            )
            .group_by(columns[name])
            .order_by(func.sum(columns.cost_usd).desc(), func.count().desc(), columns[name])
            .limit(MAX_NAMES)
            .subquery()
        )
        parts.append(sa.select(dearest))
    return sa.union_all(*parts)
