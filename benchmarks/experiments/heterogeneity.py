"""`headway experiment heterogeneity`: how different hardware, software, SLO classes, models and prices are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np

from benchmarks.checks import add_number
from benchmarks.experiments import charts, hardware, models, prices, software
from benchmarks.experiments.report import Results, Section, Value
from benchmarks.experiments.traffic import (
    alone,
    answered,
    background,
    capacities_per_s,
    kinds_of,
    play,
    unequal_fleet,
)
from benchmarks.terminal import Progress

TITLE = "How unlike LLM instances, requests and prices are"
#: TTFT and TPOT in seconds: the classes of the scenario `one-model-unequal-gpus`.
CLASSES = {"tight": (0.5, 0.04), "normal": (1.5, 0.1), "loose": (5.0, 0.25)}
LOADS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
TARGET = 0.95


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
    yield _slo_classes(args.requests, args.seed)
    progress("models")
    yield from models.sections(data)
    progress("prices")
    yield from prices.sections(args.seed, data)


def _slo_classes(requests: int, seed: int) -> Section:
    """How much of its capacity each kind of instance can use while each class is met, by `requests` at each load."""
    config = unequal_fleet()
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in CLASSES}
    targets = ", ".join(
        f"{name} is TTFT {ttft_s:g} s and TPOT {1000 * tpot_s:g} ms"
        for name, (ttft_s, tpot_s) in CLASSES.items()
    )
    rows: list[dict[str, Value]] = []
    for name in kinds_of(config):
        fleet, able_per_s = alone(config, name), capacities_per_s(seed)[name]
        met: dict[str, list[tuple[float, float]]] = {title: [] for title in panels}
        for load in LOADS:
            columns = play(fleet, background(load * able_per_s, requests, seed), seed).columns
            known = answered(columns)
            for title, (ttft_s, tpot_s) in CLASSES.items():
                # A single token has no TPOT.
                in_time = known & (columns["ttft_s"] <= ttft_s) & ~(np.nan_to_num(columns["tpot_s"]) > tpot_s)
                met[title].append((load, 100 * float(in_time.mean())))
        row: dict[str, Value] = {"instance": name, "capacity (requests/s)": able_per_s}
        for title, points in met.items():
            panels[title][name] = points
            row[f"{title} (requests/s)"] = _most(points, able_per_s)
        rows.append(row)
    return Section(
        "SLO classes: what an instance can do for each",
        [
            f"{requests} requests at each load, a share of the rate at which the instance answers under overload. All requests"
            " of a run are judged by each class in turn; the engine does not know of the classes.",
            f"The classes are those of the scenario one-model-unequal-gpus: {targets}.",
            f"The table has the highest of the tried rates up to which {TARGET:.0%} of the requests are in time; a dash where"
            " none is.",
        ],
        [Results.of(f"Requests/s with {TARGET:.0%} in time", rows)],
        [
            charts.lines(
                "slo_classes",
                "Share of requests in time by class, instance and load",
                "load (share of capacity)",
                "requests in time (%)",
                panels,
                y_range=(0, 104),
            )
        ],
    )


def _most(points: list[tuple[float, float]], able_per_s: float) -> float | None:
    """The highest rate before the first load at which too few are in time."""
    kept = list(takewhile(lambda point: point[1] >= 100 * TARGET, points))
    return kept[-1][0] * able_per_s if kept else None
