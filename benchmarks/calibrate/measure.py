"""Measures a real engine at several loads, for `headway calibrate` (docs/calibration.md).

Lengths of prompts and answers are drawn evenly on a logarithmic scale. Answers have the requested length (`ignore_eos`,
`min_tokens`: vLLM and servers that know its fields). The engine's gauges are read from /metrics twice a second where it has
them. Prompts differ between levels, so that no cache is warmed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import aiohttp
import orjson
import uvloop

from backends.metrics import load_report
from benchmarks.calibrate.measured import Level, Measured, State, write_file
from benchmarks.checks import positive_number, positive_numbers, seed
from benchmarks.replay.client import Target, body_of, check_url, key_from, wire_for
from benchmarks.replay.pace import LEAD_S, Pacer
from benchmarks.replay.row import Row
from benchmarks.replay.wire import Wire
from benchmarks.terminal import status_of
from benchmarks.workloads.format import WorkloadError, WorkloadRequest, writing
from benchmarks.workloads.sources.generators import poisson

_SAMPLE_S = 0.5
_WARM_UP = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibrate.measure", description="Measure a real engine at several loads."
    )
    parser.add_argument("--url", required=True, help="any OpenAI-compatible server")
    parser.add_argument("--model", required=True, help="the model to ask for")
    parser.add_argument(
        "--rates", required=True, type=positive_numbers, metavar="R,R..", help="requests a second"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument(
        "--seconds", type=positive_number, default=60.0, help="of arrivals a rate (default 60)"
    )
    parser.add_argument("--prompt-tokens", type=_range, default=(32, 512), metavar="A,B", help="(32,512)")
    parser.add_argument("--output-tokens", type=_range, default=(16, 128), metavar="A,B", help="(16,128)")
    parser.add_argument("--seed", type=seed, default=1)
    parser.add_argument("--timeout", type=positive_number, default=600.0, metavar="S", help="for one answer")
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the key")
    args = parser.parse_args(arguments)
    try:
        check_url(args.url)
        key = key_from(os.environ, args.api_key_env, "--api-key-env")
        target = Target(args.url, args.model, seed=args.seed, timeout_s=args.timeout, api_key=key)
        with writing(args.out):  # before it takes its time
            args.out.mkdir(parents=True, exist_ok=True)
        levels = uvloop.run(_measure(args, target))
        details = {
            "model": args.model,
            "seconds": args.seconds,
            "seed": args.seed,
            "measured_at": time.time(),
        }
        write_file(args.out / "measurement.jsonl", levels, details)
    except WorkloadError as error:
        print(f"measure: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"measure: {error.filename or args.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def _range(text: str) -> tuple[int, int]:
    ends = text.split(",")
    if len(ends) != 2 or not all(each.isdecimal() for each in ends) or not 1 <= int(ends[0]) <= int(ends[1]):
        raise argparse.ArgumentTypeError(f"must be two whole numbers, 1 <= A <= B, not {text!r}")
    return int(ends[0]), int(ends[1])


async def _measure(args: argparse.Namespace, target: Target) -> list[Level]:
    levels = []
    async with wire_for(target) as wire:
        warm = [request(Random(args.seed), f"warm-{index}", 0.0, args) for index in range(_WARM_UP)]
        await _level("warm-up", warm, wire, target)
        for rate in args.rates:
            rng = Random(f"{args.seed} {rate}")
            times = itertools.takewhile(lambda at_s: at_s < args.seconds, poisson(rng, rate))
            requests = [request(rng, f"{rate:g}-{index}", at_s, args) for index, at_s in enumerate(times)]
            level = await _level(f"{rate:g}", requests, wire, target)
            print(f"rate {rate:g}/s: {len(level.requests)} of {len(requests)} answered", file=sys.stderr)
            levels.append(level)
    return levels


def request(rng: Random, name: str, arrival_s: float, args: argparse.Namespace) -> WorkloadRequest:
    """A request whose lengths are drawn evenly on a logarithmic scale."""
    prompt, output = (
        round(math.exp(rng.uniform(math.log(low), math.log(high))))
        for low, high in (args.prompt_tokens, args.output_tokens)
    )
    return WorkloadRequest(name, arrival_s, prompt, max_tokens=output, output_tokens=output)


def exact_body(one: WorkloadRequest, target: Target) -> bytes:
    """The replay's body, with the fields that hold vLLM to the requested length."""
    body = orjson.loads(body_of(one, target))
    return orjson.dumps({**body, "ignore_eos": True, "min_tokens": one.max_tokens})


async def _level(name: str, requests: Sequence[WorkloadRequest], wire: Wire, target: Target) -> Level:
    """Send each at its own time and wait for all. A WorkloadError if nothing was answered in full."""
    rows: list[Row] = []
    start_at = time.perf_counter() + LEAD_S
    async with watched(target, start_at, _SAMPLE_S) as states:
        await Pacer(wire, target, rows.append, body=exact_body).run(requests, start_at)
    return Level(name, _answered(name, rows), tuple(states))


def _answered(name: str, rows: Sequence[Row]) -> tuple[Measured, ...]:
    complete = [row for row in rows if row.complete and row.prompt_tokens]
    if not complete:
        reason = next((row.error for row in rows if row.error), "no prompt_tokens in usage")
        raise WorkloadError(f"level {name}: no answer that can be used ({reason})")
    return tuple(
        Measured(row.scheduled_s, row.prompt_tokens or 1, row.output_tokens, row.ttft_s, row.e2e_s)
        for row in sorted(complete, key=lambda row: row.scheduled_s)
    )


@contextlib.asynccontextmanager
async def watched(target: Target, start_at: float, every_s: float) -> AsyncIterator[list[State]]:
    """The states that an engine reports meanwhile; one without such metrics reports none."""
    states: list[State] = []
    watcher = asyncio.create_task(_watch(target, start_at, every_s, states))
    try:
        yield states
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


async def _watch(target: Target, start_at: float, every_s: float, states: list[State]) -> None:
    async with aiohttp.ClientSession(headers=target.headers, timeout=aiohttp.ClientTimeout(2)) as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{target.base_url}/metrics") as answer:
                    load = load_report(await answer.read() if answer.status == 200 else b"")
                if load.running is not None and load.waiting is not None:
                    at_s = max(0.0, time.perf_counter() - start_at)
                    states.append(State(at_s, load.running, load.waiting, kv_usage=load.kv_usage))
            await asyncio.sleep(every_s)


if __name__ == "__main__":
    sys.exit(status_of(main))
