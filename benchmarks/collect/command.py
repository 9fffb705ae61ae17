"""`headway collect`: ask every candidate the same prompts at chosen loads, and keep what happened."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.progress import TimeElapsedColumn

from benchmarks.checks import add_number, check_out, positive_numbers, seed, whole_numbers
from benchmarks.collect.drive import Collection, Level, Settings, collect
from benchmarks.collect.drive import Progress as Standing
from benchmarks.collect.engines import fleet_from, open_engines
from benchmarks.collect.prompts import Question, read_questions
from benchmarks.collect.results import AnswerKey, first_answers, summary, to_dataset
from benchmarks.judging.judge import Judge, Verdicts
from benchmarks.replay.client import check_url, key_from
from benchmarks.replay.command import run_until_interrupted
from benchmarks.terminal import INTERRUPTED, aligned, print_json, progress_bar
from benchmarks.workloads.format import WorkloadError
from predictors.training import dataset
from router.config import FleetConfig
from router.core.types import EndedHow

NOTHING_ANSWERED = 1
ERRORS = (WorkloadError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    whom = parser.add_argument_group("engines: a fleet file, or URLs")
    whom.add_argument(
        "--config", metavar="FLEET", help="all instances of this fleet file; emulated ones are started"
    )
    for name, metavar, meaning in (
        ("--vllm", "URL", "a vLLM or other OpenAI-compatible server"),
        ("--ollama", "URL", "an Ollama server"),
        ("--model", "NAME", "with URLs: a model that they serve"),
    ):
        several = f"{meaning}; may be repeated"
        whom.add_argument(name, action="append", default=[], metavar=metavar, help=several)
    whom.add_argument(
        "--api-key-env", metavar="NAME", help="with URLs: the environment variable with their key"
    )
    what = parser.add_argument_group("prompts")
    what.add_argument(
        "--prompts",
        "--workload",
        dest="prompts",
        type=Path,
        required=True,
        metavar="FILE",
        help='one prompt a line, JSON lines with "prompt", or a workload file',
    )
    add_number(what, "--max-tokens", 512, "N", "maximum tokens of an answer")
    what.add_argument(
        "--emulate-lengths",
        action="store_true",
        help="send the output lengths in the file to an emulated vLLM",
    )
    load = parser.add_argument_group("load at each instance")
    load.add_argument(
        "--rates", type=positive_numbers, default=(), metavar="R,R..", help="Poisson arrivals a second"
    )
    load.add_argument(
        "--concurrency", type=whole_numbers, default=(), metavar="N,N..", help="requests always in flight"
    )
    add_number(load, "--requests", 100, "N", "requests for each level, instance and model")
    add_number(load, "--timeout-s", 120.0, "S", "for one answer")
    add_number(load, "--report-s", 1.0, "S", "seconds between two reads of an engine's load")
    load.add_argument(
        "--seed",
        type=seed,
        default=1,
        help="seed of the order of prompts and of the arrival times (default 1)",
    )
    judged = parser.add_argument_group("judged quality of the answers, for `headway train relevance`")
    judged.add_argument("--judge-url", metavar="URL", help="any OpenAI-compatible server that can judge")
    judged.add_argument("--judge-model", metavar="NAME", help="the judge's model")
    judged.add_argument("--judge-key-env", metavar="NAME", help="the environment variable with its key")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the data set to write; must not be there yet"
    )
    parser.add_argument("--source", default="collected", metavar="NAME", help="the name of the data set")
    parser.add_argument(
        "--no-texts", action="store_true", help="keep only features of the prompts, not their texts"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, 1 if nothing was answered, 130 after Ctrl-C (what had been collected by then is kept)."""
    _check(args)
    judge = _judge(args, os.environ)
    questions, licence = read_questions(args.prompts)
    fleet = fleet_from(args)
    args.out.mkdir(parents=True, exist_ok=True)  # before anything is sent
    levels = (
        *(Level(rate_per_s=each) for each in args.rates),
        *(Level(concurrency=each) for each in args.concurrency),
    )
    started_at_s = time.time()
    collection, verdicts = Collection(), Verdicts[AnswerKey]()
    collection.finished = run_until_interrupted(
        _collect(args, fleet, questions, levels, judge, collection, verdicts)
    )
    about = {
        "licence": licence,
        "collected_at": f"{datetime.fromtimestamp(started_at_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "prompts": args.prompts.name,
        "levels": [level.name for level in levels],
        "finished": collection.finished,
        **{name: getattr(args, name) for name in ("requests", "max_tokens", "timeout_s", "report_s", "seed")},
        **({"judge": {"model": args.judge_model, **verdicts.counts}} if judge is not None else {}),
    }
    data = to_dataset(
        collection, about, source=args.source, keep_texts=not args.no_texts, quality=verdicts.found
    )
    if data.attempts:
        dataset.write(data, args.out)
    _print_summary(args, collection, data, verdicts if judge is not None else None)
    if not collection.finished:
        return INTERRUPTED
    return 0 if any(each.ended_how == EndedHow.OK for each in data.attempts) else NOTHING_ANSWERED


