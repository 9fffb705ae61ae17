"""`python -m benchmarks.scaling --out DIR`: each scaler tuned by a sweep, then all of them on draws that no sweep saw.

The static fleet has all its instances always, and is too large on purpose. Of each sweep that setting is taken which needs
the fewest GPU-hours among those with at least `KEPT` of the static fleet's attainment on the tuning draws; if there is none,
the one with the best attainment. Finished runs are kept in `DIR/runs.jsonl`, so that an interrupted experiment goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import policies
from benchmarks.checks import whole_number
from benchmarks.compare import pool
from benchmarks.compare.runs import KeptRuns
from benchmarks.result_lines import result_lines
from benchmarks.scaling.cases import CASES, TUNING
from benchmarks.scaling.report import table
from benchmarks.scaling.run import ORACLE, Trial, run
from benchmarks.terminal import status_of
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import grouped

#: The share of the static fleet's attainment that a tuned scaler must keep.
KEPT = 0.99
STATIC = "none"
#: The instances of the static fleet, which are the most that a scaler may have.
INSTANCES = {"servegen_m_large": 7, "servegen_m_small": 7, "azure_conv": 9, "azure_code": 9, "made": 7}
#: What each sweep tries.
GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "queue": {"threshold": (0,), "down_after_s": (120, 300, 600, 1500)},
    "kpa": {"utilization": (0.28, 0.31, 0.35, 0.38, 0.42, 0.5, 0.7), "scale_down_delay_s": (0, 300)},
    "headway": {"margin": (0.5, 1, 2, 4, 6, 8), "miss_step": (0, 0.01)},
    ORACLE: {"scale": (1, 1.5, 2)},
    "concurrency": {"utilization": (0.35, 0.5, 0.7), "window_s": (300,)},
}
#: The scalers that are run if none are named.
USUAL = ("queue", "kpa", "headway", ORACLE)
#: Scalers that are reported with their defaults too.
_DEFAULTS = ("kpa", "headway")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 with one line on stderr for bad input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, default=os.environ.get("HEADWAY_DATA"), metavar="DIR")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["servegen_m_large", "azure_conv"])
    parser.add_argument("--scalers", nargs="+", choices=GRIDS, default=list(USUAL))
    parser.add_argument(
        "--draws", type=whole_number, default=5, metavar="N", help="reported draws (default 5)"
    )
    parser.add_argument(
        "--tuning", type=whole_number, default=2, metavar="N", help="draws of the sweeps (default 2)"
    )
    parser.add_argument(
        "--policy",
        default="least_load",
        choices=policies.POLICIES,
        help="the policy that places the requests",
    )
    parser.add_argument("--jobs", type=whole_number, default=pool.cores(), metavar="N")
    args = parser.parse_args(argv)
    try:
        report = experiment(args)
    except WorkloadError as error:
        print(f"benchmarks.scaling: {error}", file=sys.stderr)
        return 2
    (args.out / "report.json").write_text(result_lines(report), encoding="utf-8")
    print(table(report))
    return 0


def experiment(args: argparse.Namespace) -> dict[str, Any]:
    """The sweeps' choices and the reported runs, by case."""
    tuning = range(TUNING, TUNING + args.tuning)

    def trials(case: str, scaler: str, settings: Mapping[str, Any], draws: Iterable[int]) -> list[Trial]:
        return [
            Trial(case, draw, scaler, INSTANCES[case], settings, args.data, args.policy) for draw in draws
        ]

    swept = [
        trial
        for case in args.cases
        for scaler, settings in [(STATIC, {}), *_grid(args.scalers)]
        for trial in trials(case, scaler, settings, tuning)
    ]
    with pool.Processes(args.jobs) as processes:
        runs = KeptRuns(args.out / "runs.jsonl", processes, run, _key)
        tuned = _chosen(runs.of(swept))
        reported = [
            trial
            for case in args.cases
            for scaler, settings in [
                (STATIC, {}),
                *((scaler, tuned[case][scaler]) for scaler in args.scalers),
                *((scaler, {}) for scaler in _DEFAULTS if scaler in args.scalers and tuned[case][scaler]),
            ]
            for trial in trials(case, scaler, settings, range(1, args.draws + 1))
        ]
        return {"tuned": tuned, "runs": runs.of(reported)}


def _grid(scalers: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (scaler, dict(zip(GRIDS[scaler], values, strict=True)))
        for scaler in scalers
        for values in product(*GRIDS[scaler].values())
    ]


def _chosen(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The settings of each scaler by case."""
    found: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for case, of_case in grouped(runs, itemgetter("case")).items():
        by_scaler = grouped(of_case, itemgetter("scaler"))
        least = KEPT * _mean(by_scaler.pop(STATIC), "attainment")
        for scaler, swept in by_scaler.items():
            by_settings = grouped(swept, lambda each: tuple(each["settings"].items()))
            ranked = [
                (_mean(same, "attainment"), _mean(same, "gpu_hours"), dict(settings))
                for settings, same in by_settings.items()
            ]
            kept = [each for each in ranked if each[0] >= least]
            best = min(kept, key=lambda each: each[1]) if kept else max(ranked, key=lambda each: each[0])
            found[case][scaler] = best[2]
    return found


def _mean(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(each[name] for each in runs) / len(runs))


def _key(trial: Trial) -> str:
    settings = ",".join(f"{name}={value:g}" for name, value in sorted(trial.settings.items()))
    return f"{trial.case}#{trial.draw} {trial.scaler}({settings})/{trial.instances} {trial.policy}"


if __name__ == "__main__":
    sys.exit(status_of(main))
