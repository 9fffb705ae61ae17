"""The tables of a report's page. None where there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.compare.cells import leaders
from benchmarks.compare.styles import PolicyStyle, PolicyStyles, Report
from benchmarks.compare.tables import (
    Column,
    capacity_text,
    columns,
    endings,
    known_capacities,
    rate_text,
    spending,
    three_digits,
    written,
)
from benchmarks.pages import Cell, Row, Table

#: Measures that are better the more, and the less; those not named are neither.
_MORE_IS_BETTER = ("attainment", "goodput_per_s", "quality_mean")
_LESS_IS_BETTER = (
    *("ttft_s_p50", "ttft_s_p95", "tpot_s_p50", "tpot_s_p95", "e2e_s_p50", "e2e_s_p95"),
    *("cost_usd_per_request", "cost_usd_per_offered"),
)


def _table(headings: Sequence[str], rows: list[Row], *, texts: Collection[str] = ()) -> Table:
    """A table. `texts` are the headings of columns that hold words, which stand at the left."""
    return Table([Cell(heading, css="text" if heading in texts else "") for heading in headings], rows)


def _cell(text: str, css: str = "", style: str = "") -> Cell:
    """A cell; the half width of an interval is set back."""
    mean, sign, half = text.partition(" ±")
    return Cell(mean, sign.strip() + half, css, style)


def _row(policy: str, style: PolicyStyle, cells: Sequence[Cell], css: str = "") -> Row:
    return Row([Cell(policy), *cells], f"policy {style.css} {css}".strip(), chip=True)


def capacity_table(report: Report, styles: PolicyStyles) -> Table | None:
    """The load that each policy sustains, as a number and a bar, and against the baseline."""
    known = known_capacities(report)
    if not known:
        return None
    top = report["rates_per_s"][-1] or 1.0
    rows = []
    for entry in sorted(known, key=lambda entry: _sure_and_possible(entry, top), reverse=True):
        sure, possible = (100 * rate / top for rate in _sure_and_possible(entry, top))
        bar = _cell(capacity_text(entry), "bar text", f"--w:{sure:.1f}%;--v:{possible:.1f}%;min-width:18rem")
        if entry["policy"] == report["baseline"]:
            against = "1"
        else:
            against = written(entry["ratio"], "{:.2f}".format) if entry["ratio"]["mean"] else "-"
        rows.append(_row(entry["policy"], styles[entry["policy"]], [bar, _cell(against)]))
    return _table(["policy", "requests/s", f"times {report['baseline']}"], rows, texts=["requests/s"])


def _sure_and_possible(entry: Mapping[str, Any], top: float) -> tuple[float, float]:
    """How far a policy's bar is full, and how far it may reach."""
    if (mean := entry["rate_per_s"]["mean"]) is not None:
        return mean, mean
    return entry["low_per_s"] or 0.0, top if entry["high_per_s"] is None else entry["high_per_s"]


def results_table(report: Report, styles: PolicyStyles) -> Table:
    every = report["cells"]
    shown = [*columns(every), *spending(every), *endings(every)]
    best = {
        (rate, column.measure): _best(report, rate, column.measure)
        for rate in report["rates_per_s"]
        for column in shown
    }
    rows = []
    earlier: float | None = None
    for cell in every:
        rate, policy = cell["rate_per_s"], cell["policy"]
        cells = [_cell(rate_text(rate))]
        cells += [
            _cell(column.text(cell), "best" if policy in best[rate, column.measure] else "")
            for column in shown
        ]
        css = "first" if earlier is not None and rate != earlier else ""
        rows.append(_row(policy, styles[policy], cells, css))
        earlier = rate
    return _table(["policy", "rate/s", *(column.heading for column in shown)], rows)


def _best(report: Report, rate_per_s: float, measure: str) -> list[str]:
    """The best policy and those not clearly behind it; none where that is all of them."""
    if measure not in _MORE_IS_BETTER + _LESS_IS_BETTER:
        return []
    found = leaders(report["runs"], rate_per_s, measure, least=measure in _LESS_IS_BETTER)
    known = [
        cell
        for cell in report["cells"]
        if cell["rate_per_s"] == rate_per_s and cell["measures"][measure]["mean"] is not None
    ]
    return found if len(found) < len(known) else []


