"""What a comparison found, in sentences made of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compare.looks import is_baseline
from benchmarks.compare.tables import rate_text, three_digits, written

Report = Mapping[str, Any]


def headline(report: Report) -> list[str]:
    """One to three sentences: which policy bears most load, which keeps most when it is too much, which costs
    least. A lead that the intervals do not bear out is told as none."""
    if not report["cells"] or len(report["policies"]) < 2:
        return []
    sentences = [_capacity(report), _at_highest_rate(report), _cost(report)]
    return [sentence for sentence in sentences if sentence]


def _low_high(figure: Mapping[str, Any]) -> tuple[float, float]:
    half = figure["half_width"] or 0.0
    return figure["mean"] - half, figure["mean"] + half


def _names(policies: Sequence[str]) -> str:
    return policies[0] if len(policies) == 1 else f"{', '.join(policies[:-1])} and {policies[-1]}"


def _leaders(figures: Mapping[str, Mapping[str, Any]], *, least: bool = False) -> list[str]:
    """The policy with the best mean, and those whose intervals reach into its own (with one seed: those that
    are equal)."""
    sign = -1.0 if least else 1.0
    ordered = sorted(figures, key=lambda policy: -sign * figures[policy]["mean"])
    best = _low_high(figures[ordered[0]])
    edge = best[1] if least else best[0]
    return [
        policy
        for policy in ordered
        if policy == ordered[0] or sign * _low_high(figures[policy])[0 if least else 1] >= sign * edge
    ]


def _capacity(report: Report) -> str | None:
    known = {
        entry["policy"]: entry for entry in report["capacity"] if entry["bound"] in ("within", "at_least")
    }
    if len(report["rates_per_s"]) < 2:
        return None
    kept = f"{100 * report['attainment_target']:g} % of requests within their SLO"
    if not known:
        if all(entry["bound"] == "below" for entry in report["capacity"]):
            return f"No policy keeps {kept} even at the lowest rate, {rate_text(report['rates_per_s'][0])} requests/s."
        return None
    beyond = [policy for policy, entry in known.items() if entry["bound"] == "at_least"]
    if beyond:
        top = rate_text(report["rates_per_s"][-1])
        return f"{_names(beyond)} {'keeps' if len(beyond) == 1 else 'keep'} {kept} up to the highest rate, {top} requests/s."
    leaders = _leaders({policy: entry["rate_per_s"] for policy, entry in known.items()})
    best = known[leaders[0]]
    text = f"{leaders[0]} bears most load: {written(best['rate_per_s'], three_digits)} requests/s with {kept}"
    if leaders[0] != report["baseline"] and best["ratio"]["mean"] is not None:
        text += f", {written(best['ratio'], '{:.2f}'.format)} times as much as {report['baseline']}"
    return f"{text}{_tie(leaders)}."


def _tie(leaders: Sequence[str]) -> str:
    if len(leaders) == 1:
        return ""
    return f"; {_names(leaders[1:4])} {'is' if len(leaders) == 2 else 'are'} not clearly behind"


def _at_highest_rate(report: Report) -> str | None:
    rate = report["rates_per_s"][-1]
    cells = [cell for cell in report["cells"] if cell["rate_per_s"] == rate]
    figures = {
        cell["policy"]: cell["measures"]["attainment"]
        for cell in cells
        if cell["measures"]["attainment"]["mean"] is not None
    }
    if len(figures) < 2:
        return None
    leaders = _leaders(figures)
    text = (
        f"At {rate_text(rate)} requests/s {leaders[0]} keeps most within their SLO:"
        f" {written(figures[leaders[0]], '{:.1f}'.format, 100)} %"
    )
    paired = next(
        (
            entry["differences"]["attainment"]
            for entry in report["paired"]
            if entry["policy"] == leaders[0] and entry["rate_per_s"] == rate
        ),
        None,
    )
    if paired is not None and paired["mean"] is not None:
        points = written(paired, "{:.1f}".format, 100)
        text += f", {'+' if paired['mean'] >= 0 else ''}{points} points against {report['baseline']}"
    return f"{text}{_tie(leaders)}."


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
    leaders = _leaders(figures, least=True)
    baseline = figures.get(report["baseline"])
    best = leaders[0]
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
    return f"{text}{_tie(leaders)}."
