"""The options of `headway workload`, and what they say."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from benchmarks.checks import check_options, option, seed, whole_number
from benchmarks.workloads.format import MOST_TOKENS, WorkloadError
from benchmarks.workloads.mixes import RoutingMix, parse_amounts
from benchmarks.workloads.options import BuildOptions
from benchmarks.workloads.restrict import Bounds
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.generators import PROCESSES, Lengths
from benchmarks.workloads.sources.source import Choices
from router.config.fields import Count, NotNegative, Positive, Share
from router.store_arguments import add_store_arguments

_ROUTING = (
    *("slo", "slo_mix", "slo_class", "on_miss", "budget_mix", "budget_tariff"),
    *("min_quality", "quality_mix", "policy"),
)
#: Options of a build as they are typed.
_AS_TYPED = (
    *("seed", "rate_scale", "limit", "arrivals", "cv", "depth"),
    *("turns", "prompts", "lengths", "length_wins"),
)


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="workload_action", required=True, metavar="build|from-store|show")
    build = actions.add_parser(
        "build",
        help="make a workload file from a public set or a generator",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="sets:\n"
        + "\n".join(f"  {name:<24}{source.title}" for name, source in SOURCES.items())
        + "\ngenerators:\n"
        + "\n".join(f"  {name:<24}{what}" for name, what in PROCESSES.items())
        + "\n\nA set is read from --file, else from the folder HEADWAY_DATA, else downloaded.",
    )
    add_options(build)
    recorded = actions.add_parser(
        "from-store", help="make a workload file of the requests that a gateway has recorded"
    )
    add_store_arguments(recorded)
    recorded.add_argument("--limit", type=whole_number, metavar="N", help="only the last N requests")
    for made in (build, recorded):
        made.add_argument(
            "--out", type=Path, required=True, metavar="FILE", help="the workload file to write"
        )
        made.add_argument("--json", action="store_true", help="print the result as JSON")
    show = actions.add_parser("show", help="show the figures of a workload file, as text or as a plot")
    show.add_argument("file", type=Path, help="a workload file")
    show.add_argument("--out", type=Path, metavar="FILE", help="write a plot (.png, .svg or .pdf)")
    show.add_argument("--json", action="store_true", help="print JSON")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What makes a workload: its name and the options of `options`."""
    parser.add_argument("name", help="the set or generator, see below")
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="[SET=]PATH",
        help="a published original file (or folder of them) to read; may be repeated",
    )
    parser.add_argument("--seed", type=seed, default=0, help="everything random follows from it (default 0)")
    parser.add_argument(
        "--mix",
        metavar="SET=SHARE,...",
        help="interleave further workloads at these shares of the requests; the rest is NAME's",
    )
    times = parser.add_argument_group("times")
    times.add_argument("--rate", type=float, metavar="R", help="scale to R requests/s")
    times.add_argument("--rate-scale", type=float, metavar="F", help="scale the rate by F")
    times.add_argument("--start", type=float, default=0.0, metavar="S", help="begin S seconds into the trace")
    times.add_argument("--duration", type=float, metavar="S", help="take S seconds of the trace")
    times.add_argument("--limit", type=int, metavar="N", help="at most N requests")
    times.add_argument("--arrivals", metavar="NAME", help="arrival times of a generator or another set")
    times.add_argument("--cv", type=float, default=4.0, help="gamma: CV of the gaps (default 4)")
    times.add_argument(
        "--period", type=float, default=86400.0, metavar="S", help="daycycle: its length (default 86400)"
    )
    times.add_argument("--depth", type=float, default=0.6, help="daycycle: swing, 0 to 1 (default 0.6)")
    times.add_argument(
        "--turns",
        type=float,
        default=1.0,
        metavar="N",
        help="generators: mean turns of a conversation, whose prompts repeat what went before (default 1: none)",
    )
    lengths = parser.add_argument_group("texts and lengths")
    lengths.add_argument("--prompts", metavar="SET", help="texts of this set")
    lengths.add_argument("--lengths", metavar="SET", help="lengths of this set")
    lengths.add_argument(
        "--length-wins",
        choices=("workload", "prompts"),
        default="workload",
        help="fit texts to the workload's lengths (default), or keep the texts' own lengths",
    )
    for name in ("--min-prompt-tokens", "--max-prompt-tokens", "--min-output-tokens"):
        lengths.add_argument(name, type=int, metavar="N")
    lengths.add_argument(
        "--max-output-tokens",
        type=int,
        metavar="N",
        help="also lowers a word count in the text of a prompt to fit",
    )
    lengths.add_argument(
        "--on-long", choices=("cut", "drop"), default="cut", help="what to do with longer ones (default cut)"
    )
    lengths.add_argument(
        "--max-tokens",
        default="auto",
        metavar="auto|exact|N",
        help="the requests' max_tokens: one round value above all lengths (default), each one's own length, or N",
    )
    lengths.add_argument(
        "--models",
        metavar="OURS=THEIRS[|THEIRS],...",
        help="the models of the set whose answers give our models' lengths and quality; of several the one with the most values",
    )
    lengths.add_argument(
        "--native-lengths", action="store_true", help="tokenizer counts where HEADWAY_DATA has them"
    )
    lengths.add_argument(
        "--quality", action="store_true", help="true quality by model, where the set or HEADWAY_DATA has it"
    )
    lengths.add_argument(
        "--complete", action="store_true", help="only prompts with an answer (and quality) of every model"
    )
    for name, value in asdict(Lengths()).items():
        lengths.add_argument(option(name), type=float, default=value, help=f"generators (default {value:g})")
    routing = parser.add_argument_group("routing parameters of the requests")
    routing.add_argument(
        "--slo", metavar="ttft_ms=..,tpot_ms=..,e2e_ms=..", help="targets (in a mix: of `normal`)"
    )
    routing.add_argument(
        "--slo-mix",
        metavar="CLASS=SHARE,...",
        help="e.g. tight=0.2,normal=0.5,loose=0.2,none=0.1 (x0.5, x1, x3)",
    )
    routing.add_argument(
        "--slo-class",
        action="append",
        default=[],
        metavar="NAME=FACTOR|NAME:ttft_ms=..",
        help="define a class of the mix; may be repeated",
    )
    routing.add_argument("--on-miss", choices=("reject", "best_effort"))
    routing.add_argument(
        "--budget-mix",
        metavar="USD|CLASS=SHARE,...",
        help="e.g. 0.001=0.3,none=0.7, or tight=0.3,none=0.7 (x0.5, x1, x3 of the expected cost)",
    )
    routing.add_argument(
        "--budget-tariff",
        metavar="INPUT,OUTPUT",
        help="USD per million tokens, for the classes of --budget-mix",
    )
    routing.add_argument("--min-quality", type=float, metavar="Q", help="for all requests")
    routing.add_argument("--quality-mix", metavar="Q=SHARE,...", help="floors, e.g. 0.7=0.3,none=0.7")
    routing.add_argument("--policy")


