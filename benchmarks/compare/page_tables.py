"""The tables of a report's page. Empty text where there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.compare.cells import leaders
from benchmarks.compare.looks import Look
from benchmarks.compare.tables import (
    Column,
    capacity_text,
    columns,
    endings,
    rate_text,
    spending,
    three_digits,
    written,
)

Report = Mapping[str, Any]
Looks = Mapping[str, Look]

#: Measures that are better the less (True) or the more (False); those not named are neither.
_LESS_IS_BETTER = {
    "attainment": False,
    "goodput_per_s": False,
    "ttft_s_p50": True,
    "ttft_s_p95": True,
    "tpot_s_p50": True,
    "tpot_s_p95": True,
    "e2e_s_p50": True,
    "e2e_s_p95": True,
    "cost_usd_per_request": True,
    "cost_usd_per_offered": True,
    "quality_mean": False,
}


def _html(headings: Sequence[str], rows: Sequence[str], texts: Collection[str] = ()) -> str:
    """A table. `texts` are the headings of columns that hold words, which stand at the left."""
    head = "".join(
        f"<th{' class=text' if heading in texts else ''}>{escape(heading)}</th>" for heading in headings
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _cell(text: str, css: str = "") -> str:
    """A table cell; what follows ± is set back."""
    mean, sign, half = text.partition(" ±")
    told = escape(mean) + (f' <span class="pm">±{escape(half)}</span>' if sign else "")
    return f"<td{f' class={css}' if css else ''}>{told}</td>"


def _row(policy: str, look: Look, cells: Sequence[str], css: str = "") -> str:
    name = f'<td><span class="chip"></span>{escape(policy)}</td>'
    return f'<tr class="policy {look.css}{css}">{name}{"".join(cells)}</tr>'


def capacity_table(report: Report, looks: Looks) -> str:
    """What load each policy bears, as a number and a bar, and against the baseline."""
    known = [entry for entry in report["capacity"] if entry["bound"] is not None]
    if len(report["rates_per_s"]) < 2 or not known:
        return ""
    top = report["rates_per_s"][-1] or 1.0
    rows = []
    for entry in sorted(known, key=lambda entry: _sure_and_possible(entry, top), reverse=True):
        sure, possible = (100 * rate / top for rate in _sure_and_possible(entry, top))
        style = f"--w:{sure:.1f}%;--v:{possible:.1f}%;min-width:18rem;text-align:left"
        bar = f'<td class="bar" style="{style}">{_cell(capacity_text(entry))[4:]}'
        ratio = entry["ratio"]
        against = (
            "1"
            if entry["policy"] == report["baseline"]
            else written(ratio, "{:.2f}".format)
            if ratio["mean"]
            else "-"
        )
        rows.append(_row(entry["policy"], looks[entry["policy"]], [bar, _cell(against)]))
    return _html(["policy", "requests/s", f"times {report['baseline']}"], rows, ["requests/s"])


def _sure_and_possible(entry: Mapping[str, Any], top: float) -> tuple[float, float]:
    """How far a policy's bar is full, and how far it may reach."""
    if (mean := entry["rate_per_s"]["mean"]) is not None:
        return mean, mean
    return entry["low_per_s"] or 0.0, top if entry["high_per_s"] is None else entry["high_per_s"]


def results_table(report: Report, looks: Looks) -> str:
    """Each policy at each rate."""
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
        css = " first" if earlier is not None and rate != earlier else ""
        rows.append(_row(policy, looks[policy], cells, css))
        earlier = rate
    return _html(["policy", "rate/s", *(column.heading for column in shown)], rows)


def _best(report: Report, rate_per_s: float, measure: str) -> list[str]:
    """The best policy and those not clearly behind it; none where that is all of them."""
    if measure not in _LESS_IS_BETTER:
        return []
    found = leaders(report["runs"], rate_per_s, measure, least=_LESS_IS_BETTER[measure])
    known = [
        cell
        for cell in report["cells"]
        if cell["rate_per_s"] == rate_per_s and cell["measures"][measure]["mean"] is not None
    ]
    return found if len(found) < len(known) else []