def _check(args: argparse.Namespace) -> None:
    """What argparse cannot know. Raises WorkloadError."""
    if (args.config is None) == (not args.vllm and not args.ollama):
        raise WorkloadError("give the engines either by --config FLEET or by --vllm URL and --ollama URL")
    if args.config is None and not args.model:
        raise WorkloadError("--vllm and --ollama need --model NAME")
    if args.config is not None and (args.model or args.api_key_env):
        raise WorkloadError("--model and --api-key-env need --vllm or --ollama: a fleet file names its own")
    if not args.rates and not args.concurrency:
        raise WorkloadError("no load: give --rates, --concurrency or both")
    if (args.judge_url is None) != (args.judge_model is None):
        raise WorkloadError("--judge-url and --judge-model need each other")
    check_out(args.out, WorkloadError)
    if (args.out / "dataset.json").exists():
        raise WorkloadError(f"--out {args.out}: there is a data set already")


def _judge(args: argparse.Namespace, environment: Mapping[str, str]) -> Judge | None:
    if args.judge_url is None:
        return None
    check_url(args.judge_url, "--judge-url")
    key = key_from(environment, args.judge_key_env, "--judge-key-env")
    return Judge(args.judge_url, args.judge_model, key)


async def _collect(
    args: argparse.Namespace,
    fleet: FleetConfig,
    questions: Sequence[Question],
    levels: Sequence[Level],
    judge: Judge | None,
    collection: Collection,
    verdicts: Verdicts[AnswerKey],
) -> None:
    settings = Settings(
        args.requests, args.max_tokens, args.timeout_s, args.report_s, args.seed, args.emulate_lengths
    )
    with progress_bar("{task.fields[note]}", TimeElapsedColumn()) as bar:
        task = bar.add_task("collecting", total=None, note="")

        def show(line: str) -> None:
            bar.console.print(f"headway collect: {line}", markup=False, highlight=False, soft_wrap=True)

        def update(standing: Standing) -> None:
            note = f"{standing.sent - standing.ended} in flight, {standing.failed} failed"
            bar.update(task, completed=standing.ended, total=standing.planned, note=note)

        def judged(done: int, total: int) -> None:
            bar.update(task, description="judging", completed=done, total=total, note="")

        async with open_engines(fleet, os.environ) as engines:
            await collect(engines, levels, questions, settings, collection, show=show, on_progress=update)
        if judge is not None:
            answers = {
                key: (sent.question.prompt, sent.reply.text)
                for key, (_, sent) in first_answers(collection).items()
            }
            await judge.score(answers, verdicts, judged)


def _print_summary(
    args: argparse.Namespace,
    collection: Collection,
    data: dataset.Dataset,
    verdicts: Verdicts[AnswerKey] | None,
) -> None:
    rows = summary(collection)
    if args.json:
        found = {
            "out": str(args.out) if data.attempts else None,
            "finished": collection.finished,
            **{
                name: len(getattr(data, name))
                for name in ("prompts", "answers", "runs", "attempts", "states")
            },
            "levels": rows,
            "left_out": collection.left_out,
            **({"judge": verdicts.counts} if verdicts is not None else {}),
        }
        print_json(found)
        return
    table = [("instance", "model", "level", "sent", "ok", "failed", "given up", "TTFT s", "E2E s")]
    for row in rows:
        counts = (str(row[name]) for name in ("requests", "ok", "failed", "cancelled"))
        times = (
            "-" if (value := row[name]) is None else f"{value:.3f}" for name in ("ttft_s_p50", "e2e_s_p50")
        )
        table.append((row["instance"], row["model"], row["level"], *counts, *times))
    if rows:
        print("\n".join(aligned(table, left=3)))
    if not collection.finished:
        print("interrupted; what had been collected by then is kept")
    if verdicts is not None:
        print("\n".join(verdicts.lines()))
    if data.attempts:
        print(
            f"{args.out}: {len(data.attempts)} attempts, {len(data.answers)} answers to {len(data.prompts)} prompts"
        )
    else:
        print("nothing was collected", file=sys.stderr)
