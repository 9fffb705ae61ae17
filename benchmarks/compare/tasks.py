"""What a comparison in simulation runs: policies x rates x draws of the workload, as pieces of work that any process can do.

Finished runs are kept in `DIR/runs`, so that an interrupted comparison goes on; after a change of the program all is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from benchmarks.compare.draws import Draw, Draws, RequestDefaults
from benchmarks.compare.runs import RunFolder, program
from benchmarks.compare.summary import summary_of
from benchmarks.oracles import oracles
from benchmarks.scenarios import Loss
from benchmarks.simulator import Arrival, Fleet, InstanceLoss, Result, arrivals, open_fleet, simulate
from benchmarks.simulator.scaling import Scaling
from benchmarks.workloads.format import WorkloadRequest, read
from policies.scaling import create
from router.config import FleetConfig
from router.config.fields import SloConfig
from router.core.profile import EngineProfile
from router.scaling.pools import scaling_pools
from router.wiring import create_predictor


@dataclass(frozen=True, slots=True)
class ScalerChoice:
    """A scaler and its settings; without any, those of the fleet file if it names this scaler. `text` stands in names."""

    text: str
    name: str
    settings: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a comparison share. `time_factor` as in `open_fleet`."""

    fleet: FleetConfig
    profiles: Mapping[str, EngineProfile]
    time_factor: float | None
    defaults: RequestDefaults
    losses: tuple[Loss, ...]

    def open(self) -> Fleet:
        return open_fleet(self.fleet, dict(self.profiles), self.time_factor)

    def scaling(self, chosen: ScalerChoice, fleet: Fleet) -> Scaling:
        """The fleet's pools under a scaler in its first state. Raises ValueError for wrong settings."""
        slo = self.defaults.slo
        pools = scaling_pools(self.fleet, None if slo is None else SloConfig.model_validate(dict(slo)).slo())
        own = self.fleet.scaling
        settings = dict(chosen.settings) or (own.settings if chosen.name == own.scaler else {})
        return Scaling(create(chosen.name, pools, settings), pools, fleet.places, own.interval_s)


@dataclass(frozen=True, slots=True)
class Task:
    """One policy at one rate (None: the workload's own) with one draw of the workload. `requests_in` is the folder that is to
    have every request; `keep_load` keeps the load of instances over time. With a `scaler` the fleet's pools grow and shrink."""

    setting: Setting
    draw: Draw
    policy: str
    rate_per_s: float | None
    requests_in: Path | None = None
    keep_load: bool = True
    scaler: ScalerChoice | None = None

    @property
    def label(self) -> str:
        """What the report calls the policy."""
        return self.policy if self.scaler is None else f"{self.policy}+{self.scaler.text}"

    @property
    def at(self) -> str:
        """Rate and seed, as they stand in names."""
        return f"{'own' if self.rate_per_s is None else format(self.rate_per_s, '.10g')}#{self.draw.seed}"

    @property
    def name(self) -> str:
        return f"{self.label}@{self.at}"

    @property
    def requests_file(self) -> Path | None:
        return None if self.requests_in is None else self.requests_in / f"{self.name}.npz"

    @property
    def stretch(self) -> float:
        """What times of the draw are multiplied with to come to the rate."""
        own = self.draw.rate_per_s
        return 1.0 if self.rate_per_s is None or own is None else own / self.rate_per_s

    def of_draw(self) -> dict[str, Any]:
        """Which requests a run is of."""
        return {"rate_per_s": self.rate_per_s, "seed": self.draw.seed, "resampled": self.draw.resampled}

    def requests(self) -> Iterator[WorkloadRequest]:
        """The draw at the task's rate; the first request comes at 0."""
        first_s, stretch = self.draw.first_s, self.stretch
        for request in islice(read(self.draw.file, check_ids=False), self.draw.requests):
            yield replace(request, arrival_s=(request.arrival_s - first_s) * stretch)

    def losses(self) -> list[InstanceLoss]:
        """The setting's losses at this rate: shares of the time from the first request to the last."""
        span_s = (self.draw.last_s - self.draw.first_s) * self.stretch
        return [
            InstanceLoss(loss.instance, loss.at * span_s, loss.lasts * span_s) for loss in self.setting.losses
        ]

    def arrivals(self, fleet: Fleet, policy: str | None) -> Iterator[Arrival]:
        """Its requests as the scheduler gets them; `policy` None: as they ask themselves."""
        defaults = self.setting.defaults
        return arrivals(self.requests(), fleet, policy=policy, model=defaults.model, slo=defaults.slo)

    def run(self) -> dict[str, Any]:
        fleet = self.setting.open()
        result = simulate(
            fleet,
            self.arrivals(fleet, self.policy),
            seed=self.draw.seed,
            losses=self.losses(),
            scaling=None if self.scaler is None else self.setting.scaling(self.scaler, fleet),
        )
        if self.requests_file is not None:
            result.save(self.requests_file)
        summary = summary_of(result)
        if not self.keep_load:
            summary["timeline"] = None
        return {"name": self.name, "policy": self.label, **self.of_draw(), **summary}

    def is_served_by(self, run: Mapping[str, Any]) -> bool:
        """Whether a kept run has all that is to be kept of it."""
        has_load = run.get("timeline") is not None or not self.keep_load
        return has_load and (self.requests_file is None or self.requests_file.exists())


