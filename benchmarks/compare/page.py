"""The report as one self-contained HTML page: no script, no outside file, light and dark."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from benchmarks.compare import plots
from benchmarks.compare.report import HEADINGS, cells

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6570; --paper: #fdfdfc; --line: #d9dde1; --best: #e3f3ec; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #9aa4ae; --paper: #15181b; --line: #343a40; --best: #16382c; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1120px; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } td:first-child, th:first-child, td:last-child, th:last-child { text-align: left; }
tr.first td { border-top: 2px solid var(--line); } td.best { background: var(--best); font-weight: 600; }
svg { width: 100%; height: auto; max-width: 980px; display: block; margin: .6rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .88rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.warn { border-left: 3px solid #d55e00; padding-left: .7rem; }
"""


def page(report: Mapping[str, Any]) -> str:
    """The page of a report."""
    runs = report["runs"]
    header = report["workload"]["header"]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>Policies compared: {escape(header['source'])}</title><style>{_STYLE}</style></head><body>",
        "<h1>Policies compared</h1>",
        f'<p class="soft">{escape(_subtitle(report))}</p>',
    ]
    if not report["complete"]:
        parts.append(
            '<p class="warn">Interrupted: not all runs are in. The same command goes on from here.</p>'
        )
    if report.get("warning"):
        parts.append(f'<p class="warn">{escape(report["warning"])}</p>')
    if runs:
        parts += ["<h2>Results</h2>", _table(runs), _plots(runs)]
    parts += ["<h2>How it was measured</h2>", _about(report), "</body></html>"]
    return "\n".join(parts)


def _subtitle(report: Mapping[str, Any]) -> str:
    described = report["workload"]["described"]
    text = f"{report['workload']['header']['source']}, {described['requests']:,} requests a run"
    return text if report["speed"] == 1 else f"{text}, time compressed {report['speed']:g} times"


def _table(runs: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
    attained = HEADINGS.index("attained")
    rows = []
    earlier: Any = ...
    for run in runs:
        same_rate = [other["attainment"] for other in runs if other["rate_per_s"] == run["rate_per_s"]]
        known = [value for value in same_rate if value is not None]
        best = len(known) > 1 and run["attainment"] == max(known)
        columns = "".join(
            f"<td{' class=best' if best and column == attained else ''}>{escape(cell)}</td>"
            for column, cell in enumerate(cells(run))
        )
        rows.append(f"<tr{' class=first' if run['rate_per_s'] != earlier else ''}>{columns}</tr>")
        earlier = run["rate_per_s"]
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        '<p class="soft">Times in milliseconds, of complete answers. Attainment counts every offered request with an'
        " SLO; a refused or failed one has missed. Best of a rate marked.</p>"
    )


def _plots(runs: list[dict[str, Any]]) -> str:
    parts: list[str] = []

    def add(title: str, svg: str | None, note: str = "") -> None:
        if svg is not None:
            parts.append(
                f"<h2>{escape(title)}</h2>" + (f'<p class="soft">{escape(note)}</p>' if note else "") + svg
            )

    add("Attainment against load", plots.attainment(runs))
    for caption, svg in plots.distributions(runs):
        add(f"Latency {caption}", svg)
    add("Cost", plots.cost(runs), "One point a run.")
    add("What became of the requests", plots.outcomes(runs))
    add("Where they were served", plots.instances(runs))
    return "\n".join(parts)


def _about(report: Mapping[str, Any]) -> str:
    header = report["workload"]["header"]
    described = report["workload"]["described"]
    facts: dict[str, Any] = {
        "workload": header["source"],
        "licence": header["licence"],
        "seed": header["seed"],
        "cuts": ", ".join(f"{name} {value}" for name, value in header["cuts"].items()) or None,
        "length": header["length_wins"],
        "input tokens": _quantiles(described["prompt_tokens"]),
        "output tokens": _quantiles(described["output_tokens"]),
        "CV of gaps": None if described["gap_cv"] is None else f"{described['gap_cv']:.2f}",
        "SLO": ", ".join(f"{name} {value:g}" for name, value in (report.get("slo") or {}).items()) or None,
        "model": report["model"],
        "server": report["url"],
        "speed": report["speed"],
        "command": report.get("command"),
    }
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>"
        for name, value in facts.items()
        if value is not None
    )
    note = (
        "Open loop: each request is sent at its own time whatever became of those before it, and measured from"
        " that time. Runs follow one another once the server is idle; made-up prompts differ between runs, so"
        " that no run finds the cache of the one before."
    )
    return f"<p>{note}</p><dl>{rows}</dl>"


def _quantiles(summary: Mapping[str, Any]) -> str | None:
    if not summary["count"]:
        return None
    return ", ".join(f"{key} {summary[key]:,.0f}" for key in ("p50", "p90", "p99", "max"))
