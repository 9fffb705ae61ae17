"""The report as CSV files, for other plots. Column names have units; unknown is an empty cell."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.cells import MEASURES

_RUN_COLUMNS = (
    *("name", "policy", "rate_per_s", "seed", "measured_rate_per_s", "duration_s", "requests", "complete"),
    *("offered_with_slo", "met", "prompt_tokens", "output_tokens", "cost_usd"),
    *("timed_out_before_decoding", "out_of_budget_before_decoding", "budget_overruns"),
    *("budget_overrun_usd_max", "retried", "hedged", "peak_in_flight", "wall_s", "events"),
)
_LOADS = ("in_flight", "running", "waiting", "kv_usage")

Rows = Iterator[Sequence[Any]]


def write(folder: Path, report: Mapping[str, Any]) -> None:
    """Write runs.csv (one line a run), cells.csv (a policy at a rate, with intervals), outcomes.csv (counts),
    curves.csv (quantiles of latency) and timeline.csv (load of instances) into `folder`."""
    for name, rows in (
        ("runs", _runs(report)),
        ("cells", _cells(report)),
        ("outcomes", _outcomes(report)),
        ("curves", _curves(report)),
        ("timeline", _timeline(report)),
    ):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def _runs(report: Mapping[str, Any]) -> Rows:
    yield [*_RUN_COLUMNS, *MEASURES]
    for run in report["runs"]:
        yield [*(run.get(name) for name in _RUN_COLUMNS), *(measure(run) for measure in MEASURES.values())]


def _cells(report: Mapping[str, Any]) -> Rows:
    yield [
        *("policy", "rate_per_s", "seeds", "requests"),
        *(column for name in MEASURES for column in (name, f"{name}_ci95_half_width")),
    ]
    for cell in report["cells"]:
        figures = [cell["measures"][name] for name in MEASURES]
        yield [
            *(cell[name] for name in ("policy", "rate_per_s", "seeds", "requests")),
            *(value for figure in figures for value in (figure["mean"], figure["half_width"])),
        ]


def _outcomes(report: Mapping[str, Any]) -> Rows:
    yield ["name", "policy", "rate_per_s", "seed", "outcome", "requests"]
    for run in report["runs"]:
        for outcome, count in run["outcomes"].items():
            yield [run["name"], run["policy"], run["rate_per_s"], run["seed"], outcome, count]


def _curves(report: Mapping[str, Any]) -> Rows:
    names = ("ttft_s", "tpot_s", "e2e_s")
    yield ["policy", "rate_per_s", "quantile", *names]
    for cell in report["cells"]:
        points = list(zip(*(cell["curves"][name] for name in names), strict=True))
        for index, values in enumerate(points):
            yield [cell["policy"], cell["rate_per_s"], f"{index / (len(points) - 1):g}", *values]


def _timeline(report: Mapping[str, Any]) -> Rows:
    yield ["name", "policy", "rate_per_s", "seed", "at_s", "instance", *_LOADS]
    for run in report["runs"]:
        timeline = run["timeline"]
        if timeline is None:
            continue
        for instance, loads in timeline["instances"].items():
            for at_s, *values in zip(timeline["at_s"], *(loads[name] for name in _LOADS), strict=True):
                yield [run["name"], run["policy"], run["rate_per_s"], run["seed"], at_s, instance, *values]
