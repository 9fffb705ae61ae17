"""`python -m benchmarks.compare.scenarios`: the small form of every reference scenario, one after another."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.compare import command as compare
from benchmarks.scenarios import names
from benchmarks.terminal import status_of
from benchmarks.workloads.format import WorkloadError


def main(argv: list[str] | None = None) -> int:
    """Exit status: that of the first comparison that failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare.scenarios", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("reports/scenarios"), metavar="DIR", help="one folder a scenario"
    )
    args, further = parser.parse_known_args(argv)
    comparing = argparse.ArgumentParser(prog=parser.prog)
    compare.add_arguments(comparing)
    for name in names():
        print(f"\n{name}", flush=True)
        words = ["--scenario", name, "--small", "--out", str(args.out / name), *further]
        try:
            code = compare.run(comparing.parse_args(words))
        except WorkloadError as error:
            parser.error(str(error))
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main))
