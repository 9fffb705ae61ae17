"""Claims as figures: attainment against the offered rate, and in each scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.claims.tables import Figures
from benchmarks.compare import plots
from benchmarks.compare.capacity import TARGET
from benchmarks.compare.styles import styles_of
from benchmarks.evaluate.plots import COLOURS
from benchmarks.experiments import charts
from benchmarks.pages.standalone import standalone


def attainment(figures: Figures) -> str:
    """An SVG file. Its figures must be of at least two rates."""
    policies = list(figures["policies"])
    cells: list[dict[str, Any]] = [
        {
            "policy": policy,
            "rate_per_s": float(rate),
            "measures": {"attainment": dict(zip(("mean", "half_width"), here["attainment"], strict=True))},
        }
        for policy, found in figures["policies"].items()
        for rate, here in found["rates"].items()
    ]
    oracle = [
        {
            "rate_per_s": float(rate),
            "clairvoyant_attainment": {"mean": attained},
            "attainment_upper_bound": {"mean": None},
        }
        for rate, attained in figures.get("oracle", {}).items()
    ]
    rates = sorted({cell["rate_per_s"] for cell in cells})
    styles = {
        policy: replace(style, css=f"c{at}") for at, (policy, style) in enumerate(styles_of(policies).items())
    }
    report = {
        "policies": policies,
        "rates_per_s": rates,
        "cells": cells,
        "oracle": oracle,
        "attainment_target": TARGET,
    }
    drawing = plots.attainment(report, styles)
    if drawing is None:
        raise ValueError("a figure needs two rates")
    return standalone(drawing.svg(), [(each.light, each.dark, each.dash) for each in styles.values()])


def attainment_by_scenario(
    results: Mapping[str, Figures], shown: Mapping[str, Sequence[int]], policies: Sequence[str]
) -> str:
    """An SVG file: a row for each scenario and rate, in it the intervals of these policies."""
    rows: dict[str, list[charts.Lane]] = {}
    for scenario, rates in shown.items():
        for rate in map(str, rates):
            found = results[scenario]["policies"]
            figures = {name: found[name]["rates"][rate]["attainment"] for name in policies if name in found}
            rows[f"{scenario}, {rate}/s"] = [
                (name, 100 * mean, 100 * (mean - half), 100 * (mean + half))
                for name, (mean, half) in figures.items()
            ]
    caption = "Attainment in each scenario, with 95 % intervals"
    chart = charts.lanes("attainment-scenarios", caption, "requests within their SLO (%)", rows)
    return standalone(chart.drawing.svg(), COLOURS)
