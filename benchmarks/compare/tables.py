"""The figures of cells as text: the table on the terminal, and the same columns for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from benchmarks.compare.capacity import out_of_reach, rates_to_add
from benchmarks.terminal import aligned

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

    def is_known(self, cell: Cell) -> bool:
        """Whether the cell has such a figure, be it 0."""
        return bool(cell["measures"][self.measure]["mean"] is not None)


def written(
    figure: Mapping[str, Any], write: Callable[[float], str], scale: float = 1.0, *, interval: bool = True
) -> str:
    """An Interval as text; a dash where it is not known. Where `write` is `three_digits`, the half width
    decides how many digits are shown."""
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
    return f"{rate_per_s:.3g}" if rate_per_s < 1000 else f"{rate_per_s:.0f}"


_one_decimal = "{:.1f}".format


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
    Column("tokens/req", "output_tokens_per_request", three_digits),
    Column("USD/1k", "cost_usd_per_request", three_digits, 1000, True),
    Column("quality", "quality_mean", "{:.3f}".format, 1, True),
)
#: What the instances of a scaled fleet took.
INSTANCES = (
    Column("GPU-hours", "gpu_hours", three_digits, 1, True),
    Column("instances USD", "instances_usd", three_digits, 1, True),
)
#: What was spent on requests whether they were answered or not: against the baseline, and on hedges.
SPENDING = (
    Column("USD/1k offered", "cost_usd_per_offered", three_digits, 1000),
    Column("saved %", "saved_share", _one_decimal, 100, True),
    Column("hedged %", "hedged_share", _one_decimal, 100),
)
#: How requests ended that were not simply answered, as shares of all requests; the page and the terminal have
#: one word for each.
ENDINGS = (
    Column("timed out before decoding %", "timed_out_before_decoding_share", _one_decimal, 100),
    Column("out of budget before decoding %", "out_of_budget_before_decoding_share", _one_decimal, 100),
    Column("cut by budget %", "cut_by_budget_share", _one_decimal, 100),
    Column("refused for SLO %", "refused_for_slo_share", _one_decimal, 100),
)
#: How the endings count; they do not follow from the words alone.
ENDINGS_NOTE = (
    "An answer cut by budget counts as in time where what was delivered of it kept its SLO; requests that were"
    " refused, timed out or failed have missed."
)


def columns(cells: Sequence[Cell]) -> list[Column]:
    """The columns that say something of these cells."""
    return [column for column in COLUMNS if any(column.is_known(cell) for cell in cells)]


def spending(cells: Sequence[Cell]) -> list[Column]:
    """Those that some run has."""
    return _had((*INSTANCES, *SPENDING), cells)


def endings(cells: Sequence[Cell]) -> list[Column]:
    """Those that some run has."""
    return _had(ENDINGS, cells)


def _had(of: Sequence[Column], cells: Sequence[Cell]) -> list[Column]:
    return [column for column in of if any(cell["measures"][column.measure]["mean"] for cell in cells)]


def table(report: Mapping[str, Any]) -> str:
    """Each policy at each rate as an aligned line, and each policy's capacity."""
    cells = report["cells"]
    lines = _ruled(cells, columns(cells))
    seeds = max((cell["seeds"] for cell in cells), default=0)
    notes = ["TTFT and E2E in s, TPOT in ms of complete answers; tokens: output delivered, of all requests"]
    if seeds > 1:
        notes.append(f"± half the width of a 95 % interval over {seeds} seeds")
    lines.append("; ".join(notes))
    spent, ended = spending(cells), endings(cells)
    if spent or ended:
        lines += ["", *_ruled(cells, [*spent, *ended])]
    if ended:
        lines.append(ENDINGS_NOTE)
    if short := short_note(report):
        lines += ["", short]
    return "\n".join([*lines, *_capacity_lines(report)])


