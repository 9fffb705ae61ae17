"""`headway experiment unpredictability`: how far the figures of one and the same request differ, and what explains it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import policies
from benchmarks.checks import add_number, option, whole_number
from benchmarks.experiments import answer_lengths, replays, same_request
from benchmarks.experiments.report import Section
from benchmarks.replay.client import Target, check_url, key_from
from benchmarks.terminal import Progress
from benchmarks.workloads.format import WorkloadError

TITLE = "How unpredictable LLM instances are"
#: What is measured if no option says so: of emulated instances, and of a real engine, where it takes real time.
EMULATED = {"repeats": 40, "requests": 300, "replays": 12}
REAL = {"repeats": 12, "requests": 24, "replays": 4}
_COUNTED = {
    "repeats": "how often the same request is sent in each arm",
    "requests": "requests of a replay; of emulated instances five times as many for equal lengths",
    "replays": "replays in each arm",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What only this experiment takes."""
    parser.add_argument(
        "--policy",
        default="latency",
        choices=policies.POLICIES,
        metavar="NAME",
        help="of the replays (default latency)",
    )
    for name, meaning in _COUNTED.items():
        usual = f"{meaning} (default {EMULATED[name]}, with --url {REAL[name]})"
        parser.add_argument(f"--{name}", type=whole_number, metavar="N", help=usual)
    add_number(parser, "--worlds", 12, "N", "emulated instances that predictors are judged on")
    engine = parser.add_argument_group("a real engine in place of emulated ones")
    engine.add_argument("--url", help="any server with OpenAI's API")
    engine.add_argument("--model", metavar="NAME", help="its model")
    engine.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the key")


def sections(args: argparse.Namespace, data: Path | None, progress: Progress) -> Iterator[Section]:
    """Each section as soon as it is done. Raises WorkloadError."""
    usual = EMULATED if args.url is None else REAL
    repeats, requests, replayed = (getattr(args, name) or usual[name] for name in _COUNTED)
    for name, count in (("repeats", repeats), ("replays", replayed), ("worlds", args.worlds)):
        if count < 2:
            raise WorkloadError(f"--{name}: must be at least 2, since one value has no variance")
    for name in ("model", "api_key_env"):
        if args.url is None and getattr(args, name) is not None:
            raise WorkloadError(f"{option(name)} needs --url")
    if args.url is None:
        from benchmarks.experiments import predicted  # scikit-learn: missed before anything takes its time
    noise = lengths = None
    if data is not None and (data / answer_lengths.SET).is_dir():
        progress("lengths of answers")
        lengths, noise = answer_lengths.section(data)
    if args.url is not None:
        from benchmarks.experiments import real_engine

        yield from real_engine.sections(_target(args), repeats, requests, replayed, args.seed, progress)
    else:
        progress("the same request")
        yield same_request.repeated(repeats, args.seed)
        progress("equal lengths")
        yield same_request.equal_lengths(5 * requests, args.seed, data)
        progress("replays")
        yield replays.section(replayed, requests, args.policy, args.seed, noise)
    if lengths is not None:
        yield lengths
    if args.url is None:
        progress("predictors")
        yield predicted.section(args.worlds, args.seed, data)


def _target(args: argparse.Namespace) -> Target:
    check_url(args.url)
    if args.model is None:
        raise WorkloadError("--url needs --model")
    key = key_from(os.environ, args.api_key_env, "--api-key-env")
    return Target(args.url, model=args.model, api_key=key, seed=args.seed)
