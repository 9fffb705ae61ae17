"""`headway replay FILE --url URL`: send a workload at its own times and record what came back."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import uvloop
from rich.progress import TimeRemainingColumn

from benchmarks.checks import check_options
from benchmarks.replay import pace
from benchmarks.replay.client import Target, check_url, key_from
from benchmarks.replay.row import Row
from benchmarks.replay.summary import summarise, text
from benchmarks.terminal import INTERRUPTED, print_json, progress_bar
from benchmarks.workloads.format import Header, WorkloadError, read, read_header, writing
from benchmarks.workloads.mixes import parse_slo
from router.config.fields import Count, Positive

RESULTS_KEY = "headway_results"

ERRORS = (WorkloadError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a workload file")
    parser.add_argument("--url", required=True, help="any OpenAI-compatible server")
    add_target_arguments(parser)
    parser.add_argument("--policy", help="the policy to request (replaces the workload's own)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    parser.add_argument(
        "--emulate-lengths",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="send the true output lengths to an emulated engine",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write one JSON line a request")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that replay and compare share."""
    parser.add_argument("--model", default="auto", help="the model to request (default auto)")
    parser.add_argument(
        "--slo", metavar="ttft_ms=..,tpot_ms=..,e2e_ms=..", help="for requests that have none"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="F", help="compress time, for a fleet emulated at speed F"
    )
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the key")
    parser.add_argument("--max-in-flight", type=int, metavar="N", help="never more than N at once")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="for one answer (default 600)"
    )
    parser.add_argument(
        "--connections",
        choices=("pooled", "new"),
        default="pooled",
        help="reuse connections (default), or open a new one for each request",
    )


def target_from(args: argparse.Namespace, header: Header, environment: Mapping[str, str]) -> Target:
    """The target that the shared options name; a WorkloadError if they are wrong."""
    check_url(args.url)
    check_options(args, WorkloadError, speed=Positive, timeout=Positive, max_in_flight=Count)
    return Target(
        url=args.url,
        model=args.model,
        policy=getattr(args, "policy", None),
        slo=parse_slo(args.slo) if args.slo else None,
        speed=args.speed,
        api_key=key_from(environment, args.api_key_env, "--api-key-env"),
        emulate_lengths=args.emulate_lengths,
        timeout_s=args.timeout,
        new_connections=args.connections == "new",
        seed=header.seed,
    )


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, 1 if no request succeeded (one line on stderr says why), 130 after Ctrl-C."""
    header = read_header(args.file)
    target = target_from(args, header, os.environ)
    check_options(args, WorkloadError, limit=Count)
    rows, finished = _replay(args, target)
    summary = summarise(rows, target.speed)
    if args.json:
        print_json({"finished": finished, **summary})
    else:
        print(text(summary) if finished else "interrupted; what had ended by then:\n" + text(summary))
    if not finished:
        return INTERRUPTED
    if summary["complete"]:
        return 0
    ((reason, count),) = Counter(row.error or row.outcome for row in rows).most_common(1)
    print(
        f"headway replay: none of {len(rows)} requests succeeded; {count} of them: {reason}", file=sys.stderr
    )
    return 1


def _replay(args: argparse.Namespace, target: Target) -> tuple[list[Row], bool]:
    rows: list[Row] = []
    # All of it is read and checked before anything is sent.
    requests = list(itertools.islice(read(args.file), args.limit))
    if not requests:
        raise WorkloadError(f"{args.file}: no requests in it")
    with ExitStack() as stack:
        keep: Callable[[Row], None] = rows.append
        if args.out is not None:
            with writing(args.out):
                args.out.parent.mkdir(parents=True, exist_ok=True)
                out = stack.enter_context(args.out.open("wb"))
            head = {
                RESULTS_KEY: 1,
                "workload": str(args.file),
                "url": target.base_url,
                "model": target.model,
                "policy": target.policy,
                "speed": target.speed,
                "started_at": time.time(),
            }
            out.write(orjson.dumps(head) + b"\n")

            def keep(row: Row) -> None:
                rows.append(row)
                out.write(orjson.dumps(row) + b"\n")
                out.flush()

        on_progress = stack.enter_context(replay_progress(len(requests), "replaying"))
        finished = run_until_interrupted(
            pace.replay(
                requests, target, max_in_flight=args.max_in_flight, on_row=keep, on_progress=on_progress
            )
        )
    return rows, finished


@contextmanager
def replay_progress(total: int | None, what: str) -> Iterator[Callable[[pace.Progress], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    columns = ("{task.fields[in_flight]} in flight, {task.fields[failed]} failed", TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task(what, total=total, in_flight=0, failed=0)

        def update(progress: pace.Progress) -> None:
            failed = progress.ended - progress.complete
            bar.update(task, completed=progress.ended, in_flight=progress.in_flight, failed=failed)

        yield (lambda _: None) if bar.disable else update


def run_until_interrupted(work: Coroutine[Any, Any, None]) -> bool:
    """Do the work on an event loop of its own. Whether it came to its end: Ctrl-C or SIGTERM cancels it."""

    async def supervised() -> bool:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())
        try:
            await asyncio.wait([task])
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        if task.cancelled():
            return False
        task.result()  # raises what the work raised
        return True

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(supervised())