def regret_table(report: Report, styles: PolicyStyles) -> Table | None:
    """The share of the gap to the oracle that each policy closes, and what it is behind the oracle, by rate."""
    entries = {(one["policy"], one["rate_per_s"]): one for one in report["regret"]}
    rates = sorted({rate for _, rate in entries})
    if not entries:
        return None
    rows = []
    for policy in report["policies"]:
        own = [entries.get((policy, rate)) for rate in rates]
        gaps = [_cell("-") if entry is None or policy == report["baseline"] else _gap(entry) for entry in own]
        regrets = [_cell(_between(entry, "regret_per_s", three_digits)) for entry in own]
        rows.append(_row(policy, styles[policy], [*gaps, *regrets]))
    headings = [f"{rate_text(rate)}/s" for rate in rates]
    table = _table(["policy", *headings, *headings], rows)
    return replace(table, above=(("gap closed", len(rates)), ("regret, requests/s", len(rates))))


def _gap(entry: Mapping[str, Any]) -> Cell:
    text = _between(entry, "gap_closed", lambda share: f"{100 * share:.0f}")
    shares = _bracket(entry, "gap_closed")
    width = 100 * min(max(shares[0] if shares else 0.0, 0.0), 1.0)
    return _cell(text if text == "-" else f"{text} %", "bar", f"--w:{width:.0f}%")


def _between(entry: Mapping[str, Any] | None, name: str, write: Callable[[float], str]) -> str:
    """The bracket of the two oracles as text, or the one that is known."""
    return " to ".join(dict.fromkeys(map(write, _bracket(entry or {}, name)))) or "-"


def _bracket(entry: Mapping[str, Any], name: str) -> list[float]:
    """What is known of a figure against both oracles, the smaller first."""
    found = [(entry.get(best) or {}).get(name, {}).get("mean") for best in ("clairvoyant", "upper_bound")]
    return sorted(figure for figure in found if figure is not None)


_PREDICTIONS = (
    Column("TTFT p95 covered %", "ttft_p95_coverage", "{:.1f}".format, 100, True),
    Column("TTFT error %", "ttft_p50_median_relative_error", "{:.1f}".format, 100, True),
    Column("decision p50 µs", "decision_s_p50", "{:.0f}".format, 1e6),
    Column("decision p99 µs", "decision_s_p99", "{:.0f}".format, 1e6),
)


def predictions_table(report: Report, styles: PolicyStyles) -> Table | None:
    """How good the predictions were and how long decisions took, by rate and policy."""
    known = [cell for cell in report["cells"] if any(column.is_known(cell) for column in _PREDICTIONS)]
    if not known:
        return None
    rows = [
        _row(
            cell["policy"],
            styles[cell["policy"]],
            [_cell(rate_text(cell["rate_per_s"])), *(_cell(column.text(cell)) for column in _PREDICTIONS)],
        )
        for cell in known
    ]
    return _table(["policy", "rate/s", *(column.heading for column in _PREDICTIONS)], rows)


_FLEET = {
    "instance": "instance",
    "model": "model",
    "kind": "engine",
    "hardware": "hardware",
    "profile": "engine profile",
    "context_tokens": "context tokens",
    "max_concurrency": "concurrency",
    "input_usd_per_mtok": "USD/M input",
    "output_usd_per_mtok": "USD/M output",
    "quality": "quality",
    "usd_per_hour": "USD/hour",
}


def fleet_table(report: Report) -> Table | None:
    """The instances and what they serve; columns of which nothing is known are left out."""
    fleet: Sequence[Mapping[str, Any]] = report.get("fleet") or ()
    if not fleet:
        return None
    shown = [key for key in _FLEET if any(one.get(key) is not None for one in fleet)]
    texts = [_FLEET[key] for key in shown if any(isinstance(one.get(key), str) for one in fleet)]
    rows = [Row([_fact(one.get(key)) for key in shown]) for one in fleet]
    return _table([_FLEET[key] for key in shown], rows, texts=texts)


def _fact(value: Any) -> Cell:
    if isinstance(value, str):
        return Cell(value, css="text")
    return Cell("-" if value is None else f"{value:,g}")
