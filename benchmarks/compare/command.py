"""`headway compare --url URL --policies a,b --workload FILE --out DIR`: policies against a live gateway."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.compare.gateway import Gateway
from benchmarks.compare.page import page
from benchmarks.compare.report import lag_warning, report, table
from benchmarks.compare.runs import Run, RunFolder, RunResult, at_rate, plan, settings_of
from benchmarks.measures import mean_rate
from benchmarks.replay import pace
from benchmarks.replay.client import Target
from benchmarks.replay.command import (
    INTERRUPTED,
    ReplayProgress,
    add_target_arguments,
    run_until_interrupted,
    target_from,
)
from benchmarks.replay.row import Row
from benchmarks.replay.summary import LAG_WARNING_S, summarise
from benchmarks.workloads import describe
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, read, read_header

_IDLE_LIMIT_S = 120.0
_REFUSED = (400, 401, 403, 404, 422)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `headway compare`."""
    parser.add_argument("--url", help="a live gateway")
    parser.add_argument("--policies", metavar="A,B,...", help="in this order")
    parser.add_argument("--workload", type=Path, metavar="FILE", help="a workload file")
    parser.add_argument(
        "--rates", metavar="R,R,...", help="requests/s to scale to (default: the workload's own)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="report.json, report.html, runs/")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    parser.add_argument(
        "--warmup", type=int, default=20, metavar="N", help="requests sent first and not counted (default 20)"
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=1.0,
        metavar="S",
        help="pause between runs, before the wait for idleness",
    )
    parser.add_argument(
        "--emulate-lengths",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="tell emulated engines the true output lengths (default)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_target_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, 2 with one line on stderr for bad input, 130 after Ctrl-C (the report then holds the
    finished runs, and the same command goes on)."""
    try:
        comparison = _comparison(args)
        try:
            comparison.out.mkdir(parents=True, exist_ok=True)
            folder = RunFolder(comparison.out / "runs", comparison.settings)
        except OSError as error:
            raise WorkloadError(f"cannot write {comparison.out}: {error.strerror or error}") from error
        results, finished = run_until_interrupted(lambda stop: _run_all(comparison, folder, stop))
        told = _report(comparison, results, finished)
        _write(comparison.out, told)
    except WorkloadError as error:
        print(f"headway compare: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
    else:
        if results:
            print(table(told["runs"]))
        if told["warning"]:
            print(told["warning"])
        print(
            f"{'written' if finished else 'interrupted; what is done is written'} to {comparison.out}/report.html"
        )
    return 0 if finished else INTERRUPTED


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What is to be done, checked."""

    workload: Path
    header: Header
    requests: Sequence[WorkloadRequest]
    target: Target
    runs: Sequence[Run]
    out: Path
    settings: dict[str, Any]
    warmup: int
    settle_s: float
    max_in_flight: int | None


def _comparison(args: argparse.Namespace) -> _Comparison:
    if args.url is None:
        raise WorkloadError("give --url: policies are compared against a live gateway")
    if find_spec("matplotlib") is None:  # told before the runs, not after them
        raise WorkloadError("the report needs matplotlib: pip install 'headway[bench]'")
    for name in ("policies", "workload", "out"):
        if getattr(args, name) is None:
            raise WorkloadError(f"--{name} is needed")
    policies = [name.strip() for name in args.policies.split(",") if name.strip()]
    if not policies or len(set(policies)) != len(policies):
        raise WorkloadError(f"--policies {args.policies}: expected different names, separated by commas")
    rates = _rates(args.rates)
    if args.limit is not None and args.limit < 1:
        raise WorkloadError("--limit: must be at least 1")
    if args.warmup < 0 or args.settle < 0:
        raise WorkloadError("--warmup and --settle: must be at least 0")
    header = read_header(args.workload)
    target = target_from(args, header, os.environ)
    requests = list(read(args.workload))[: args.limit]
    if not requests:
        raise WorkloadError(f"{args.workload}: no requests in it")
    if rates is not None and mean_rate([request.arrival_s for request in requests]) is None:
        raise WorkloadError("--rates needs a workload with at least two different arrival times")
    settings = settings_of(
        args.workload,
        url=target.base_url,
        model=target.model,
        slo=target.slo,
        speed=target.speed,
        limit=args.limit,
        emulate_lengths=target.emulate_lengths,
        max_in_flight=args.max_in_flight,
    )
    return _Comparison(
        args.workload,
        header,
        requests,
        target,
        plan(policies, rates),
        args.out,
        settings,
        args.warmup,
        args.settle,
        args.max_in_flight,
    )


