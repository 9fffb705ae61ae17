"""`python -m benchmarks.vidur`: the command line."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.vidur import report
from benchmarks.vidur.case import PROFILE
from benchmarks.vidur.environment import InstallError, install, installed
from benchmarks.vidur.runs import SIMULATORS, Measured, RunError, measure

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.vidur",
        description="Time our simulator and Vidur over the same requests, and compare what they simulate.",
    )
    made.add_argument(
        "--requests", type=_count, default=4000, metavar="N", help="requests of the trace (default 4000)"
    )
    made.add_argument(
        "--replicas",
        type=lambda text: [_count(part) for part in text.split(",")],
        default=[1, 8],
        metavar="A,B",
        help="numbers of replicas to simulate (default 1,8)",
    )
    made.add_argument(
        "--rate",
        type=_positive,
        default=8.0,
        metavar="R",
        help="requests/s for each replica (default 8)",
    )
    made.add_argument("--passes", type=_count, default=5, metavar="N", help="runs of each (default 5)")
    made.add_argument("--seed", type=int, default=1, metavar="N", help="of the trace (default 1)")
    made.add_argument(
        "--environment",
        type=Path,
        default=Path(".vidur"),
        metavar="DIR",
        help="where Vidur is or will be installed, 1.3 GB (default .vidur)",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code: 1 if it could not be measured, 2 for bad arguments."""
    options = parser().parse_args(arguments)
    if options.json is not None:
        try:
            options.json.touch()
        except OSError as error:
            return _say(f"cannot write {options.json}: {error.strerror}", 2)
    try:
        if not installed(options.environment):
            print(f"installing Vidur into {options.environment}", file=sys.stderr)
            install(options.environment)
        measured = _measure(options)
    except (InstallError, RunError) as error:
        return _say(str(error), 1)
    except KeyboardInterrupt:
        return INTERRUPTED
    print(report.text(measured))
    if options.json is not None:
        told = report.as_json(measured, _settings(options))
        options.json.write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    return 0


def _measure(options: argparse.Namespace) -> list[Measured]:
    console = Console(stderr=True)
    with (
        TemporaryDirectory(prefix="headway-vidur-") as folder,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        ) as progress,
    ):
        total = len(options.replicas) * options.passes * len(SIMULATORS)
        task = progress.add_task("starting", total=total)

        def on_run(told: str) -> None:
            progress.update(task, description=told, advance=1)

        return [
            measure(
                options.environment,
                Path(folder),
                replicas=replicas,
                count=options.requests,
                rate_per_s=options.rate,
                passes=options.passes,
                seed=options.seed,
                on_run=on_run,
            )
            for replicas in options.replicas
        ]


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "profile": PROFILE,
        "rate_per_s_and_replica": options.rate,
        "passes": options.passes,
        "seed": options.seed,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }


def _say(message: str, code: int) -> int:
    print(f"python -m benchmarks.vidur: {message}", file=sys.stderr)
    return code


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be above 0")
    return value
