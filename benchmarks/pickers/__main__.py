"""`python -m benchmarks.pickers --out DIR`: trains, replays, prints a table and writes DIR/report.json; see docs/pickers.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.checks import seed, whole_number
from benchmarks.pickers.cases import CASES, read_sets, read_tariff
from benchmarks.pickers.figures import percent_of, points_of
from benchmarks.pickers.judge import folds_of, judge
from benchmarks.pickers.second_look import auc_of, second_looks
from benchmarks.pickers.trained import ARTIFACTS, splits
from benchmarks.terminal import aligned_table, status_of
from benchmarks.workloads.format import WorkloadError, writing
from predictors.training.dataset import DatasetError

_AFTER_LOOKING = (
    "* the targets, or the price, are chosen after looking: on the prompts that they are judged on. That flatters every "
    "row, the last ones most"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 when the data are not there or the test set is not apart from them."""
    sets = sorted({case.set for case in CASES.values()}, reverse=True)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pickers", description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the report and the trained artifacts"
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HEADWAY_DATA"), help="folder of the sets to learn from"
    )
    parser.add_argument(
        "--test",
        type=Path,
        help="folder of the sets to judge on (default: folds of --data, each held out once)",
    )
    parser.add_argument("--sets", nargs="+", choices=sets, default=sets)
    parser.add_argument(
        "--cases", nargs="+", choices=sorted(CASES), help="only these cases (docs/pickers.md)"
    )
    parser.add_argument("--tariff", nargs="+", type=Path, help="cases of your own instead (docs/pickers.md)")
    parser.add_argument(
        "--artifacts",
        nargs="+",
        default=["own"],
        help=f"whose to judge, of {', '.join(ARTIFACTS)}; or folders (with --test)",
    )
    parser.add_argument("--seeds", type=int, default=10, help="orders of the prompts")
    parser.add_argument("--folds", type=int, default=4, help="parts, each held out once")
    parser.add_argument(
        "--parts", type=whole_number, help="judge only the first so many folds (default: all)"
    )
    parser.add_argument("--seed", type=seed, default=1, help="of the folds and of training")
    parser.add_argument(
        "--second-look", action="store_true", help="judge `cost` with checks of its answers, and nothing else"
    )
    options = parser.parse_args(arguments)
    if options.data is None:
        print("no data: give --data DIR or set HEADWAY_DATA", file=sys.stderr)
        return 2
    if options.seeds < 1 or options.folds < 2:
        print("one seed and two folds at least", file=sys.stderr)
        return 2
    if options.test is None and not set(options.artifacts) <= set(ARTIFACTS):
        print("artifacts of a folder may have seen the data: give --test DIR", file=sys.stderr)
        return 2
    reports: list[dict[str, Any]] = []
    about = {
        "held_out": "folds" if options.test is None else "another set",
        "seed": options.seed,
        "seeds": options.seeds,
        "folds": None if options.test else options.folds,
        "chosen_after_looking": ["saving_at_equal_quality", "ours_minus_its", "area", "bounds"],
        "cases": reports,
    }
    try:
        with writing(options.out):  # before it takes its time
            options.out.mkdir(parents=True, exist_ok=True)
        cases = [case for name in options.sets for case in CASES.values() if case.set == name]
        if options.cases:
            cases = [CASES[name] for name in options.cases]
        if options.tariff:
            cases = [read_tariff(path) for path in options.tariff]
        test = None if options.test is None else read_sets(options.test)
        parts = splits(read_sets(options.data), test, options.folds, options.seed)[: options.parts]
        about["parts"] = len(parts)
        for who in options.artifacts:
            for case in cases:
                folds = folds_of(case, who, parts, options.out / "artifacts", options.seed, _progress)
                if folds:
                    report, show = (second_looks, looks_of) if options.second_look else (judge, text_of)
                    found = report(case, folds, options.seeds, _progress)
                    reports.append({"artifacts": who, **found})
                    print(show(reports[-1]), flush=True)
                    _write(options.out, about)  # an interrupted run keeps what it has
        _write(options.out, about)
    except (DatasetError, WorkloadError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _write(folder: Path, report: Mapping[str, Any]) -> None:
    (folder / "report.json").write_text(json.dumps(_rounded(report)) + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 5) if isinstance(value, float) else value


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def text_of(report: Mapping[str, Any]) -> str:
    """The report of one case as a table."""
    about = (
        f"\n{report['case']}, artifacts {report['artifacts']}: {report['prompts']} prompts, {report['groups']} groups; "
        f"quality random {report['random']:.3f}, best of each {report['best_of_each']:.3f}; slack "
        f"{report['quality_slack']:g}"
    )
    rows: list[dict[str, str]] = []
    oracle = report["bounds"]["oracle"]["saving_at_equal_quality"]
    for name, row in (report["policies"] | report["fixed"]).items():
        saving = row["saving_at_equal_quality"]
        rows.append(
            {
                "": name,
                "quality": f"{row['quality'][0]:.3f}",
                "above best": points_of(row["above_best_single"]),
                "saving": percent_of(row["saving"]),
                "at equal quality *": percent_of(saving),
                "ours - its *": f"{points_of(row['ours_minus_its'])} {row['ours_saves']}"
                if "ours_minus_its" in row
                else "",
                "of oracle's *": f"{saving[0] / oracle:.0%}" if oracle > 0.0 else "",
                "area *": f"{row['area']:.4f}",
            }
        )
    for name, row in report["bounds"].items():
        cells = {"": name, "at equal quality *": f"{row['saving_at_equal_quality']:.1%}"}
        rows.append(dict.fromkeys(rows[0], "") | cells | {"area *": f"{row['area']:.4f}"})
    lines = [about, *aligned_table(rows), _AFTER_LOOKING]
    for name, found in report["relevance"].items():
        lines.append(f"quality of relevance - {name}: {points_of(found['difference'])}, {found['verdict']}")
    for name, (value, low, high) in (report["price"] or {}).items():
        lines.append(f"price, {name.replace('_', ' ')}: {value:+.2%} [{low:+.2%}, {high:+.2%}]")
    return "\n".join(lines)


def looks_of(report: Mapping[str, Any]) -> str:
    """The report of one case with second looks, as a table."""
    low, median, high = report["correlation"]
    about = (
        f"\n{report['case']}, artifacts {report['artifacts']}: {report['prompts']} prompts; slack "
        f"{report['quality_slack']:g}; correlation {median:.2f} ({low:.2f} to {high:.2f})"
    )
    rows = []
    for row in ({"check": "none"} | report["without"], *report["checks"]):
        name = row["check"]
        if "told" in row:
            name += f", assumed {row['told']:.2f} (AUC {auc_of(row['told']):.2f}), price {row['price']:g}"
        more = f"{points_of(row['more'])} {row['saves']}" if "more" in row else ""
        rows.append(
            {
                "": name,
                "at equal quality *": percent_of(row["saving_at_equal_quality"]),
                "more than without *": more,
                "above best": points_of(row["above_best_single"]),
                "saving": percent_of(row["saving"]),
                "checked, replaced": f"{row['checked']:.0%}, {row['replaced']:.0%}",
            }
        )
    return "\n".join([about, *aligned_table(rows)])


if __name__ == "__main__":
    sys.exit(status_of(main))