@dataclass(frozen=True, slots=True)
class OracleTask:
    """The oracles of one draw at one rate, which start from the requests of all policies' `tasks`. `effort` is a key of
    `benchmarks.oracles.EFFORTS`."""

    tasks: tuple[Task, ...]
    effort: str

    @property
    def name(self) -> str:
        return f"oracle@{self.tasks[0].at}"

    def _settings(self) -> dict[str, Any]:
        """What an answer depends on beside draw and rate: a kept one serves for the same only."""
        return {"policies": sorted(task.label for task in self.tasks), "effort": self.effort}

    def run(self) -> dict[str, Any]:
        task = self.tasks[0]
        fleet = task.setting.open()
        found = oracles(
            fleet,
            list(task.arrivals(fleet, None)),
            {each.label: Result.load(each.requests_file) for each in self.tasks if each.requests_file},
            effort=self.effort,
            seed=task.draw.seed,
            losses=task.losses(),
        )
        return {"name": self.name, **task.of_draw(), "settings": self._settings(), **found}

    def is_served_by(self, run: Mapping[str, Any]) -> bool:
        return bool(run.get("settings") == self._settings())


def run_task(task: Task | OracleTask) -> dict[str, Any]:
    return task.run()


#: Runs `function` over items somewhere and yields (index, result) as they are done.
Runner = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[tuple[int, Any]]]
#: Gets the name of the run that ended last, how many have ended, and of how many.
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is to be run. `rates` None: the workload's own. The oracles run for the first
    `oracle_draws` draws."""

    setting: Setting
    draws: Draws
    policies: tuple[str, ...]
    rates: tuple[float, ...] | None
    oracle_draws: int
    oracle_effort: str
    keep_requests: bool
    scalers: tuple[ScalerChoice | None, ...] = (None,)

    def tasks(self, folder: Path) -> list[Task]:
        """Rate by rate and draw by draw, all policies of each, so that what is interrupted is whole so far."""
        return [task for cell in self._cells(folder) for task in cell]

    def oracle_tasks(self, folder: Path) -> list[OracleTask]:
        """The oracles: one for each rate and each of the first `oracle_draws` draws."""
        first = {draw.seed for draw in self.draws.each[: self.oracle_draws]}
        cells = (cell for cell in self._cells(folder) if cell[0].draw.seed in first)
        return [OracleTask(cell, self.oracle_effort) for cell in cells]

    def _cells(self, folder: Path) -> Iterator[tuple[Task, ...]]:
        """All policies' tasks, by rate and draw."""
        for rate in self.rates or (None,):
            for place, draw in enumerate(self.draws.each):
                kept_in = folder if self.keep_requests or place < self.oracle_draws else None
                yield tuple(
                    Task(self.setting, draw, policy, rate, kept_in, place == 0, scaler)
                    for policy in self.policies
                    for scaler in self.scalers
                )


def run_all(
    plan: Plan, folder: RunFolder, runner: Runner, on_progress: OnProgress
) -> Iterator[dict[str, Any]]:
    """The runs, kept ones first, then each as it is done; oracles follow when all policies of their draw and
    rate are there (they start from the best of their schedules)."""
    stages: tuple[Sequence[Task | OracleTask], ...] = plan.tasks(folder.path), plan.oracle_tasks(folder.path)
    kept = {
        each.name: run
        for each in chain(*stages)
        if (run := folder.load(each.name)) is not None
        and (run.get("name"), run.get("program")) == (each.name, program())
        and each.is_served_by(run)
    }
    done, total = len(kept), sum(map(len, stages))
    on_progress("", done, total)
    yield from kept.values()
    for wanted in stages:
        missing = [each for each in wanted if each.name not in kept]
        for index, run in runner(run_task, missing):
            run["program"] = program()
            folder.save(missing[index].name, run)
            done += 1
            on_progress(missing[index].name, done, total)
            yield run


def settings_of(plan: Plan) -> dict[str, Any]:
    """What makes kept runs and new ones comparable. Policies, rates and seeds may differ."""
    setting = plan.setting
    return {
        "workload": dict(plan.draws.made_of),
        "fleet": setting.fleet.model_dump(mode="json"),
        "profiles": {name: asdict(profile) for name, profile in setting.profiles.items()},
        "speed": setting.time_factor,
        "model": setting.defaults.model,
        "slo": None if setting.defaults.slo is None else dict(setting.defaults.slo),
        "losses": [asdict(loss) for loss in setting.losses],
        "predictor": create_predictor(setting.fleet).name,
    }
