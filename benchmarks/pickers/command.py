"""The command: trains, replays, prints a table and writes DIR/report.json."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pickers.cases import CASES, read_set
from benchmarks.pickers.judge import folds_of, judge
from policies.settings import Targets
from predictors.training.dataset import DatasetError

_COLUMNS = ("quality", "above best", "saving", "at equal quality", "of oracle's", "area", "ours/its")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 when the data are not there."""
    sets = sorted({case.set for case in CASES.values()}, reverse=True)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pickers", description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the report and the trained artifacts"
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HEADWAY_DATA"), help="folder of the sets"
    )
    parser.add_argument("--sets", nargs="+", choices=sets, default=sets)
    parser.add_argument("--seeds", type=int, default=10, help="orders of the prompts")
    parser.add_argument("--folds", type=int, default=4, help="parts, each held out once")
    parser.add_argument(
        "--slack",
        type=float,
        default=Targets().quality_slack,
        help="quality that pickers may lose against the best single model",
    )
    options = parser.parse_args(arguments)
    if options.data is None:
        print("no data: give --data DIR or set HEADWAY_DATA", file=sys.stderr)
        return 2
    if options.seeds < 1 or options.folds < 2:
        print("one seed and two folds at least", file=sys.stderr)
        return 2
    reports = []
    targets = Targets(quality_slack=options.slack)
    try:
        for name in options.sets:
            data = read_set(options.data, name)
            for case in (each for each in CASES.values() if each.set == name):
                folds = folds_of(case, data, options.out / "artifacts", options.folds, 1, _progress)
                reports.append(judge(case, folds, options.seeds, _progress, targets))
                print(text_of(reports[-1]), flush=True)
    except (DatasetError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    about = {"seeds": options.seeds, "folds": options.folds, "cases": reports}
    (options.out / "report.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return 0


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def text_of(report: Mapping[str, Any]) -> str:
    """The report of one case as a table."""
    lines = [
        f"\n{report['case']}: {report['prompts']} prompts, {report['groups']} groups; quality random "
        f"{report['random']:.3f}, best of each {report['best_of_each']:.3f}; slack {report['quality_slack']:g}",
        f"{'':40}" + "".join(f"{name:>24}" for name in _COLUMNS),
    ]
    for name, row in (report["policies"] | report["fixed"]).items():
        share = row.get("share_of_oracle_saving")
        cells = [
            f"{row['quality'][0]:.3f}",
            _points(row["above_best_single"]),
            _percent(row["saving"]),
            f"{row['saving_at_equal_quality']:.1%}",
            "" if share is None else f"{share:.0%}",
            f"{row['area']:.4f}",
            _ratio(row.get("our_saving_over_its")),
        ]
        lines.append(f"{name:40}" + "".join(f"{cell:>24}" for cell in cells))
    for name, row in report["bounds"].items():
        lines.append(f"{name:40}{'':72}{row['saving_at_equal_quality']:>24.1%}{'':24}{row['area']:>24.4f}")
    for name, (value, low, high) in (report["price"] or {}).items():
        lines.append(f"price, {name.replace('_', ' ')}: {value:+.2%} [{low:+.2%}, {high:+.2%}]")
    return "\n".join(lines)


def _points(found: Sequence[float]) -> str:
    return f"{100 * found[0]:+.2f} [{100 * found[1]:+.1f}, {100 * found[2]:+.1f}]"


def _percent(found: Sequence[float]) -> str:
    return f"{found[0]:.1%} [{found[1]:.0%}, {found[2]:.0%}]"


def _ratio(found: Sequence[float] | None) -> str:
    return "" if found is None else f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"
