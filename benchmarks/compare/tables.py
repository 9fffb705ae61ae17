"""The figures of cells as text: the table on the terminal, and the same columns for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, the measure it shows, and how a number of it is written. `interval`: with its
    half width; `scale` multiplies both first."""

    heading: str
    measure: str
    write: Callable[[float], str]
    scale: float = 1.0
    interval: bool = False

    def text(self, cell: Cell) -> str:
        """`mean`, or `mean ±half width`; a dash where it is not known."""
        return written(cell["measures"][self.measure], self.write, self.scale, interval=self.interval)


def written(
    figure: Mapping[str, Any], write: Callable[[float], str], scale: float = 1.0, *, interval: bool = True
) -> str:
    """An Interval as text; a dash where it is not known. Where `write` is `three_digits`, the half width
    decides how many digits are worth telling."""
    mean, half = figure["mean"], figure["half_width"]
    if mean is None:
        return "-"
    mean *= scale
    if not interval or half is None:
        return write(mean)
    half *= scale
    if write is three_digits and half > 0:
        # Two digits of the half width, and no more than three of the mean.
        decimals = max(0, min(1 - floor(log10(half)), 2 - floor(log10(abs(mean))) if mean else 3))
        return f"{mean:,.{decimals}f} ±{half:,.{decimals}f}"
    return f"{write(mean)} ±{write(half)}"


def three_digits(value: float) -> str:
    """Three digits that count, without exponents."""
    if value == 0:
        return "0"
    return f"{value:,.{max(0, min(9, 2 - floor(log10(abs(value)))))}f}"


def rate_text(rate_per_s: float) -> str:
    """A rate as short as it can be told."""
    return f"{rate_per_s:.3g}" if rate_per_s < 1000 else f"{rate_per_s:.0f}"


def _one_decimal(value: float) -> str:
    return f"{value:.1f}"


#: TTFT and E2E in seconds, TPOT in milliseconds, shares in per cent.
COLUMNS = (
    Column("attained %", "attainment", _one_decimal, 100, True),
    Column("by gateway %", "gateway_attainment", _one_decimal, 100),
    Column("goodput/s", "goodput_per_s", three_digits),
    Column("TTFT p50", "ttft_s_p50", three_digits),
    Column("p95", "ttft_s_p95", three_digits, 1, True),
    Column("TPOT p50", "tpot_s_p50", three_digits, 1000),
    Column("p95", "tpot_s_p95", three_digits, 1000),
    Column("E2E p50", "e2e_s_p50", three_digits),
    Column("p95", "e2e_s_p95", three_digits, 1, True),
    Column("USD/1k", "cost_usd_per_request", three_digits, 1000, True),
    Column("quality", "quality_mean", "{:.3f}".format),
    Column("timeout %", "timed_out_before_decoding_share", _one_decimal, 100),
    Column("no budget %", "out_of_budget_before_decoding_share", _one_decimal, 100),
)
#: Columns that say nothing where they are zero throughout.
_ZERO_IS_NOTHING = ("timed_out_before_decoding_share", "out_of_budget_before_decoding_share")


def columns(cells: Sequence[Cell]) -> list[Column]:
    """The columns that say something of these cells."""
    shown = []
    for column in COLUMNS:
        means = [cell["measures"][column.measure]["mean"] for cell in cells]
        if any(means) or (column.measure not in _ZERO_IS_NOTHING and 0 in means):
            shown.append(column)
    return shown


def table(report: Mapping[str, Any]) -> str:
    """Each policy at each rate as an aligned line, and what load each bears."""
    cells = report["cells"]
    shown = columns(cells)
    rows = [
        ["policy", "rate/s", *(column.heading for column in shown)],
        *(
            [cell["policy"], rate_text(cell["rate_per_s"]), *(column.text(cell) for column in shown)]
            for cell in cells
        ),
    ]
    lines = _aligned(rows)
    seeds = max((cell["seeds"] for cell in cells), default=0)
    notes = ["TTFT and E2E in s, TPOT in ms"]
    if any(column.measure in _ZERO_IS_NOTHING for column in shown):
        notes.append("timeout, no budget: ended before decoding")
    if seeds > 1:
        notes.append(f"± half a 95 % interval over {seeds} seeds")
    lines.append("; ".join(notes))
    return "\n".join([*lines, *_capacity_lines(report)])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def capacity_text(entry: Mapping[str, Any]) -> str:
    """The load that a policy bears, in requests/s."""
    if entry["bound"] is None:
        return "-"
    if entry["bound"] == "mixed":
        return "in some draws below, in some above the rates that were run"
    text = written(entry["rate_per_s"], three_digits)
    if entry["bound"] == "within":
        return text
    mean = rate_text(entry["rate_per_s"]["mean"])
    return f"at least {mean}" if entry["bound"] == "at_least" else f"below {mean}"


def _capacity_lines(report: Mapping[str, Any]) -> list[str]:
    known = [entry for entry in report["capacity"] if entry["bound"] is not None]
    if len(report["rates_per_s"]) < 2 or not known:
        return []
    width = max(len(entry["policy"]) for entry in known)
    return [
        "",
        f"requests/s with {100 * report['attainment_target']:g} % within their SLO:",
        *(f"  {entry['policy']:<{width}}  {capacity_text(entry)}" for entry in known),
    ]
