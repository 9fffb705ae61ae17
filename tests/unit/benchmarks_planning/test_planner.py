"""The planner where the simulator finds that a placement carries less than the fast estimate says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from benchmarks.planning.planner import Planner
from benchmarks.planning.scoring import Score, Scorer
from benchmarks.planning.search import CandidateSearch, Objective, PlanningAims
from benchmarks.planning.throughput import ThroughputPlanner
from policies.placement.types import Placement
from tests.unit.benchmarks_planning.made import estimate


@dataclass
class Pessimist:
    """A scorer for which requests come `multiple` times as fast, on the first draw `first` times."""

    search: CandidateSearch
    multiple: float
    simulations: int = 0
    first: float | None = None

    def scores(self, placements: Sequence[Placement], seeds: Sequence[int], *_: Any) -> list[Score]:
        self.simulations += len(placements) * len(seeds)
        found = self.search.estimate
        multiple = self.first if self.first is not None and 0 in seeds else self.multiple
        evaluate = found.evaluator(found.choices()[0], self.search.aims, multiple)
        shares = [evaluate(each).attainment for each in placements]
        return [Score(share, share, share, 1, len(found.requests), None, None) for share in shares]


@pytest.mark.parametrize(("objective", "first"), [("attainment", None), ("cost", None), ("cost", 1.0)])
def test_candidates_for_more_than_the_load_are_among_those_that_are_simulated(
    objective: Objective, first: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the cheapest ones keep the target, but on the first draw only."""
    monkeypatch.setattr(Planner, "_improve", lambda *_: None)  # as if there were no time for changes
    found = estimate("16xl4", "llama-3.1-8b qwen2.5-7b", [8.0, 6.0])
    aims = PlanningAims(objective, 2, len(found.requests), 0.95)
    search = CandidateSearch(found, aims)
    (enough,) = Pessimist(search, 1.5).scores(search.candidates(1, 1.5), [0])
    assert enough.attainment >= 0.95
    plans = Planner(search, cast(Scorer, Pessimist(search, 1.5, first=first)), aims, time_s=600.0).plans()
    assert plans[0].score.attainment >= 0.95
    assert len(plans) == 4 or first is None


@pytest.mark.parametrize("objective", ["attainment", "cost"])
def test_a_cheaper_plan_is_found_where_the_estimate_finds_it_too_small(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "_improve", lambda *_: None)
    found = estimate("8xl4", "llama-3.1-8b", [20.0])
    aims = PlanningAims(objective, 1, len(found.requests), 0.95)
    search = CandidateSearch(found, aims)
    (enough,) = search.candidates(1, 0.25)
    best = Planner(search, cast(Scorer, Pessimist(search, 0.25)), aims, time_s=600.0).plans()[0]
    assert best.score.attainment >= 0.95
    assert best.usd_per_hour <= enough.usd_per_hour < search.candidates(1)[0].usd_per_hour


@pytest.mark.parametrize(("each_s", "time_s", "expected"), [(2.0, 60.0, 14), (0.5, 5.0, 32), (2.0, 66.0, 32)])
def test_long_simulations_are_few_where_time_is_short(
    each_s: float, time_s: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in overload: few requests, but long queues."""
    found = estimate("16xl4", "llama-3.1-8b qwen2.5-7b", [8.0, 6.0])
    aims = PlanningAims("attainment", 2, len(found.requests), 0.95)
    search = CandidateSearch(found, aims)
    scorer = Pessimist(search, 1.5)
    monkeypatch.setattr("benchmarks.planning.planner.monotonic", lambda: each_s * scorer.simulations)
    Planner(search, cast(Scorer, scorer), aims, time_s).plans()
    assert scorer.simulations == expected


@dataclass
class Constant:
    """A scorer for which the load changes nothing; `multiples` are the loads that it was asked for."""

    attainment: float
    simulations: int = 0
    multiples: list[float] = field(default_factory=list)

    def scores(
        self, placements: Sequence[Placement], seeds: Sequence[int], multiple: float = 1.0
    ) -> list[Score]:
        self.simulations += len(placements) * len(seeds)
        self.multiples.append(multiple)
        return [Score(self.attainment, 0.0, 1.0, 1, 100, None, None)] * len(placements)


@pytest.mark.parametrize("attainment", [0.5, 1.0])
def test_the_load_stays_near_the_bound_where_it_does_not_decide(attainment: float) -> None:
    found = estimate("4xl4", "llama-3.1-8b", [2.0])
    aims = PlanningAims("throughput", 1, len(found.requests), 0.95)
    scorer = Constant(attainment)
    planner = ThroughputPlanner(CandidateSearch(found, aims), cast(Scorer, scorer), aims, 1.0, bound=5.0)
    assert planner.plans()[0].score.attainment == attainment
    assert min(scorer.multiples) >= 5.0 / 1000
    assert max(scorer.multiples) <= 5.0 * 1000 * 1.04
