"""The report as one self-contained HTML page: no script, no outside file, light and dark.

The key works by style alone: a box hides a policy in all plots and tables, the pointer (or the focus) on a name shows it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compare import bars, panels, plots
from benchmarks.compare import page_tables as tables
from benchmarks.compare.capacity import NEAR_FACTOR
from benchmarks.compare.headline import gap_note, headline, oracle_note
from benchmarks.compare.styles import OUTCOME_GROUPS, PolicyStyles, Report, styles_of
from benchmarks.compare.tables import ENDINGS_NOTE, arrivals_text, rate_text, rates_hint, short_note
from benchmarks.pages import render


def page(report: Report) -> str:
    styles = styles_of(report["policies"])
    return render(
        "compare/page.html",
        report=report,
        styles=styles,
        groups=OUTCOME_GROUPS,
        subtitle=_subtitle(report),
        short_note=short_note(report),
        headline=headline(report),
        facts=_facts(report),
        fleet=tables.fleet_table(report),
        **(_found(report, styles) if report["cells"] else {}),
    )


def _found(report: Report, styles: PolicyStyles) -> dict[str, Any]:
    """What the page shows of the runs."""
    near = plots.near_capacity(report)
    shown = [(rate_text(rate), rate) for rate in plots.shown_rates(report)]
    differences = [(text, panels.differences(report, styles, rate)) for text, rate in shown]
    return {
        "near": rate_text(near),
        "attainment": plots.attainment(report, styles),
        "goodput": plots.goodput(report, styles),
        "oracle_note": oracle_note(report),
        "figures": panels.figures(report, styles, near),
        "capacities": tables.capacity_table(report, styles),
        "near_factor": NEAR_FACTOR,
        "rates_hint": rates_hint(report) or "",
        "results": tables.results_table(report, styles),
        "endings_note": ENDINGS_NOTE,
        "shown_note": plots.shown_note(report),
        "latencies": panels.distributions(report, styles),
        "cost": plots.cost(report, styles),
        "outcomes": bars.outcomes(report, styles),
        "load": bars.load(report, styles, near),
        "heat_steps": bars.HEAT_STEPS,
        "regret": tables.regret_table(report, styles),
        "gap_note": gap_note(report),
        "differences": [(text, drawing) for text, drawing in differences if drawing],
        "predictions": tables.predictions_table(report, styles),
    }


def _subtitle(report: Report) -> str:
    header, described = report["workload"]["header"], report["workload"]["described"]
    seeds = len(report["seeds"])
    rates = report["rates_per_s"]
    facts = [
        "live gateway" if report.get("url") else "simulation",
        report.get("scenario"),
        header["source"],
        f"{described['requests']:,} requests a run",
        arrivals_text(report),
        f"{len(rates)} rates from {rate_text(rates[0])} to {rate_text(rates[-1])} requests/s"
        if len(rates) > 1
        else None,
        f"{seeds} seeds" if seeds > 1 else None,
        None if report["speed"] == 1 else f"time compressed {report['speed']:g} times",
    ]
    return " · ".join(fact for fact in facts if fact)


def _facts(report: Report) -> dict[str, Any]:
    """What was measured and how, by name."""
    header, described = report["workload"]["header"], report["workload"]["described"]
    seeds: Sequence[Any] = [seed for seed in report["seeds"] if seed is not None]
    slo = ", ".join(f"{name} {value:g}" for name, value in (report.get("slo") or {}).items())
    facts: dict[str, Any] = {
        "workload": header["source"],
        "licence": header["licence"],
        "seed of the workload": header["seed"],
        "cuts": ", ".join(f"{name} {value}" for name, value in header["cuts"].items()) or None,
        "length": header["length_wins"],
        "input tokens": _quantiles(described["prompt_tokens"]),
        "output tokens": _quantiles(described["output_tokens"]),
        "CV of gaps": None if described["gap_cv"] is None else f"{described['gap_cv']:.2f}",
        "with an SLO": f"{described['with_slo']:,} of {described['requests']:,}",
        "SLO for the others": slo or None,
        "with a cost cap": described["with_budget"] or None,
        "runs": f"{len(report['runs']):,}" + (f", seeds {_listed(seeds)}" if seeds else ""),
        "model": report.get("model"),
        "server": report.get("url"),
        "speed": report["speed"] if report.get("url") else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _listed(seeds: Sequence[Any]) -> str:
    listed = ", ".join(map(str, seeds[:12]))
    return listed if len(seeds) <= 12 else f"{listed}, ... ({len(seeds)})"


def _quantiles(summary: Mapping[str, Any]) -> str | None:
    if not summary["count"]:
        return None
    return ", ".join(f"{key} {summary[key]:,.0f}" for key in ("p50", "p90", "p99", "max"))
