"""`python -m benchmarks.fitting --data DIR`: see the package."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.fitting.report import Row, checks, constants


def main(arguments: list[str] | None = None) -> int:
    """Print the report. Returns the exit status: 2 when the data is not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fitting", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HEADWAY_DATA"), help="folder of the tables"
    )
    options = parser.parse_args(arguments)
    if options.data is None:
        print("no data: give --data DIR or set HEADWAY_DATA", file=sys.stderr)
        return 2
    try:
        found, checked = list(constants(options.data)), list(checks(options.data))
    except OSError as error:
        print(f"cannot read {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{'constant':56} {'fitted':>12} {'committed':>12} {'differ':>7}   rows  median  p90 error")
    for row in found:
        print(_line(row))
    print(f"\n{'check of a whole profile':56} {'measured':>12} {'model':>12} {'differ':>7}")
    for row in checked:
        print(_line(row))
    return 0


def _line(row: Row) -> str:
    errors = row.errors
    fit = f"{errors.rows:6d} {errors.median:7.1%} {errors.p90:6.1%}" if errors else ""
    return f"{row.name:56} {row.fitted:12.4g} {row.committed:12.4g} {row.difference:7.1%} {fit}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
