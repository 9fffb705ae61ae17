"""`headway judge`: a judge model scores answers, or compares them in pairs."""

from __future__ import annotations

import argparse
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.checks import names, whole_number
from benchmarks.evaluate.figures import Evaluation, Figure
from benchmarks.judging.answers import Answered, pairs, read_answers
from benchmarks.judging.judge import Judge, Verdicts
from benchmarks.replay.client import check_url, key_from
from benchmarks.replay.command import run_until_interrupted
from benchmarks.terminal import INTERRUPTED, aligned, print_json, progress_bar
from benchmarks.workloads.format import WorkloadError, writing

NOTHING_JUDGED = 1
ERRORS = (WorkloadError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, help="any OpenAI-compatible server that can judge")
    parser.add_argument("--model", required=True, metavar="NAME", help="the judge's model")
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable with its key")
    parser.add_argument(
        "--answers",
        type=Path,
        required=True,
        metavar="PATH",
        help='JSON lines with "prompt" and "answer" ("model" and "quality" if known), or a folder of a published set',
    )
    parser.add_argument(
        "--models",
        type=names,
        default=(),
        metavar="A,B,...",
        help="only the answers of these models (default: all)",
    )
    parser.add_argument("--limit", type=whole_number, metavar="N", help="only the first N prompts")
    parser.add_argument(
        "--pairwise", action="store_true", help="compare every two answers to a prompt, in both orders"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the verdicts as JSON lines")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Exit status: 0, 1 if the judge gave no verdict that can be read or none for many answers in a row, 130 after Ctrl-C (the
    verdicts so far are kept). Without a verdict a file that was there stays."""
    from benchmarks.judging.agreement import pair_agreement, score_agreement  # SciPy: missed before any call

    check_url(args.url)
    judge = Judge(args.url, args.model, key_from(os.environ, args.api_key_env, "--api-key-env"))
    answers = read_answers(args.answers, args.models, args.limit)
    if args.pairwise and not pairs(answers):
        raise WorkloadError(f"{args.answers}: no prompt has two answers")
    if args.out is not None:  # before any call is paid for
        if args.out.resolve() == args.answers.resolve():
            raise WorkloadError(f"--out {args.out}: this is the file of --answers; give another file")
        with writing(args.out), args.out.open("ab"):
            pass
    verdicts: Verdicts[Any] = Verdicts()
    finished = run_until_interrupted(_judge(judge, answers, verdicts, args.pairwise))
    if args.pairwise:
        figures = pair_agreement(pairs(answers), verdicts.found)
    else:
        figures = score_agreement(answers, verdicts.found)
    if args.out is not None and verdicts.found:
        _write(args.out, verdicts.found, args.pairwise)
    _print(args, _means(verdicts.found, args.pairwise), verdicts, figures)
    if not finished:
        return INTERRUPTED
    return 0 if verdicts.found and not verdicts.unasked else NOTHING_JUDGED


async def _judge(judge: Judge, answers: Sequence[Answered], verdicts: Verdicts[Any], pairwise: bool) -> None:
    """Ask about all."""
    with progress_bar() as bar:
        task = bar.add_task("judging", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if pairwise:
            compared = {
                key: (first.prompt, first.answer, second.answer)
                for key, (first, second) in pairs(answers).items()
            }
            await judge.compare(compared, verdicts, show)
        else:
            scored = {each.key: (each.prompt, each.answer) for each in answers}
            await judge.score(scored, verdicts, show)


def _means(found: Mapping[Any, float], pairwise: bool) -> dict[str, tuple[float, int]]:
    """By model: its mean quality, or the share of its pairs that it wins (a tie is one half), and of how many."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for (_, *models), value in found.items():
        values[models[0]].append(value)
        if pairwise:
            values[models[1]].append(1.0 - value)
    return {model: (sum(each) / len(each), len(each)) for model, each in sorted(values.items())}


def _write(path: Path, found: Mapping[Any, float], pairwise: bool) -> None:
    with path.open("wb") as file:
        for (prompt, *models), value in found.items():
            row: dict[str, Any] = {"prompt_id": prompt}
            row |= (
                {"models": models, "preference": value}
                if pairwise
                else {"model": models[0], "quality": value}
            )
            file.write(orjson.dumps(row) + b"\n")


def _print(
    args: argparse.Namespace,
    means: Mapping[str, tuple[float, int]],
    verdicts: Verdicts[Any],
    figures: Sequence[Figure],
) -> None:
    what = "wins" if args.pairwise else "quality"
    if args.json:
        shown = {
            **verdicts.counts,
            "reasons": dict(verdicts.reasons),
            "error": verdicts.error or None,
            "models": {model: {what: mean, "verdicts": count} for model, (mean, count) in means.items()},
            "agreement": Evaluation("judge", tuple(figures)).as_dict()["figures"],
        }
        print_json(shown)
        return
    print("\n".join(verdicts.lines()))
    if means:
        rows = [("model", what, "verdicts")]
        rows += [(model or "-", f"{mean:.3f}", str(count)) for model, (mean, count) in means.items()]
        print("\n".join(aligned(rows)))
    for each in figures:
        if not math.isnan(each.value):  # a correlation with a constant
            print(
                f"{each.name}, with stored grades: {each.value:.3f} [{each.low:.3f}, {each.high:.3f}] of {each.rows}"
            )
    if args.out is not None and verdicts.found:
        print(f"{args.out}: {len(verdicts.found)} verdicts")
