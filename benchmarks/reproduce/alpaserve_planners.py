"""What planners attain on the requests of a case: the published placement, AlpaServe with its options, random and
exhaustive search, and Headway's planner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from statistics import fmean

from benchmarks.reproduce.alpaserve_cases import Case
from benchmarks.reproduce.alpaserve_workload import DEFAULT, workload
from policies.placement.alpaserve import alpaserve
from policies.placement.attainment_bound import most_servable
from policies.placement.evolution import evolve
from policies.placement.exhaustive import exhaustive
from policies.placement.local_search import local_search
from policies.placement.memory import Fit
from policies.placement.outcomes import Evaluator
from policies.placement.random_search import random_search
from policies.placement.split_by_size import split_by_size
from policies.placement.types import Placement

_HELD_OUT = 1_000_000  # added to a seed
_EXHAUSTIVE = 20_000  # placements


@dataclass(frozen=True, slots=True)
class Attained:
    """Attainment in simulation, means over draws. `random`: as many placements as `headway` looked at (`evaluations`,
    in `seconds`). None: there are too many placements for `exhaustive`, models are of one size for `split`, not asked
    for (`evolved`). `bound`: what memory allows at best."""

    alpaserve: float
    beam: float
    split: float | None
    evolved: float | None
    headway: float
    random: float
    exhaustive: float | None
    bound: float
    evaluations: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw of requests. `unseen`: other requests of the same kind."""

    attained: Attained
    plan: Placement
    seen: Evaluator
    unseen: Evaluator


@dataclass(frozen=True, slots=True)
class Against:
    """A published placement beside Headway's plans. `gap`: Headway's attainment less its own, the least of all draws.
    `held_out`: on requests that no planner saw, its own and Headway's."""

    published: float
    gap: float
    held_out: tuple[float, float]
    attained: Attained


def draws(case: Case, data: Path, count: int, requests: int, evolved: bool) -> list[Draw]:
    """The planners' results for the requests of a case."""
    return [_draw(case, data, seed, requests, evolved) for seed in range(count)]


def against(published: Placement, drawn: Sequence[Draw]) -> Against:
    """Headway's plans beside a published placement, on the same requests."""
    seen = [draw.seen(published).attainment for draw in drawn]
    gaps = [draw.attained.headway - own for draw, own in zip(drawn, seen, strict=True)]
    unseen = [draw.unseen(published).attainment for draw in drawn]
    ours = [draw.unseen(draw.plan).attainment for draw in drawn]
    return Against(
        fmean(seen), min(gaps), (fmean(unseen), fmean(ours)), _mean([draw.attained for draw in drawn])
    )


def _mean(rows: Sequence[Attained]) -> Attained:
    means = {}
    for field in fields(Attained):
        column = [getattr(row, field.name) for row in rows]
        means[field.name] = None if None in column else fmean(column)
    return Attained(**means)  # type: ignore[arg-type]


def _draw(case: Case, data: Path, seed: int, requests: int, evolved: bool) -> Draw:
    load = workload(case, DEFAULT, seed, requests, data)
    cluster, models = load.cluster, case.models
    searched, evaluate = load.evaluator(), load.evaluator()
    began = time.perf_counter()
    plan = local_search(cluster, models, searched, Random(seed))
    seconds = time.perf_counter() - began
    greedy = alpaserve(cluster, models, evaluate)
    split = split_by_size(cluster.pools[0], models, evaluate)
    every = exhaustive(cluster, models, evaluate, most=_EXHAUSTIVE)
    random = random_search(cluster, models, evaluate, Random(seed), searched.evaluations)
    evolution = evolve(greedy, Fit(models), evaluate, Random(seed)) if evolved else None
    attained = Attained(
        alpaserve=greedy.attainment,
        beam=alpaserve(cluster, models, evaluate, beam=3).attainment,
        split=None if split is None else split.attainment,
        evolved=None if evolution is None else evolution.attainment,
        headway=plan.attainment,
        random=random.attainment,
        exhaustive=None if every is None else every.attainment,
        bound=most_servable(cluster, models, load.arrivals.counts) / len(load.arrivals),
        evaluations=searched.evaluations,
        seconds=seconds,
    )
    unseen = workload(case, DEFAULT, seed + _HELD_OUT, requests, data).evaluator()
    return Draw(attained, plan.placement, evaluate, unseen)
