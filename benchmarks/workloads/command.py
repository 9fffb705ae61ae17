"""`headway workload build NAME --out FILE`, `from-store --config FLEET --out FILE` and `show FILE`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from rich.progress import TimeRemainingColumn

from benchmarks.terminal import print_json, progress_bar
from benchmarks.workloads import arguments, describe
from benchmarks.workloads.build import plan
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, read, read_header, write
from benchmarks.workloads.records import recorded_requests
from router.config import load
from router.store.database import StoreError
from router.store_arguments import store_of

ERRORS = (WorkloadError, StoreError)
add_arguments = arguments.add


def run(args: argparse.Namespace) -> int:
    return {"build": _build, "from-store": _from_store, "show": _show}[args.workload_action](args)


def _build(args: argparse.Namespace) -> int:
    header, stream = plan(args.name, arguments.options(args), os.environ)
    return _write(args, header, stream())


def _from_store(args: argparse.Namespace) -> int:
    config = None if args.config is None else load(args.config)
    return _write(args, *recorded_requests(store_of(args), config, args.limit))


def _write(args: argparse.Namespace, header: Header, requests: Iterable[WorkloadRequest]) -> int:
    description = describe.Description()
    with progress_bar(TimeRemainingColumn()) as progress:
        tracked = progress.track(requests, total=header.requests, description="writing")
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
            progress.track(read(args.file), total=header.requests, description="reading")
        )
    if args.json:
        print_json({"header": header.as_dict(), **description.as_dict()})
    else:
        print(describe.text(header, description))
    if args.out is not None:
        describe.plot(args.out, header, description)
        if not args.json:
            print(f"plot written to {args.out}")
    return 0
