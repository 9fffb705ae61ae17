"""What a comparison in simulation runs: policies x rates x draws of the workload.

Finished runs are kept in `DIR/runs`, so that an interrupted comparison goes on; after a change of the program all is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.compare.draws import Draws
from benchmarks.compare.runs import RunFolder, program
from benchmarks.compare.tasks import OracleTask, ScalerChoice, Setting, Task, run_oracles, run_task
from router.wiring import create_predictor

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
        asked_for = {draw.seed for draw in self.draws.each[: self.oracle_draws]}
        return [
            OracleTask(
                cell[0],
                {task.label: task.keep_requests for task in cell if task.keep_requests is not None},
                self.oracle_effort,
            )
            for cell in self._cells(folder)
            if cell[0].draw.seed in asked_for
        ]

    def _cells(self, folder: Path) -> Iterator[list[Task]]:
        """All policies' tasks, by rate and draw."""
        for rate in self.rates or (None,):
            for place, draw in enumerate(self.draws.each):
                kept = self.keep_requests or place < self.oracle_draws
                tasks = [
                    Task(self.setting, draw, policy, rate, keep_load=place == 0, scaler=scaler)
                    for policy in self.policies
                    for scaler in self.scalers
                ]
                yield [
                    replace(task, keep_requests=folder / f"{task.name}.npz") if kept else task
                    for task in tasks
                ]


def run_all(
    plan: Plan, folder: RunFolder, runner: Runner, on_progress: OnProgress
) -> Iterator[dict[str, Any]]:
    """The runs, kept ones first, then each as it is done; oracles follow when all policies of their draw and
    rate are there (they start from the best of their schedules)."""
    tasks, oracles = plan.tasks(folder.path), plan.oracle_tasks(folder.path)
    everything: list[Task | OracleTask] = [*tasks, *oracles]
    kept = {
        each.name: run
        for each in everything
        if (run := folder.load(each.name)) is not None and _serves(run, each)
    }
    done, total = len(kept), len(everything)
    on_progress("", done, total)
    yield from kept.values()
    work: tuple[tuple[Callable[[Any], Any], Sequence[Task | OracleTask]], ...] = (
        (run_task, tasks),
        (run_oracles, oracles),
    )
    for function, wanted in work:
        missing = [each for each in wanted if each.name not in kept]
        for index, run in runner(function, missing):
            run["program"] = program()
            folder.save(missing[index].name, run)
            done += 1
            on_progress(missing[index].name, done, total)
            yield run


def _serves(run: Mapping[str, Any], wanted: Task | OracleTask) -> bool:
    """Whether a kept run is what is wanted, of the same program, with all that is to be kept of it."""
    if run.get("name") != wanted.name or run.get("program") != program():
        return False
    if isinstance(wanted, OracleTask):
        return bool(run.get("settings") == wanted.settings())
    has_load = run.get("timeline") is not None or not wanted.keep_load
    return has_load and (wanted.keep_requests is None or wanted.keep_requests.exists())


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
