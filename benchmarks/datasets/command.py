"""`headway dataset release --out DIR`: training rows of all sources that may be passed on, with a card."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from benchmarks.checks import check_options, check_out, seed
from benchmarks.datasets.release import release
from benchmarks.terminal import aligned, print_json, shown_progress
from predictors.training.dataset import DatasetError
from router.config.fields import Positive

_COUNTED = ("prompts", "answers", "attempts")
ERRORS = (DatasetError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="dataset_action", required=True, metavar="release")
    released = actions.add_parser("release", help="write training rows that may be passed on, with a card")
    released.add_argument(
        "paths",
        nargs="*",
        metavar="DATA",
        help="data sets, folders of published sets, conversations, databases (default: the folder HEADWAY_DATA)",
    )
    released.add_argument("--out", type=Path, required=True, metavar="DIR", help="an empty or new folder")
    released.add_argument(
        "--non-commercial", action="store_true", help="add sources that allow non-commercial use only"
    )
    released.add_argument(
        "--held-out", type=float, default=0.2, metavar="SHARE", help="share that is held out (0.2)"
    )
    released.add_argument("--seed", type=seed, default=0, help="seed of the split (default 0)")
    released.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    check_out(args.out, DatasetError)
    check_options(args, DatasetError, held_out=Annotated[Positive, Field(lt=1)])
    folder = os.environ.get("HEADWAY_DATA")
    paths = args.paths or ([folder] if folder else [])
    if not paths:
        raise DatasetError("no data: name data sets, or set HEADWAY_DATA")
    with shown_progress("reading and splitting"):
        released = release(
            paths, args.out, non_commercial=args.non_commercial, held_out=args.held_out, seed=args.seed
        )
    rows = released.rows()
    if args.json:
        print_json({"out": str(args.out), "rows": rows, "left_out": released.left_out})
        return 0
    table = [("source", "part", *_COUNTED)]
    table += [
        (row["name"], part, *(str(row.get(name, 0)) for name in _COUNTED))
        for part, found in rows.items()
        for row in found
    ]
    print("\n".join(aligned(table)))
    for name, why in released.left_out.items():
        print(f"left out: {name}: {why}")
    print(f"written to {args.out}; its card is {args.out / 'README.md'}")
    return 0
