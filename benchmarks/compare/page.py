"""The report as one self-contained HTML page: no script, no outside file, light and dark. What a comparison found and what its
figures stand on is told in sentences made of its numbers.

The key works by style alone: a box hides a policy in all plots and tables, the pointer (or the focus) on a name shows it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compare import page_tables as tables
from benchmarks.compare import panels, plots
from benchmarks.compare.capacity import NEAR_FACTOR, out_of_reach
from benchmarks.compare.capacity import leaders as capacity_leaders
from benchmarks.compare.cells import leaders
from benchmarks.compare.report import BASELINE
from benchmarks.compare.styles import OUTCOME_GROUPS, PolicyStyles, Report, is_baseline, styles_of
from benchmarks.compare.tables import (
    ENDINGS_NOTE,
    arrivals_text,
    capacity_text,
    rate_text,
    rates_hint,
    short_note,
    three_digits,
    written,
)
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
        "outcomes": panels.outcomes(report, styles),
        "load": panels.load(report, styles, near),
        "heat_steps": panels.HEAT_STEPS,
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


def headline(report: Report) -> list[str]:
    """One to three sentences: which policy has the largest capacity, which attains most under overload, which costs
    least. A lead that the paired differences do not confirm is not reported, and of
    loads only what all seeds show."""
    if not report["cells"] or len(report["policies"]) < 2:
        return []
    sentences = [_capacity(report), _at_highest_rate(report), _cost(report)]
    return [sentence for sentence in sentences if sentence]


#: More names than this are counted.
_MOST_NAMED = 3


def _names(policies: Sequence[str]) -> str:
    more = len(policies) - _MOST_NAMED
    named = (
        list(policies) if more < 1 else [*policies[:_MOST_NAMED], f"{more} other{'s' if more > 1 else ''}"]
    )
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _tie(leading: Sequence[str]) -> str:
    """Who else may be the best: those whose paired difference to the leader was not shown."""
    if len(leading) == 1:
        return ""
    return f"; {_names(leading[1:])} {'is' if len(leading) == 2 else 'are'} not clearly behind"


def _capacity(report: Report) -> str | None:
    rates = report["rates_per_s"]
    entries = {entry["policy"]: entry for entry in report["capacity"] if entry["bound"] is not None}
    if len(rates) < 2 or not entries:
        return None
    kept = f"{100 * report['attainment_target']:g} % of requests within their SLO"
    if all(entry["bound"] == "below" for entry in entries.values()):
        text = f"No policy keeps {kept} at any rate, from {rate_text(rates[0])} requests/s on"
        if (most := out_of_reach(report)) is not None:
            text += f"; none could, the oracle's upper bound there is {100 * most:.1f} %"
        return f"{text}."
    throughout = [
        policy
        for policy, entry in entries.items()
        if entry["bound"] == "at_least" and entry["low_per_s"] == rates[-1] and not entry["missed_per_s"]
    ]
    if throughout:
        keep = "keeps" if len(throughout) == 1 else "keep"
        return (
            f"{_names(throughout)} {keep} {kept} up to the highest rate, {rate_text(rates[-1])} requests/s."
        )
    leading = capacity_leaders(list(entries.values()))
    best, baseline = entries[leading[0]], entries.get(report["baseline"])
    text = f"{leading[0]} bears most load: {capacity_text(best)} requests/s with {kept}"
    if leading[0] != report["baseline"] and baseline is not None:
        text += (
            f" ({report['baseline']}: {capacity_text(baseline)})"
            if best["ratio"]["mean"] is None
            else f", {written(best['ratio'], '{:.2f}'.format)} times as much as {report['baseline']}"
        )
    return f"{text}{_tie(leading)}."


def _at_highest_rate(report: Report) -> str | None:
    rate = report["rates_per_s"][-1]
    figures = {
        cell["policy"]: cell["measures"]["attainment"]
        for cell in report["cells"]
        if cell["rate_per_s"] == rate and cell["measures"]["attainment"]["mean"] is not None
    }
    if len(figures) < 2:
        return None
    leading = leaders(report["runs"], rate, "attainment")
    text = (
        f"At {rate_text(rate)} requests/s {leading[0]} keeps most within their SLO:"
        f" {written(figures[leading[0]], '{:.1f}'.format, 100)} %"
    )
    paired = next(
        (
            entry["differences"]["attainment"]
            for entry in report["paired"]
            if entry["policy"] == leading[0] and entry["rate_per_s"] == rate
        ),
        None,
    )
    if paired is not None and paired["mean"] is not None:
        points = written(paired, "{:.1f}".format, 100)
        text += f", {'+' if paired['mean'] >= 0 else ''}{points} points against {report['baseline']}"
    return f"{text}{_tie(leading)}."


def _cost(report: Report) -> str | None:
    """Only where policies differ: with one tariff there is nothing to choose."""
    rate = report["rates_per_s"][0]
    cells = {cell["policy"]: cell for cell in report["cells"] if cell["rate_per_s"] == rate}
    figures = {
        policy: cell["measures"]["cost_usd_per_request"]
        for policy, cell in cells.items()
        if cell["measures"]["cost_usd_per_request"]["mean"] is not None
    }
    if len(figures) < 2:
        return None
    leading = leaders(report["runs"], rate, "cost_usd_per_request", least=True)
    baseline = figures.get(report["baseline"])
    best = leading[0]
    if (
        is_baseline(best)
        or baseline is None
        or baseline["mean"] - figures[best]["mean"] < 0.02 * baseline["mean"]
    ):
        return None
    text = (
        f"{best} is the cheapest at {rate_text(rate)} requests/s:"
        f" {three_digits(1000 * figures[best]['mean'])} USD for 1,000 answers"
        f" ({report['baseline']}: {three_digits(1000 * baseline['mean'])})"
    )
    quality = [cells[policy]["measures"]["quality_mean"]["mean"] for policy in (best, report["baseline"])]
    if None not in quality:
        text += f", at a mean quality of {quality[0]:.3f} ({quality[1]:.3f})"
    kept = [cells[policy]["measures"]["attainment"]["mean"] for policy in (best, report["baseline"])]
    if None not in kept:
        text += f", with {100 * kept[0]:.1f} % within their SLO ({100 * kept[1]:.1f} %)"
    return f"{text}{_tie(leading)}."


def oracle_note(report: Report) -> str:
    """What the oracle's area is, and of which draws."""
    if not report["oracle"]:
        return ""
    note = "The oracle's area lies between what a schedule that knows all requests reached and what no schedule can pass."
    draws = _oracle_draws(report)
    if any(list(one["seeds"]) != list(report["seeds"]) for one in report["oracle"]):
        note += f" Oracles: {draws} only; the lines are of all draws, so that one may lie beyond the area."
    return note


def _oracle_draws(report: Report) -> str:
    """`draws 0 and 1`: those that have an oracle."""
    draws = sorted({seed for one in report["oracle"] for seed in one["seeds"]})
    *earlier, last = map(str, draws)
    return f"draws {', '.join(earlier)} and {last}" if earlier else f"draw {last}"


def gap_note(report: Report) -> str:
    """What the share of the gap that a policy closes is, from which baseline and over which draws."""
    if not report["oracle"]:
        return ""
    baseline = report["baseline"]
    instead = "" if baseline == BASELINE else f" ({BASELINE} was not run: {baseline} stands in its place)"
    return (
        f"How much of the goodput between {baseline}{instead} and the best possible each policy gains, draw by draw"
        f" over {_oracle_draws(report)}. The best lies between an upper bound and a schedule that was found, so the"
        " share does too. A dash: nothing to gain."
    )
