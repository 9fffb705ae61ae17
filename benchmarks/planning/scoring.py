"""Placements scored by the simulator: the scheduler and the policy that will serve, on several draws of the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.draws import Draw, RequestDefaults, kept
from benchmarks.compare.pool import Processes
from benchmarks.compare.tasks import Setting, Task, run_task
from benchmarks.measures import Interval
from benchmarks.planning.demand import Demand
from benchmarks.planning.fleet import fleet_config, fleet_data
from benchmarks.planning.problem import PlanningProblem
from benchmarks.workloads.format import WorkloadError
from policies.placement.types import Placement
from router.config import FleetConfig

#: With no miss in n requests up to 3 / n may miss (95 %; Hanley and Lippman-Hand, JAMA 1983).
_RULE_OF_THREE = 3.0


@dataclass(frozen=True, slots=True)
class Score:
    """`attainment` is the mean over the draws; another draw lies between `low` and `high` with 95 % (Student's prediction
    interval; with one draw, which has none: only what single requests may change). `requests` are those of one draw.
    `ttft_s_p95` and `tpot_s_p95` are means over the draws, None without an answer."""

    attainment: float
    low: float
    high: float
    draws: int
    requests: int
    ttft_s_p95: float | None
    tpot_s_p95: float | None

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]]) -> Score:
        """From the runs of one placement. Raises WorkloadError if none has a request that counts."""
        # The interval of one more draw, whether draws are of one recording or not.
        found = Interval.of([run["attainment"] for run in runs], resampled=True)
        mean = found.mean or 0.0
        counted = sum(run["offered_with_slo"] for run in runs)
        if not counted:
            raise WorkloadError(
                "no request of a draw counts: each has no SLO, or is longer than the context of its models"
            )
        requests = max(1, round(counted / len(runs)))
        half_width = max(found.half_width or 0.0, _RULE_OF_THREE / requests)
        return cls(
            mean,
            max(0.0, mean - half_width),
            min(1.0, mean + half_width),
            len(runs),
            requests,
            Interval.of(run["ttft_s"]["p95"] for run in runs).mean,
            Interval.of(run["tpot_s"]["p95"] for run in runs).mean,
        )


class DrawnDemand:
    """The draws of a demand as files of a folder, each made once."""

    def __init__(self, demand: Demand, folder: Path) -> None:
        self._demand, self._folder = demand, folder
        self._draws: dict[int, Draw] = {}

    def draw(self, seed: int) -> Draw:
        if seed not in self._draws:
            requests = self._demand.requests(seed)
            resampled = self._demand.recorded and seed != 0
            self._draws[seed] = kept(self._folder, seed, self._demand.header, requests, resampled=resampled)
        return self._draws[seed]


@dataclass(slots=True)
class Scorer:
    """Simulates placements in `processes`, under a policy. `slo` (ms) is for requests that have none. `base` has the
    fleet's other sections."""

    problem: PlanningProblem
    draws: DrawnDemand
    policy: str
    slo: Mapping[str, float] | None
    base: Mapping[str, Any]
    processes: Processes
    simulations: int = 0

    def scores(
        self, placements: Sequence[Placement], seeds: Sequence[int], multiple: float = 1.0
    ) -> list[Score]:
        """The score of each placement over the draws of these seeds, with requests that come `multiple` times as fast."""
        fleets = [fleet_config(fleet_data(self.problem, each, self.base)) for each in placements]
        return self.fleet_scores(fleets, seeds, multiple)

    def fleet_scores(
        self, fleets: Sequence[FleetConfig], seeds: Sequence[int], multiple: float = 1.0
    ) -> list[Score]:
        """As `scores`, of fleets."""
        tasks = [self._task(fleet, seed, multiple) for fleet in fleets for seed in seeds]
        self.simulations += len(tasks)
        runs: dict[int, dict[str, Any]] = dict(self.processes.run(run_task, tasks))
        return [
            Score.of([runs[place * len(seeds) + at] for at in range(len(seeds))])
            for place in range(len(fleets))
        ]

    def _task(self, fleet: FleetConfig, seed: int, multiple: float) -> Task:
        setting = Setting(fleet, {}, None, RequestDefaults("auto", self.slo), ())
        draw = self.draws.draw(seed)
        rate_per_s = None if draw.rate_per_s is None or multiple == 1.0 else draw.rate_per_s * multiple
        return Task(setting, draw, self.policy, rate_per_s, keep_load=False)
