"""The options of `headway train` and `headway evaluate` that name data, and their reading."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.checks import check_options, names, option, seed
from benchmarks.datasets.sources import is_database, load
from predictors.training.dataset import Dataset, DatasetError
from router.config import load as load_fleet
from router.config.fields import Positive

_DAY_S = 86_400.0


def add_data(parser: argparse.ArgumentParser) -> None:
    """--data, --sets, --config, --since."""
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="DATA",
        help="a data set's folder, a folder of public sets, a gateway's database (file or URL), or the word"
        " `emulated`; may be given several times (default: HEADWAY_DATA where --sets is given)",
    )
    parser.add_argument(
        "--sets", type=names, metavar="A,B,...", help="only these of the public sets (default: all there)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FLEET",
        help="the fleet file of a database: it knows engines and profiles",
    )
    parser.add_argument(
        "--since", type=float, metavar="DAYS", help="of a database only the last so many days"
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """--seed, --json."""
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="seed of all random draws (1)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def check_data_options(args: argparse.Namespace, places: Sequence[str]) -> None:
    """Raises DatasetError for an option that is out of range or applies to nothing that is read."""
    check_options(args, DatasetError, since=Positive)
    for name in ("since", "config"):
        if getattr(args, name) is not None and not any(map(is_database, places)):
            raise DatasetError(f"{option(name)}: needs a gateway's database to read")
    if args.sets and places and not any(_of_public_sets(Path(place)) for place in places):
        raise DatasetError("--sets: needs a folder of public sets")


def read_data(places: Sequence[str], args: argparse.Namespace) -> Dataset:
    """All that `places` name, as one data set. Raises DatasetError for what is no data, or where nothing is
    named."""
    if not places and args.sets and (folder := os.environ.get("HEADWAY_DATA")):
        places = [folder]
    if not places:
        raise DatasetError("nothing to read: give --data, or --sets with HEADWAY_DATA")
    since = None if args.since is None else time.time() - args.since * _DAY_S
    fleet = None if args.config is None else load_fleet(args.config)
    return load(places, since=since, fleet=fleet, seed=args.seed, sets=args.sets)


def _of_public_sets(folder: Path) -> bool:
    return folder.is_dir() and not (folder / "dataset.json").is_file()