def _rates(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        rates = [float(rate) for rate in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates) or len(set(rates)) != len(rates):
        raise WorkloadError(f"--rates {text}: expected different numbers above 0, separated by commas")
    return rates


async def _run_all(
    comparison: _Comparison, folder: RunFolder, stop: asyncio.Event
) -> tuple[list[RunResult], bool]:
    """Do the runs that are not there yet. Returns all that are, and whether that is all of them."""
    results: list[RunResult] = []
    warm = False
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        gateway = Gateway(session, comparison.target)
        for number, one in enumerate(comparison.runs, start=1):
            kept = folder.load(one)
            if kept is not None:
                results.append(kept)
                continue
            if not warm:
                await gateway.check()
                await _warm_up(comparison, one, stop)
                warm = True
            await _probe(comparison, one)
            if not await gateway.until_idle(settle_s=comparison.settle_s, limit_s=_IDLE_LIMIT_S):
                raise WorkloadError(f"the server is still busy after {_IDLE_LIMIT_S:g} s of waiting")
            what = f"{one.name} ({number} of {len(comparison.runs)})"
            result = await _one_run(comparison, one, folder.salt, what, stop)
            if result is None:
                return results, False
            # Rows are recorded shortly after their answers have ended.
            await asyncio.sleep(comparison.settle_s)
            await gateway.look_up_outcomes(result.rows)
            folder.save(result)
            results.append(result)
            if len(results) < len(comparison.runs):
                _write_json(comparison.out, _report(comparison, results, False))
    return results, len(results) == len(comparison.runs)


async def _one_run(
    comparison: _Comparison, one: Run, salt: str, what: str, stop: asyncio.Event
) -> RunResult | None:
    """One policy at one rate; None if it was interrupted."""
    own_rate = mean_rate([request.arrival_s for request in comparison.requests])
    target = replace(comparison.target, policy=one.policy, salt=f"{salt}/{one.name}")
    rows: list[Row] = []
    started_at = time.time()
    with ReplayProgress(len(comparison.requests), what) as on_progress:
        finished = await pace.replay(
            at_rate(comparison.requests, own_rate, one.rate_per_s),
            target,
            max_in_flight=comparison.max_in_flight,
            on_row=rows.append,
            on_progress=on_progress,
            stop=stop,
        )
    rows.sort(key=lambda row: row.scheduled_s)
    return RunResult(one, started_at, tuple(rows)) if finished else None


async def _warm_up(comparison: _Comparison, one: Run, stop: asyncio.Event) -> None:
    """The first requests, sent under the first policy and forgotten: connections open, estimates settle."""
    own_rate = mean_rate([request.arrival_s for request in comparison.requests])
    first = list(at_rate(comparison.requests[: comparison.warmup], own_rate, one.rate_per_s))
    target = replace(comparison.target, policy=one.policy, salt="warm-up")
    await pace.replay(first, target, max_in_flight=comparison.max_in_flight, on_row=lambda _: None, stop=stop)


async def _probe(comparison: _Comparison, one: Run) -> None:
    """One small request: a policy or model that the server does not know is told at once, in one line."""
    request = WorkloadRequest(id="probe", arrival_s=0.0, prompt_tokens=8, max_tokens=1, output_tokens=1)
    target = replace(comparison.target, policy=one.policy, slo=None)
    rows: list[Row] = []
    await pace.replay([request], target, on_row=rows.append)
    for row in rows:
        if row.status in _REFUSED:
            raise WorkloadError(f"the server refuses policy {one.policy!r}: HTTP {row.status}, {row.error}")


def _report(comparison: _Comparison, results: Sequence[RunResult], finished: bool) -> dict[str, Any]:
    summaries = [summarise(result.rows, comparison.target.speed) for result in results]
    return report(
        results,
        speed=comparison.target.speed,
        complete=finished,
        about={
            "warning": lag_warning(summaries, LAG_WARNING_S),
            "url": comparison.target.base_url,
            "model": comparison.target.model,
            "slo": dict(comparison.target.slo) if comparison.target.slo else None,
            "command": "headway " + shlex.join(sys.argv[1:]),
            "workload": {
                "file": comparison.workload.name,
                "header": comparison.header.as_dict(),
                "described": describe.describe(comparison.requests).as_dict(),
            },
        },
    )


def _write(out: Path, told: dict[str, Any]) -> None:
    _write_json(out, told)
    try:
        (out / "report.html").write_text(page(told), encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"cannot write {out}: {error.strerror or error}") from error


def _write_json(out: Path, told: dict[str, Any]) -> None:
    try:
        (out / "report.json").write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise WorkloadError(f"cannot write {out}: {error.strerror or error}") from error
