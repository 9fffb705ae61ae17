"""`headway experiment`: measurements for a paper, each by one command (docs/experiments.md)."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path
from typing import Any

from benchmarks.checks import seed
from benchmarks.experiments.report import Report, Section, header, write
from benchmarks.terminal import shown_progress
from benchmarks.workloads.format import WorkloadError, writing
from predictors.training.dataset import DatasetError

#: The line in the help by module, which has `TITLE`, `add_arguments(parser)` and `sections(args, data, progress)`.
EXPERIMENTS = {
    "unpredictability": "how much the times of the same request differ",
    "heterogeneity": "how different hardware, engines, SLO classes, models and prices are",
    "training": "what predictors learn, from what, and what it is worth in goodput",
}
ERRORS = (WorkloadError, DatasetError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headway experiment`: one subcommand an experiment."""
    chosen = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", required=True)
    for name, text in EXPERIMENTS.items():
        subparser = chosen.add_parser(name, help=text)
        subparser.add_argument(
            "--out",
            type=Path,
            required=True,
            metavar="DIR",
            help="index.html, results.json, tables.md, figures/",
        )
        subparser.add_argument(
            "--seed", type=seed, default=1, metavar="N", help="seed of all random draws (1)"
        )
        subparser.add_argument(
            "--data",
            type=Path,
            default=os.environ.get("HEADWAY_DATA"),
            metavar="DIR",
            help="published sets, for further sections (default: HEADWAY_DATA; without it, what comes with Headway)",
        )
        _module(name).add_arguments(subparser)


def _module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.experiments.{name}")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0. Raises ERRORS for data that cannot be read and an engine that does not answer, too. Of an experiment that
    ends so, or by Ctrl-C, the sections that are done are written, with `stopped` in the header."""
    experiment = _module(args.experiment)
    data: Path | None = args.data
    if data is not None and not data.is_dir():
        raise WorkloadError(f"--data {data}: no such folder")
    with writing(args.out):  # before it takes its time
        args.out.mkdir(parents=True, exist_ok=True)
    about = header(args.seed, data, url=getattr(args, "url", None))
    sections: list[Section] = []
    stopped: BaseException | None = None
    try:
        with shown_progress(args.experiment) as progress:
            sections.extend(experiment.sections(args, data, progress))  # as far as they come
    except (*ERRORS, KeyboardInterrupt) as error:
        if not sections:
            raise
        stopped = error
        about["stopped"] = str(error) or "interrupted"
    page = write(args.out, Report(args.experiment, experiment.TITLE, about, sections))
    for section in sections:
        tables, figures = len(section.tables), len(section.charts)
        print(f"{section.title}: {tables} tables, {figures} figures")
    print(f"written to {page}" + (", without the sections that were not done" if stopped else ""))
    if stopped is not None:
        raise stopped
    return 0
