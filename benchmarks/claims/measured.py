"""The figures of a report of `headway compare` that the documentation shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.compare.capacity import capacities
from benchmarks.compare.cells import resampled
from benchmarks.compare.tables import capacity_text

#: What is kept of each policy at each rate; `benchmarks.compare.cells.MEASURES` says what they are.
LATENCIES = ("attainment", *(f"{time}_s_{of}" for time in ("ttft", "e2e") for of in ("mean", "p50", "p95")))
PRICED = (*LATENCIES, "cost_usd_per_request", "quality_mean")
BLOCK = (
    *LATENCIES,
    *("ttft_s_p99", "e2e_s_p99", "tpot_s_mean", "tpot_s_p99", "decision_s_p50", "preemptions_per_request"),
)
#: The bound of the 99th percentile of TTFT (s) for Block's capacity.
TTFT_P99_S = 3.0
_DIGITS = 7


def measured(report: Mapping[str, Any], measures: Sequence[str] = LATENCIES) -> dict[str, Any]:
    """See `benchmarks.claims.tables.Figures`; numbers are rounded to seven decimals."""
    found: dict[str, Any] = {"policies": {}}
    for capacity in report["capacity"]:
        found["policies"][capacity["policy"]] = {"capacity": capacity_text(capacity), "rates": {}}
    if "ttft_s_p99" in measures:
        for capacity in capacities(
            report["runs"], report["baseline"], -TTFT_P99_S, lambda run: -run["ttft_s"]["p99"]
        ):
            found["policies"][capacity["policy"]]["ttft_capacity"] = capacity_text(capacity)
    for cell in report["cells"]:
        found["policies"][cell["policy"]]["rates"][f"{cell['rate_per_s']:g}"] = {
            **{
                name: [round(cell["measures"][name][part] or 0.0, _DIGITS) for part in ("mean", "half_width")]
                for name in measures
            },
            "draws": [round(run["attainment"], 5) for run in _runs(report, cell)],
        }
    if resampled(report["runs"]):
        found["resampled"] = True
    if report["oracle"]:
        found["oracle"] = {
            f"{each['rate_per_s']:g}": round(each["clairvoyant_attainment"]["mean"], 5)
            for each in report["oracle"]
        }
    for oracle in report["oracle"] if "quality_mean" in measures else ():
        points = oracle["quality_cost"]
        quality, usd = ([each[name] for each in points] for name in ("quality", "cost_usd_per_request"))
        for cell in report["cells"]:
            if cell["rate_per_s"] == oracle["rate_per_s"]:
                first = _runs(report, cell)[0]
                least = float(np.interp(first["quality_mean"], quality, usd))
                here = found["policies"][cell["policy"]]["rates"][f"{cell['rate_per_s']:g}"]
                here["spend_over_least"] = round(first["cost_usd_per_request"] / least, 4)
    return found


def _runs(report: Mapping[str, Any], cell: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A cell's runs, draw by draw."""
    own = (
        run
        for run in report["runs"]
        if run["policy"] == cell["policy"] and run["rate_per_s"] == cell["rate_per_s"]
    )
    return sorted(own, key=lambda run: run["seed"])