def regret_table(report: Report, looks: Looks) -> str:
    """The share of the gap to the oracle that each policy closes, by rate."""
    entries = {(one["policy"], one["rate_per_s"]): one for one in report["regret"]}
    rates = sorted({rate for _, rate in entries})
    if not entries:
        return ""
    rows = []
    for policy in report["policies"]:
        cells = []
        for rate in rates:
            entry = entries.get((policy, rate))
            cells.append(_cell("-") if entry is None or policy == report["baseline"] else _gap(entry))
        regret = [
            _cell(_between(entries.get((policy, rate)), "regret_per_s", three_digits)) for rate in rates
        ]
        rows.append(_row(policy, looks[policy], [*cells, *regret]))
    head = [f"{rate_text(rate)}/s" for rate in rates]
    first = (
        f'<tr><th></th><th colspan="{len(rates)}">gap closed</th>'
        f'<th colspan="{len(rates)}">regret, requests/s</th></tr>'
    )
    table = _html(["policy", *head, *head], rows)
    return table.replace("<thead>", f"<thead>{first}", 1)


def _gap(entry: Mapping[str, Any]) -> str:
    text = _between(entry, "gap_closed", lambda share: f"{100 * share:.0f}")
    found = [(entry[best] or {}).get("gap_closed", {}).get("mean") for best in ("clairvoyant", "upper_bound")]
    share = min((one for one in found if one is not None), default=0.0)
    told = escape(text if text == "-" else f"{text} %")
    return f'<td class="bar" style="--w:{100 * min(max(share, 0.0), 1.0):.0f}%">{told}</td>'


def _between(entry: Mapping[str, Any] | None, name: str, write: Callable[[float], str]) -> str:
    """The bracket of the two oracles as text, or the one that is known."""
    figures = [
        ((entry or {}).get(best) or {}).get(name, {}).get("mean") for best in ("clairvoyant", "upper_bound")
    ]
    known = sorted(figure for figure in figures if figure is not None)
    texts = list(dict.fromkeys(write(figure) for figure in known))
    return " to ".join(texts) if texts else "-"


_PREDICTIONS = (
    Column("TTFT p95 covered %", "ttft_p95_coverage", "{:.1f}".format, 100, True),
    Column("TTFT error %", "ttft_p50_median_relative_error", "{:.1f}".format, 100, True),
    Column("decision p50 µs", "decision_s_p50", "{:.0f}".format, 1e6),
    Column("decision p99 µs", "decision_s_p99", "{:.0f}".format, 1e6),
)


def predictions_table(report: Report, looks: Looks) -> str:
    """How good the predictions were and how long decisions took, by rate and policy."""
    known = [
        cell
        for cell in report["cells"]
        if any(cell["measures"][column.measure]["mean"] is not None for column in _PREDICTIONS)
    ]
    if not known:
        return ""
    rows = [
        _row(
            cell["policy"],
            looks[cell["policy"]],
            [_cell(rate_text(cell["rate_per_s"])), *(_cell(column.text(cell)) for column in _PREDICTIONS)],
        )
        for cell in known
    ]
    table = _html(["policy", "rate/s", *(column.heading for column in _PREDICTIONS)], rows)
    return f"<details><summary>{len(rows)} rows</summary>{table}</details>"


_FLEET = (
    *(("instance", "instance"), ("model", "model"), ("kind", "engine"), ("hardware", "hardware")),
    *(
        ("profile", "engine profile"),
        ("context_tokens", "context tokens"),
        ("max_concurrency", "concurrency"),
    ),
    *(("input_usd_per_mtok", "USD/M input"), ("output_usd_per_mtok", "USD/M output"), ("quality", "quality")),
    ("usd_per_hour", "USD/hour"),
)


def fleet_table(report: Report) -> str:
    """The instances and what they serve; columns of which nothing is known are left out."""
    fleet: Sequence[Mapping[str, Any]] = report.get("fleet") or ()
    if not fleet:
        return ""
    shown = [(key, heading) for key, heading in _FLEET if any(one.get(key) is not None for one in fleet)]
    rows = [
        "<tr>"
        + "".join(
            f"<td{' class=text' if isinstance(one.get(key), str) else ''}>{escape(_value(one.get(key)))}</td>"
            for key, _ in shown
        )
        + "</tr>"
        for one in fleet
    ]
    texts = [heading for key, heading in shown if any(isinstance(one.get(key), str) for one in fleet)]
    return f"<h3>Fleet</h3>{_html([heading for _, heading in shown], rows, texts)}"


def _value(value: Any) -> str:
    return "-" if value is None else f"{value:,g}" if isinstance(value, int | float) else str(value)
