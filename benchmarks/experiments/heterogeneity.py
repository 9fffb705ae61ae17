"""`headway experiment heterogeneity`: how different hardware, software, SLO classes, models and prices are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.checks import add_number
from benchmarks.experiments import hardware, models, prices, slo_classes, software
from benchmarks.experiments.report import Section
from benchmarks.terminal import Progress

TITLE = "How unlike LLM instances, requests and prices are"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What only this experiment takes."""
    add_number(parser, "--requests", 300, "N", "requests of each simulated run")


def sections(args: argparse.Namespace, data: Path | None, progress: Progress) -> Iterator[Section]:
    """Each section as soon as it is done. Raises WorkloadError."""
    progress("hardware")
    yield from hardware.sections(data)
    progress("software")
    yield from software.sections(args.requests, args.seed, data)
    progress("SLO classes")
    yield slo_classes.section(args.requests, args.seed)
    progress("models")
    yield from models.sections(data)
    progress("prices")
    yield from prices.sections(args.seed, data)
