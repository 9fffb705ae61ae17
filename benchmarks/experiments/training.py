"""`headway experiment training`: what the predictors learn, from what, and what each part is worth in goodput."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.checks import add_number
from benchmarks.datasets.engine_logs import ENGINE_LOGS
from benchmarks.datasets.public import present
from benchmarks.experiments import goodput
from benchmarks.experiments.goodput import Case
from benchmarks.experiments.predictor_parts import Parts
from benchmarks.experiments.report import Section
from benchmarks.terminal import Progress
from benchmarks.workloads.format import WorkloadError

# Both import torch, which takes seconds; the help of `headway experiment` does without.
if TYPE_CHECKING:
    from benchmarks.experiments.latency_training import LatencyTraining
    from benchmarks.experiments.length_training import LengthTraining

TITLE = "What predictors learn, and what it is worth"
SERVES = "what serves"
_UNEQUAL, _MIXED = "one-model-unequal-gpus", "mixed-fleet"
#: Where a few requests in a hundred are late: with less load nothing is worth anything.
_UNEQUAL_PER_S, _MIXED_PER_S, _ZEROEVAL_PER_S = 45.0, 60.0, 60.0
LATENCY_CASES = (
    Case("unequal GPUs, unlike their profiles", _UNEQUAL, _UNEQUAL_PER_S, "unlike"),
    Case("unequal GPUs, no profiles", _UNEQUAL, _UNEQUAL_PER_S, "none"),
    Case("mixed fleet, unlike their profiles", _MIXED, _MIXED_PER_S, "unlike"),
)
LENGTH_CASES = (
    Case("unequal GPUs, E2E targets", _UNEQUAL, _UNEQUAL_PER_S, e2e=True),
    Case("mixed fleet, E2E targets", _MIXED, _MIXED_PER_S, e2e=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What only this experiment takes."""
    add_number(parser, "--worlds", 16, "N", "emulated worlds that are fitted to, and that are judged on")
    add_number(parser, "--draws", 4, "N", "of the traffic, for goodput")
    add_number(parser, "--requests", 500, "N", "of each draw")


def sections(args: argparse.Namespace, data: Path | None, progress: Progress) -> Iterator[Section]:
    """Each section as soon as it is done. Raises WorkloadError."""
    from benchmarks.experiments.latency_training import LatencyTraining
    from benchmarks.experiments.length_training import SETS, LengthTraining

    if args.draws < 2:
        raise WorkloadError("--draws: must be at least 2, since one value has no interval")
    progress("latency: fitting to emulated instances")
    latency = LatencyTraining(args.worlds, args.seed)
    for each in (latency.families, latency.features, latency.curve, latency.transfer):
        progress(f"latency: {each.__name__}")
        yield each()
    if data is not None and (logs := present(data, ENGINE_LOGS)):
        progress("latency: published logs")
        yield latency.logs(data, logs)
    lengths = None
    if data is not None and present(data, SETS):
        lengths = LengthTraining(data, args.seed, progress)
        yield lengths.families()
        yield lengths.parts()
    progress("goodput: parts")
    yield _parts(latency, args)
    progress("goodput: training data")
    yield _data(latency, args)
    progress("goodput: lengths")
    yield _lengths(lengths, data, args)


def _parts(latency: LatencyTraining, args: argparse.Namespace) -> Section:
    from benchmarks.experiments.latency_training import ALL, LSTM, TREES

    predictors = {
        SERVES: Parts(),
        "physical estimate, not corrected online": Parts(None, corrected=False),
        "physical estimate": Parts(None),
        "LSTM alone": Parts(weighed=False),
        "not calibrated": Parts(calibrated=False),
        "LSTM fitted here": Parts(latency.fits[LSTM, ALL]),
        "trees fitted here": Parts(latency.fits[TREES, ALL]),
    }
    text = [
        _traffic(args),
        f"“{SERVES}” is the shipped LSTM, weighed against the physical estimate and calibrated online. The other rows leave parts"
        " of it out, or put another latency model in its place: the LSTM and boosted trees fitted to the emulated instances"
        " above, with the same weights and calibration.",
        "Where the fleet file names profiles, a decision takes TPOT from the physical estimate alone.",
    ]
    found = goodput.play(LATENCY_CASES, predictors, args.draws, args.requests, args.seed)
    return goodput.section("Goodput: parts of the latency predictor", "goodput_parts", text, found, SERVES)


def _data(latency: LatencyTraining, args: argparse.Namespace) -> Section:
    from benchmarks.experiments.latency_training import ALL, LSTM

    baseline = "LSTM fitted to all"
    predictors = {baseline: Parts(latency.fits[LSTM, ALL])}
    for (predictor, to), fitted in latency.fits.items():
        if predictor == LSTM and to != ALL:
            predictors[f"LSTM {to}" if to.startswith("without") else f"LSTM fitted to {to}"] = Parts(fitted)
    text = [
        _traffic(args),
        "The LSTMs of the sections above in place of the shipped one: fitted to one family, to few requests, or without groups of"
        " features. The fleet serves a Llama model on unequal GPUs that are unlike their profiles.",
    ]
    found = goodput.play(LATENCY_CASES[:1], predictors, args.draws, args.requests, args.seed)
    return goodput.section("Goodput: features and training data", "goodput_data", text, found, baseline)


def _lengths(lengths: LengthTraining | None, data: Path | None, args: argparse.Namespace) -> Section:
    baseline = "running histogram"
    predictors = {
        baseline: Parts(),
        "nothing known": Parts(lengths="prior"),
        "mean of the model's answers": Parts(lengths="mean"),
        "true length": Parts(lengths="true"),
    }
    text = [
        _traffic(args),
        "What is known of an answer's length before it comes. Generated requests have no text, so the length model has nothing to"
        " read there, and the running histogram serves. E2E targets are those of TTFT and of 100 tokens together.",
    ]
    found = dict(goodput.play(LENGTH_CASES, predictors, args.draws, args.requests, args.seed))
    if lengths is not None and data is not None and "zeroeval" in lengths.sets:
        texts = lengths.unseen_texts(data)
        cases = [
            Case(
                f"ZeroEval{', E2E targets' if e2e else ''}", _MIXED, _ZEROEVAL_PER_S, "fit", e2e, data, texts
            )
            for e2e in (False, True)
        ]
        predictors |= {
            "length model, fitted to other prompts": Parts(lengths=lengths.artifact.arrays),
            "shipped length model (it has seen most of them)": Parts(lengths="shipped"),
        }
        found |= goodput.play(cases, predictors, args.draws, args.requests, args.seed)
        text.append(
            "ZeroEval's questions come with their texts, the true lengths of four models' answers and the arrivals of the Azure"
            " trace. Only questions of which no near copy was fitted to are played. The draws share the arrivals, so their"
            " intervals are of questions and SLOs only."
        )
    return goodput.section("Goodput: lengths of answers", "goodput_lengths", text, found, baseline)


def _traffic(args: argparse.Namespace) -> str:
    return (
        f"{args.draws} draws of {args.requests:,} requests. All predictors of a draw meet the same requests and engines, and"
        " differences are taken draw by draw."
    )
