"""The experiment's tables: each scaler's figures, and its GPU-hours against each other's on the same draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.measures import Interval
from benchmarks.pages import marked
from benchmarks.terminal import aligned_table
from benchmarks.workloads.published import grouped

Run = Mapping[str, Any]


def rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each case, scaler and settings: means over the draws with 95 % intervals. `kept` is the attainment as a
    share of the static fleet's, `saved` the share of another row's GPU-hours that this one did not take; both draw by
    draw."""
    groups = grouped(report["runs"], lambda run: (run["case"], _label(report, run)))
    found = []
    for (case, label), runs in groups.items():
        static = groups[case, "none"]
        interval = partial(Interval.of, resampled=not case.startswith(("servegen", "made")))
        found.append(
            {
                "case": case,
                "scaler": label,
                "settings": runs[0]["settings"],
                "attainment": interval(run["attainment"] for run in runs),
                "gpu_hours": interval(run["gpu_hours"] for run in runs),
                "usd": interval(run["usd"] for run in runs),
                "kept": interval(_paired(runs, static, "attainment")),
                "saved": {
                    other: interval(1 - each for each in _paired(runs, others, "gpu_hours"))
                    for (where, other), others in groups.items()
                    if where == case and other != label
                },
            }
        )
    return found


def _label(report: Mapping[str, Any], run: Run) -> str:
    """A scaler with its defaults beside its tuned self is marked."""
    tuned = report["tuned"].get(run["case"], {}).get(run["scaler"], {})
    return f"{run['scaler']} (default)" if run["settings"] != tuned else str(run["scaler"])


def _paired(runs: Sequence[Run], others: Sequence[Run], name: str) -> list[float]:
    by_draw = {run["draw"]: run[name] for run in others}
    return [run[name] / by_draw[run["draw"]] for run in runs]


def _shown(one: Interval, digits: int = 1, scale: float = 1.0) -> str:
    if one.mean is None:
        return "-"
    half = "" if one.half_width is None else f" ± {scale * one.half_width:.{digits}f}"
    return f"{scale * one.mean:.{digits}f}{half}"


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    found = {
        "scaler": row["scaler"],
        "settings": ", ".join(f"{name} {value:g}" for name, value in row["settings"].items()),
        "attainment %": _shown(row["attainment"], 2, 100),
        "of static %": _shown(row["kept"], 2, 100),
        "GPU-hours": _shown(row["gpu_hours"]),
        "USD": _shown(row["usd"], 2),
    }
    for other in ("queue", "kpa"):
        found[f"saved: {other} %"] = _shown(row["saved"][other], 1, 100) if other in row["saved"] else ""
    return found


def of_case(report: Mapping[str, Any], case: str) -> str:
    """A table in Markdown."""
    return marked.table_of([_cells(row) for row in rows(report) if row["case"] == case])


def table(report: Mapping[str, Any]) -> str:
    """The same in columns of equal width."""
    found = [{"case": row["case"], **_cells(row)} for row in rows(report)]
    return "\n".join(aligned_table(found, left=len(found[0])))
