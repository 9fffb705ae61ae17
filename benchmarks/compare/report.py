"""The report of a comparison: its JSON form and the table on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.compare.runs import RunResult
from benchmarks.measures import quantile
from benchmarks.replay.row import Row
from benchmarks.replay.summary import RunSummary, milliseconds, per_cent, summarise

REPORT_KEY = "headway_report"
#: Points of the distribution curves that the report keeps.
_CURVE_SHARES = tuple(index / 200 for index in range(201))
_CURVES: dict[str, Callable[[Row], float | None]] = {
    "ttft_s": lambda row: row.ttft_s,
    "tpot_s": lambda row: row.tpot_s,
    "e2e_s": lambda row: row.e2e_s,
}


def report(
    results: Sequence[RunResult], *, speed: float, complete: bool, about: dict[str, Any]
) -> dict[str, Any]:
    """Everything a report page needs. `runs[].curves` are quantiles at 0, 0.5 %, ... 100 %, in seconds."""
    return {
        REPORT_KEY: 1,
        "complete": complete,
        **about,
        "speed": speed,
        "runs": [_run(result, speed) for result in results],
    }


def _run(result: RunResult, speed: float) -> dict[str, Any]:
    summary = summarise(result.rows, speed)
    return {
        "name": result.run.name,
        "policy": result.run.policy,
        "rate_per_s": result.run.rate_per_s or summary.rate_per_s,
        "started_at": result.started_at,
        **{key: value for key, value in summary.as_dict().items() if key != "rate_per_s"},
        "curves": {name: _curve(result.rows, value) for name, value in _CURVES.items()},
    }


def _curve(rows: Iterable[Row], value: Callable[[Row], float | None]) -> list[float | None]:
    values = sorted(number for row in rows if row.complete and (number := value(row)) is not None)
    return [quantile(values, share) for share in _CURVE_SHARES]


HEADINGS = (
    "policy",
    "rate/s",
    "TTFT p50",
    "p95",
    "p99",
    "TPOT p50",
    "p95",
    "p99",
    "E2E p50",
    "p95",
    "p99",
    "attained",
    "by gateway",
    "goodput/s",
    "USD/1k req",
    "outcomes",
)


def cells(run: dict[str, Any]) -> list[str]:
    """One run as the cells of a table; times in milliseconds."""
    cost = run["cost_usd_per_request"]
    goodput, rate = run["goodput_per_s"], run["rate_per_s"]
    return [
        run["policy"],
        "-" if rate is None else f"{rate:.3g}",
        *(
            milliseconds(run[name][key])
            for name in ("ttft_s", "tpot_s", "e2e_s")
            for key in ("p50", "p95", "p99")
        ),
        per_cent(run["attainment"]),
        per_cent(run["gateway_attainment"]),
        "-" if goodput is None else f"{goodput:.3f}",
        "-" if cost is None else f"{1000 * cost:.4f}",
        ", ".join(f"{name} {count:,}" for name, count in run["outcomes"].items()),
    ]


def table(runs: Sequence[dict[str, Any]]) -> str:
    """All runs as an aligned text table."""
    rows = [list(HEADINGS), *(cells(run) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    last = len(HEADINGS) - 1
    lines = []
    for number, row in enumerate(rows):
        lines.append(
            "  ".join(
                cell if column == last else cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )
        if number == 0:
            lines.append("  ".join("-" * width for width in widths[:-1]) + "  --------")
    return "\n".join(lines) + "\ntimes in ms"


def lag_warning(summaries: Iterable[RunSummary], limit_s: float) -> str | None:
    """One line if the client was too slow to be believed, else None."""
    worst = max((summary.client_lag_s.p99 or 0.0 for summary in summaries), default=0.0)
    if worst <= limit_s:
        return None
    return f"the client sent up to {worst * 1000:,.0f} ms late (p99): its own load shows in these times"