def _ruled(cells: Sequence[Cell], shown: Sequence[Column]) -> list[str]:
    head = ["policy", "rate/s", *(column.heading for column in shown)]
    body = [
        [cell["policy"], rate_text(cell["rate_per_s"]), *(column.text(cell) for column in shown)]
        for cell in cells
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return aligned([head, ["-" * width for width in widths], *body])


#: Less time of arrivals than this is not enough for a steady state.
_SHORT_S = 60.0


def arrivals_s(report: Mapping[str, Any]) -> tuple[float, float] | None:
    """How long requests arrived in the shortest and in the longest run."""
    known = [
        run["requests"] / run["measured_rate_per_s"] for run in report["runs"] if run["measured_rate_per_s"]
    ]
    return (min(known), max(known)) if known else None


def arrivals_text(report: Mapping[str, Any]) -> str | None:
    """`12 to 30 s of arrivals a run`."""
    if (found := arrivals_s(report)) is None:
        return None
    texts = dict.fromkeys(f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in found)
    return f"{' to '.join(texts)} s of arrivals a run"


def short_note(report: Mapping[str, Any]) -> str | None:
    found = arrivals_s(report)
    if found is None or found[0] >= _SHORT_S:
        return None
    where = "Short" if found[1] < _SHORT_S else "Short in part"
    return f"{where}: no steady state ({arrivals_text(report)}; below {_SHORT_S:g} s the start and the end weigh much)."


def capacity_text(entry: Mapping[str, Any]) -> str:
    """The capacity of a policy, in requests/s."""
    if entry["bound"] is None:
        return "-"
    low, high = entry["low_per_s"], entry["high_per_s"]
    if entry["bound"] == "within":
        text = written(entry["rate_per_s"], three_digits)
    elif entry["bound"] == "at_least":
        text = f"at least {rate_text(low)}"
    elif entry["bound"] == "below":
        text = f"below {rate_text(high)}"
    else:
        # Where some seeds have no such end: the lowest rate, and the highest.
        least = (
            min(one["high_per_s"] for one in entry["by_seed"] if one["bound"] == "below")
            if low is None
            else low
        )
        most = max(one["low_per_s"] or 0.0 for one in entry["by_seed"]) if high is None else high
        text = (
            f"between {'below ' if low is None else ''}{rate_text(least)}"
            f" and {'at least ' if high is None else ''}{rate_text(most)}"
        )
    return text + "".join(f", though not at {missed}" for missed in _missed(entry))


def _missed(entry: Mapping[str, Any]) -> list[str]:
    """Lower rates at which the target was missed: in all draws, and in some."""
    in_all = [
        rate for rate in entry["missed_per_s"] if all(rate in one["missed_per_s"] for one in entry["by_seed"])
    ]
    in_some = [rate for rate in entry["missed_per_s"] if rate not in in_all]
    texts = [", ".join(map(rate_text, rates)) for rates in (in_all, in_some)]
    return [*filter(None, texts[:1]), *(f"{rates} in every draw" for rates in texts[1:] if rates)]


def rates_hint(report: Mapping[str, Any]) -> str | None:
    """Which further rates would narrow the capacities."""
    bounds = {one["bound"] for entry in report["capacity"] for one in entry["by_seed"]}
    rates = report["rates_per_s"]
    parts = [
        f"below {rate_text(rates[0])}" if "below" in bounds and out_of_reach(report) is None else "",
        ", ".join(map(rate_text, rates_to_add(report))),
        f"above {rate_text(rates[-1])}" if "at_least" in bounds else "",
    ]
    added_rates = "; ".join(part for part in parts if part)
    return f"For a more exact rate, add rates: {added_rates}." if added_rates else None


def known_capacities(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """None of a single rate: it bounds nothing."""
    several = len(report["rates_per_s"]) > 1
    return [entry for entry in report["capacity"] if several and entry["bound"] is not None]


def _capacity_lines(report: Mapping[str, Any]) -> list[str]:
    known = known_capacities(report)
    if not known:
        return []
    width = max(len(entry["policy"]) for entry in known)
    return [
        "",
        f"requests/s with {100 * report['attainment_target']:g} % within their SLO:",
        *(f"  {entry['policy']:<{width}}  {capacity_text(entry)}" for entry in known),
        *([hint] if (hint := rates_hint(report)) else []),
    ]