def options(args: argparse.Namespace) -> BuildOptions:
    max_tokens = args.max_tokens
    if max_tokens not in ("auto", "exact"):
        if not max_tokens.isdigit() or int(max_tokens) < 1:
            raise WorkloadError(f"--max-tokens: expected auto, exact or a number, not {max_tokens!r}")
        if int(max_tokens) > MOST_TOKENS:
            raise WorkloadError(f"--max-tokens: must be at most {MOST_TOKENS} (given: {max_tokens})")
        max_tokens = int(max_tokens)
    check_options(
        args,
        WorkloadError,
        limit=Count,
        **dict.fromkeys(
            ("min_prompt_tokens", "max_prompt_tokens", "min_output_tokens", "max_output_tokens"),
            Annotated[Count, Field(le=MOST_TOKENS)],
        ),
        **dict.fromkeys(("rate", "rate_scale", "duration", "cv", "period"), Positive),
        start=NotNegative,
        turns=Annotated[Positive, Field(ge=1)],
        **dict.fromkeys(("prompt_sigma", "output_sigma"), Annotated[NotNegative, Field(le=10)]),
        **dict.fromkeys(("prompt_median", "output_median"), Annotated[Positive, Field(ge=1, le=MOST_TOKENS)]),
        **dict.fromkeys(("min_quality", "depth"), Share),
    )
    if args.rate is not None and args.rate_scale is not None:
        raise WorkloadError("--rate and --rate-scale cannot both be given")
    if args.on_miss and not (args.slo or args.slo_mix):
        raise WorkloadError("--on-miss: needs --slo or --slo-mix")
    if args.slo_class and not args.slo_mix:
        raise WorkloadError("--slo-class: needs --slo-mix")
    if args.budget_tariff and not args.budget_mix:
        raise WorkloadError("--budget-tariff: needs --budget-mix")
    return BuildOptions(
        **_given(args, _AS_TYPED),
        files=_files(args.name, args.file),
        choices=Choices(_models(args.models), args.native_lengths, args.quality, args.complete),
        mix=parse_amounts(args.mix, "--mix") if args.mix else {},
        rate_per_s=args.rate,
        start_s=args.start,
        duration_s=args.duration,
        period_s=args.period,
        generator_lengths=Lengths(**_given(args, asdict(Lengths()))),
        bounds=Bounds(**_given(args, asdict(Bounds()))),
        max_tokens=max_tokens,
        routing=RoutingMix.of(**_given(args, _ROUTING)),
    )


def _given(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names}


def _files(name: str, given: Sequence[str]) -> dict[str, list[Path]]:
    """`--file PATH` belongs to the workload itself, `--file SET=PATH` to that set."""
    files: dict[str, list[Path]] = {}
    for item in given:
        before, equals, after = item.partition("=")
        if equals and before in SOURCES:
            files.setdefault(before, []).append(Path(after))
        elif name in SOURCES:
            files.setdefault(name, []).append(Path(item))
        else:
            raise WorkloadError(f"--file: {name} is a generator and reads no file")
    return files


def _models(given: str | None) -> dict[str, tuple[str, ...]] | None:
    if given is None:
        return None
    models: dict[str, tuple[str, ...]] = {}
    for item in given.split(","):
        ours, equals, theirs = item.partition("=")
        if not ours.strip():
            raise WorkloadError(f"--models: expected OURS=THEIRS[,OURS=THEIRS...], got {given!r}")
        models[ours.strip()] = tuple(name.strip() for name in (theirs if equals else ours).split("|"))
    return models
