"""`headway reproduce`: placement systems on their published cases, and Headway's own planner beside them.

headway reproduce alpaserve --data DIR
headway reproduce helix --data DIR
headway reproduce wlb --data DIR
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.terminal import print_json
from benchmarks.workloads.format import WorkloadError

#: The line in the help by module, which has `add_arguments(parser)` and `run(args) -> int`.
SYSTEMS = {
    "alpaserve": "AlpaServe and AlpaServe*: 49 placements",
    "helix": "Helix: every simulation of its artifact evaluation",
    "wlb": "WLB-LLM: groups of GPUs of unlike width, 12 rows",
}
ERRORS = (WorkloadError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headway reproduce`: one subcommand a system."""
    systems = parser.add_subparsers(dest="system", metavar="SYSTEM", required=True)
    for name, text in SYSTEMS.items():
        subparser = systems.add_parser(name, help=text)
        subparser.add_argument(
            "--data",
            type=Path,
            default=os.environ.get("HEADWAY_DATA"),
            help="folder of the published cases (HEADWAY_DATA)",
        )
        subparser.add_argument("--json", action="store_true", help="print the rows as JSON")
        _module(name).add_arguments(subparser)


def _module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.reproduce.{name}")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 if every row is within its bound, 1 if not."""
    if args.data is None:
        raise WorkloadError("give --data DIR or set HEADWAY_DATA")
    code: int = _module(args.system).run(args)
    return code


@contextmanager
def as_published(folder: Path) -> Iterator[None]:
    """Raises WorkloadError for files of the folder that cannot be read, or are not as published."""
    try:
        yield
    except OSError as error:
        raise WorkloadError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error
    except (KeyError, ValueError) as error:
        raise WorkloadError(f"{folder}: {error}") from error


def report(
    args: argparse.Namespace,
    rows: Sequence[Any],
    table: Callable[[Sequence[Any]], list[str]],
    fine: Callable[[Any], bool],
    *derived: str,
) -> int:
    """Print a system's rows: as a table, or as JSON with what is `derived` from them. Exit status 1 if one is not fine."""
    if args.json:
        print_json([asdict(row) | {name: getattr(row, name) for name in derived} for row in rows])
    else:
        print("\n".join(table(rows)))
    return 0 if all(map(fine, rows)) else 1
