"""`headway compare`: policies side by side, in simulation or against a live gateway.

headway compare --workload FILE --fleet FILE --policies all --rates 1,2,4 --seeds 10 --out DIR
headway compare --scenario NAME [--small] --out DIR
headway compare --url URL --workload FILE --policies a,b --out DIR
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import orjson

from benchmarks.compare import arguments, live, simulated
from benchmarks.compare.draws import check_span
from benchmarks.compare.files import write_csvs, write_vllm
from benchmarks.compare.page import page
from benchmarks.compare.pool import ProcessLost
from benchmarks.compare.report import lag_warning, report
from benchmarks.compare.runs import RunFolder
from benchmarks.compare.tables import table
from benchmarks.measures import mean_rate
from benchmarks.replay.command import run_until_interrupted, target_from
from benchmarks.terminal import INTERRUPTED, print_json
from benchmarks.workloads.describe import describe
from benchmarks.workloads.fetch import checksum
from benchmarks.workloads.format import WorkloadError, read, read_header, writing, written_whole

ERRORS = (WorkloadError,)
add_arguments = arguments.add


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, 130 after Ctrl-C or SIGTERM (the report then holds the finished runs, and the same command goes on), 1
    if a process was lost (so too)."""
    arguments.check(args)
    try:
        result, finished = _simulated(args) if args.url is None else _live(args)
    except ProcessLost as error:
        print(f"headway compare: {error}", file=sys.stderr)
        return 1
    if args.json:
        print_json(result)
    else:
        if result["runs"]:
            print(table(result))
        if result.get("warning"):
            print(result["warning"])
        print(
            f"{'written' if finished else 'interrupted; what is done is written'} to {args.out}/report.html"
        )
    return 0 if finished else INTERRUPTED


def _simulated(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    found, finished = simulated.compare(args)
    about = {**found["about"], "command": _command()}
    result = report(found["runs"], about=about, complete=finished, oracles=found["oracles"])
    _write(args.out, result)
    return result, finished


def _live(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    if args.speed is None:
        args.speed = 1.0
    names = arguments.policy_names(args.policies)
    rates = arguments.rates(args.rates)
    header = read_header(args.workload)
    target = target_from(args, header, os.environ)
    requests = list(read(args.workload))[: args.limit]
    if not requests:
        raise WorkloadError(f"{args.workload}: no requests in it")
    own_rate = mean_rate([request.arrival_s for request in requests])
    if rates is not None and own_rate is None:
        raise WorkloadError("--rates: the workload needs at least two different arrival times")
    if rates is not None:
        check_span("--rates", (len(requests) - 1) / min(rates) / target.speed)
    # Rate by rate, so that an interrupted comparison has whole rates.
    runs = [live.Run(policy, rate) for rate in (rates or (None,)) for policy in names]
    comparison = live.LiveComparison(
        requests, own_rate, target, runs, args.warmup, args.settle, args.max_in_flight
    )
    asked = {"url": target.base_url, "model": target.model, "slo": target.slo, "speed": target.speed}
    settings = {
        "workload": checksum(args.workload),
        "limit": args.limit,
        "emulate_lengths": target.emulate_lengths,
        "max_in_flight": args.max_in_flight,
    }
    folder = RunFolder(args.out / "runs", asked | settings)
    about = {
        **asked,
        "workload": {"header": header.as_dict(), "described": describe(requests).as_dict()},
        "command": _command(),
    }

    results: list[dict[str, Any]] = []

    def reported(finished: bool) -> dict[str, Any]:
        return report(results, about=about | {"warning": lag_warning(results)}, complete=finished)

    finished = run_until_interrupted(
        live.run_all(comparison, folder, results, lambda: _write_json(args.out, reported(False)))
    )
    final = reported(finished)
    _write(args.out, final)
    return final, finished


def _command() -> str:
    return "headway " + shlex.join(sys.argv[1:])


def _write(out: Path, result: dict[str, Any]) -> None:
    """report.json, report.html, the CSVs, and each run in the shape of vLLM's benchmark."""
    _write_json(out, result)
    with writing(out):
        (out / "report.html").write_text(page(result), encoding="utf-8")
        write_csvs(out, result)
        write_vllm(out / "vllm", result)


def _write_json(out: Path, result: dict[str, Any]) -> None:
    with writing(out), written_whole(out / "report.json") as part:
        part.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
