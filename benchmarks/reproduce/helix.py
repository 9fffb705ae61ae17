"""`headway reproduce helix`: every simulation of Helix's artifact evaluation (sections 6.3 to 6.7), ours beside theirs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.checks import positive_number, seed, whole_number
from benchmarks.compare.pool import Executor
from benchmarks.pipelines.published import THROUGHPUT, Published
from benchmarks.pipelines.simulate import FIRST_REQUESTS, SCHEDULERS, Outcome, PlacedModel, max_flow_scheduler
from benchmarks.reproduce.command import as_published, report
from benchmarks.reproduce.helix_placements import CLUSTERS, placement_rows
from benchmarks.reproduce.helix_placements import table as placement_table
from benchmarks.terminal import aligned, shown_progress
from policies.placement.max_flow import max_flow

#: The section of the paper's artifact that a folder of its evaluation belongs to.
SECTIONS = {
    "single_cluster": "6.3",
    "distributed_clusters": "6.4",
    "high_heterogeneity": "6.5",
    "model_placement": "6.6",
    "request_scheduling": "6.7",
}
#: How far a row may be from the published one.
THROUGHPUT_BOUND, TIME_BOUND = 0.02, 0.10
_MODELS = {"LLaMa30B": "llama30b", "LLaMa70B": "llama70b"}
_SCHEDULERS = {"Swarm": "swarm", "Naive": "random", "ShortestQueue": "shortest_queue"}
_MIX = {"A100": 4, "L4": 8, "T4": 12}
_PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure and ours. Where the published one is rounded, ours is rounded alike."""

    section: str
    command: str
    metric: str
    published: float
    ours: float

    @property
    def bound(self) -> float:
        return THROUGHPUT_BOUND if self.metric == THROUGHPUT else TIME_BOUND

    @property
    def deviation(self) -> float:
        return self.ours / self.published - 1

    @property
    def within_bound(self) -> bool:
        return abs(self.deviation) <= self.bound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sections", nargs="+", choices=sorted(SECTIONS.values()), metavar="N", help="only these, e.g. 6.3"
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help="of lengths, arrivals and random choices (0, the published one)"
    )
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--processes", type=whole_number, default=cores, metavar="N", help=f"side by side ({cores})"
    )
    parser.add_argument("--place", action="store_true", help="find placements of our own instead")
    parser.add_argument(
        "--clusters", nargs="+", choices=CLUSTERS, metavar="NAME", help="place on these only, e.g. single24"
    )
    parser.add_argument(
        "--cpu-s",
        type=positive_number,
        default=300.0,
        metavar="S",
        help="CPU seconds to find each placement (300)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints all rows, or our placements. Exit status 1 if a row is out of its bound, or a placement is not better than the
    published one."""
    folder = args.data / "helix"
    with as_published(folder), shown_progress("placing" if args.place else "simulating Helix") as progress:
        if args.place:
            placements = list(
                placement_rows(folder, args.clusters, args.seed, args.processes, args.cpu_s, progress)
            )
        else:
            rows = list(rows_of(folder, args.sections, args.seed, args.processes, progress))
    if args.place:
        return report(args, placements, placement_table, lambda row: row.gain > 0, "gain")
    return report(args, rows, table, lambda row: row.within_bound, "deviation", "within_bound")


def rows_of(
    folder: Path, sections: Sequence[str] | None, seed: int, processes: int, progress: Any
) -> Iterator[Row]:
    """The rows of each command, as it ends."""
    published = _published(folder)
    commands = [run for run in published.runs if sections is None or SECTIONS[run["folder"]] in sections]
    with Executor(processes) as pool:
        parts = [
            [pool.submit(_simulate, folder, part, seed) for part in command["runs"]] for command in commands
        ]
        for command, futures in zip(commands, parts, strict=True):
            key = SECTIONS[command["folder"]], command["command"]
            progress(" ".join(key))
            figures = _figures([future.result() for future in futures])
            for metric, value in published.expected[key].items():
                decimals = len(value.partition(".")[2])
                yield Row(*key, metric, float(value), round(figures[metric], decimals))


@cache
def _published(folder: Path) -> Published:
    return Published(folder)


def _simulate(folder: Path, part: Mapping[str, Any], seed: int) -> Outcome:
    published = _published(folder)
    model = published.models[_MODELS[part.get("model_name", "LLaMa70B")]]
    cluster, placement = published.placed(part["solution_file_name"], model.model.name)
    placed = PlacedModel(placement, cluster, model.model)
    online = part["driver"].endswith("online")
    if part["driver"].startswith("simulate_maxflow"):
        throughput = model.throughput(part.get("machine_num_dict", _MIX))
        scheduler = max_flow_scheduler(max_flow(placement, cluster, model.model, throughput), online=online)
    else:
        scheduler = SCHEDULERS[_SCHEDULERS[part["scheduling_method"]]]
    if online:
        return placed.online(
            scheduler, published.lengths, published.arrivals_per_3_s, part["avg_throughput"], seed
        )
    return placed.offline(scheduler, published.lengths, part.get("initial_feed_num", FIRST_REQUESTS), seed)


def _figures(parts: Sequence[Outcome]) -> dict[str, float]:
    """What a command prints: the sum of its parts' throughput, latencies of all parts together, and stays of the last."""
    figures = {THROUGHPUT: sum(part.decode_tokens_per_s for part in parts)}
    for phase in ("prompt", "decode"):
        latencies = sorted(s for part in parts for s in getattr(part, f"{phase}_latency_s"))
        if latencies:
            for percent in _PERCENTILES:
                figures[f"{phase}_latency_p{percent:02}_s"] = latencies[int(len(latencies) * (percent / 100))]
    for node, stay_s in parts[-1].stay_s.items():
        figures[f"congestion_node_{node}_s"] = stay_s
    return figures


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as text, and how many are within their bound and equal."""
    text = [("section and command", "figure", "published", "ours", "deviation", "")]
    text += [
        (
            f"{row.section} {row.command}",
            row.metric,
            f"{row.published:.6g}",
            f"{row.ours:.6g}",
            f"{row.deviation:+.2%}",
            "" if row.within_bound else f"out of {row.bound:.0%}",
        )
        for row in rows
    ]
    within = sum(row.within_bound for row in rows)
    equal = sum(row.ours == row.published for row in rows)
    return [
        *aligned(text),
        "",
        f"{within} of {len(rows)} rows within their bound, {equal} equal to the last digit",
    ]
