"""The figures of a report of `headway compare` that a table needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.compare.tables import capacity_text

_MEASURES = ("attainment", *(f"{time}_s_{of}" for time in ("ttft", "e2e") for of in ("mean", "p50", "p95")))
_DIGITS = 5


def measured(report: Mapping[str, Any]) -> dict[str, Any]:
    """See `benchmarks.claims.tables.Figures`; numbers are rounded to five decimals."""
    found: dict[str, Any] = {"policies": {}}
    for capacity in report["capacity"]:
        found["policies"][capacity["policy"]] = {"capacity": capacity_text(capacity), "rates": {}}
    for cell in report["cells"]:
        policy, rate = cell["policy"], cell["rate_per_s"]
        here: dict[str, Any] = {
            name: [round(cell["measures"][name][part] or 0.0, _DIGITS) for part in ("mean", "half_width")]
            for name in _MEASURES
        }
        here["draws"] = [
            round(run["attainment"], _DIGITS)
            for run in sorted(report["runs"], key=lambda run: run["seed"])
            if run["policy"] == policy and run["rate_per_s"] == rate
        ]
        found["policies"][policy]["rates"][f"{rate:g}"] = here
    if report["oracle"]:
        found["oracle"] = {
            f"{each['rate_per_s']:g}": round(each["clairvoyant_attainment"]["mean"], _DIGITS)
            for each in report["oracle"]
        }
    return found
