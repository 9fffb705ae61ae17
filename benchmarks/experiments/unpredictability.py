"""`headway experiment unpredictability`: how far the figures of one and the same request differ, and what explains it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import policies
from benchmarks.checks import add_number
from benchmarks.experiments import answer_lengths, equal_lengths, replays, same_request
from benchmarks.experiments.report import Section
from benchmarks.replay.client import Target, check_url, key_from
from benchmarks.terminal import Progress
from benchmarks.workloads.format import WorkloadError

TITLE = "How unpredictable LLM instances are"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What only this experiment takes."""
    parser.add_argument(
        "--policy",
        default="latency",
        choices=policies.POLICIES,
        metavar="NAME",
        help="of the replays (default latency)",
    )
    add_number(parser, "--repeats", 40, "N", "how often the same request is sent in each arm")
    add_number(parser, "--requests", 300, "N", "requests of a replay; five times as many for equal lengths")
    add_number(parser, "--replays", 12, "N", "replays in each arm")
    add_number(parser, "--worlds", 12, "N", "emulated instances that predictors are judged on")
    engine = parser.add_argument_group("a real engine in place of emulated ones")
    engine.add_argument("--url", help="any server with OpenAI's API")
    engine.add_argument("--model", metavar="NAME", help="its model")
    engine.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the key")


def sections(args: argparse.Namespace, data: Path | None, progress: Progress) -> Iterator[Section]:
    """Each section as soon as it is done. Raises WorkloadError."""
    for name in ("repeats", "replays", "worlds"):
        if getattr(args, name) < 2:
            raise WorkloadError(f"--{name}: must be at least 2, since one value has no variance")
    noise = lengths = None
    if data is not None and (data / answer_lengths.SET).is_dir():
        progress("lengths of answers")
        lengths, noise = answer_lengths.section(data)
    if args.url is not None:
        from benchmarks.experiments import real_engine

        progress(args.url)
        yield from real_engine.sections(_target(args), args.repeats, args.requests, args.replays, args.seed)
    else:
        progress("the same request")
        yield same_request.section(args.repeats, args.seed)
        progress("equal lengths")
        yield equal_lengths.section(5 * args.requests, args.seed, data)
        progress("replays")
        yield replays.section(args.replays, args.requests, args.policy, args.seed, noise)
    if lengths is not None:
        yield lengths
    if args.url is None:
        from benchmarks.experiments import predicted

        progress("predictors")
        yield predicted.section(args.worlds, args.seed, data)


def _target(args: argparse.Namespace) -> Target:
    check_url(args.url)
    if args.model is None:
        raise WorkloadError("--url needs --model")
    key = key_from(os.environ, args.api_key_env, "--api-key-env")
    return Target(args.url, model=args.model, api_key=key, seed=args.seed)
