"""`headway train`: a predictor from data, with its figures on what was held out.

headway train length --data DIR [--sets A,B] --out ARTIFACTS
headway train latency --from-store headway.db --config FLEET [--data emulated] --out ARTIFACTS
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from benchmarks.checks import check_options, check_out, option
from benchmarks.datasets.emulated import SOURCE as EMULATED
from benchmarks.datasets.groups import join_and_group
from benchmarks.evaluate.arguments import add_data, add_output, check_data_options, read_data
from benchmarks.evaluate.figures import evaluator
from benchmarks.evaluate.report import Evaluated, text
from benchmarks.terminal import print_json, shown_progress
from benchmarks.training.replay import replayed
from benchmarks.training.train import train_and_evaluate, trainer
from predictors.learned.artifact import ArtifactError
from predictors.learned.models import KINDS, ArtifactKind
from predictors.training.dataset import Dataset, DatasetError
from router.config.fields import Count, Positive, Share

_PER_STRATUM, _BASE_SHARE = 2000, 0.5
ERRORS = (DatasetError, ArtifactError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=sorted(KINDS), help="what to train")
    add_data(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the artifact goes")
    parser.add_argument(
        "--held-out", type=float, default=0.2, metavar="SHARE", help="held out for the figures (0.2)"
    )
    parser.add_argument(
        "--final",
        action="store_true",
        help="after the figures train once more on everything, the held-out part included",
    )
    group = parser.add_argument_group(
        "training again from a gateway's records (latency and memory: from a sample of them)"
    )
    group.add_argument("--from-store", metavar="DB", help="the gateway's database: a file or URL")
    group.add_argument(
        "--per-stratum",
        type=int,
        metavar="N",
        help="the sample: at most N attempts, the newest, of each of 4 x 5 classes of queue and memory use (2000)",
    )
    group.add_argument(
        "--base-share",
        type=float,
        metavar="SHARE",
        help="the share of the runs in --data that is added to the records (0.5)",
    )
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0. Raises ERRORS for data that cannot be read or learned from."""
    kind = KINDS[args.kind]
    trainer(kind), evaluator(kind)  # a package that is missing is an error before anything is read
    _check(args, kind)
    args.out.mkdir(parents=True, exist_ok=True)
    with shown_progress(f"training {kind.name}") as progress:
        data, prepare = read_and_prepare(args, kind)
        made = train_and_evaluate(
            kind,
            data,
            args.out,
            seed=args.seed,
            held_out=args.held_out,
            final=args.final,
            prepare=prepare,
            progress=progress,
        )
    if args.json:
        print_json(made.as_dict())
    else:
        _show(made, final=args.final)
    return 0


def _check(args: argparse.Namespace, kind: ArtifactKind) -> None:
    check_out(args.out, DatasetError)
    check_options(
        args, DatasetError, held_out=Annotated[Positive, Field(lt=1)], base_share=Share, per_stratum=Count
    )
    for name in ("per_stratum", "base_share"):
        if getattr(args, name) is not None and (args.from_store is None or kind.of_prompts):
            raise DatasetError(
                f"{option(name)}: needs --from-store, and a predictor that learns from times, not from prompts"
            )
    if args.base_share is not None and not args.data:
        raise DatasetError("--base-share: needs --data")
    if kind.of_prompts and args.from_store is None and set(args.data) == {EMULATED}:
        raise DatasetError(f"--data {EMULATED}: has no prompts, from which a {kind.name} predictor learns")
    check_data_options(args, [*args.data, *([] if args.from_store is None else [args.from_store])])


def read_and_prepare(
    args: argparse.Namespace, kind: ArtifactKind
) -> tuple[Dataset, Callable[[Dataset], Dataset]]:
    """What is named as data, and what makes of a part of it what is trained on: of a log a sample."""
    if args.from_store is None:
        return read_data(args.data, args), lambda part: part
    log = read_data([args.from_store], args)
    base = read_data(args.data, args) if args.data else Dataset()
    if kind.of_prompts:
        return join_and_group([base, log]), lambda part: part
    runs = {run.id for run in log.runs}

    def sample(part: Dataset) -> Dataset:
        return replayed(
            part.keep(prompt=lambda _: False, run=lambda run: run.id in runs),
            part.keep(run=lambda run: run.id not in runs),
            base_share=_BASE_SHARE if args.base_share is None else args.base_share,
            per_stratum=args.per_stratum or _PER_STRATUM,
            seed=args.seed,
        )

    return join_and_group([base, log]), sample


def _show(made: Evaluated, *, final: bool) -> None:
    print(text(made, made.found.headline()))
    if final:
        print("The figures are of the held-out part; then it was trained once more on everything.")
    print(f"{made.path} ({made.path.stat().st_size / 1000:,.0f} kB)")
