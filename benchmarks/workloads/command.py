"""`headway workload build NAME --out FILE` and `headway workload show FILE`."""

from __future__ import annotations

import argparse
import os
import sys

from rich.progress import TimeRemainingColumn

from benchmarks.terminal import print_json, progress_bar
from benchmarks.workloads import arguments, describe, figure
from benchmarks.workloads.build import plan
from benchmarks.workloads.format import WorkloadError, read, read_header, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headway workload`."""
    arguments.add(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, or 2 with one line on stderr for bad input."""
    try:
        return _build(args) if args.workload_action == "build" else _show(args)
    except WorkloadError as error:
        print(f"headway workload: {error}", file=sys.stderr)
        return 2


def _build(args: argparse.Namespace) -> int:
    workload = plan(args.name, arguments.options(args), os.environ)
    header = workload.header
    description = describe.Description()
    with progress_bar(TimeRemainingColumn()) as progress:
        tracked = progress.track(workload, total=header.requests, description="writing")
        write(args.out, header, describe.passing(tracked, description))
    if args.json:
        print_json({"file": str(args.out), "header": header.as_dict(), **description.as_dict()})
    else:
        print(describe.text(header, description))
        print(f"written to {args.out}")
    return 0


def _show(args: argparse.Namespace) -> int:
    header = read_header(args.file)
    with progress_bar(TimeRemainingColumn()) as progress:
        description = describe.describe(
            progress.track(read(args.file), total=header.requests, description="reading"),
        )
    if args.json:
        print_json({"header": header.as_dict(), **description.as_dict()})
    else:
        print(describe.text(header, description))
    if args.out is not None:
        figure.plot(args.out, header, description)
        if not args.json:
            print(f"plot written to {args.out}")
    return 0
