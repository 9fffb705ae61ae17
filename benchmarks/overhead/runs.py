"""Runs scenarios pass by pass over all targets in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.overhead import processes
from benchmarks.overhead.plan import Result
from benchmarks.overhead.processes import Cores, StartError, Target
from benchmarks.overhead.scenarios import Scenario

TARGETS = ("direct", *processes.PEERS, "headway", *processes.VARIANTS)


@dataclass(slots=True)
class Measured:
    """Results by scenario and target, one a pass; `missing` has the reason by target that did not start."""

    cores: Cores
    results: dict[str, dict[str, list[Result]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def measure(
    scenarios: Sequence[Scenario],
    *,
    targets: Sequence[str] = TARGETS,
    passes: int,
    duration_s: float,
    rate_per_s: float,
    on_run: Callable[[str], None] = lambda run: None,
) -> Measured:
    """Measure; `on_run` gets each run's name before it starts. Every pass starts its processes afresh, and
    the order of the targets rotates. Raises StartError if anything but a peer does not start."""
    processes.allow_many_files()
    measured = Measured(Cores.here())
    for number in range(passes):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-overhead-")))
            engine = stack.enter_context(processes.upstream(measured.cores))
            running = dict(_start(stack, engine, targets, folder, measured))
            for scenario in scenarios:
                by_target = measured.results.setdefault(scenario.name, {})
                names = [name for name in running if scenario.is_for(name)]
                turn = number % len(names) if names else 0
                for name in names[turn:] + names[:turn]:
                    on_run(f"pass {number + 1}: {scenario.name}, {name}")
                    plan = scenario.plan(running[name], engine, duration_s, rate_per_s)
                    by_target.setdefault(name, []).append(processes.generate(plan, measured.cores))
    return measured


def run_count(scenarios: Sequence[Scenario], targets: Sequence[str], passes: int) -> int:
    """How many runs `measure` makes if every target starts."""
    return passes * sum(len([name for name in targets if scenario.is_for(name)]) for scenario in scenarios)


def _start(
    stack: ExitStack, engine: Target, targets: Sequence[str], folder: Path, measured: Measured
) -> Iterator[tuple[str, Target]]:
    for name in TARGETS:
        if name not in targets or name in measured.missing:
            continue
        own = folder / name
        own.mkdir()
        if name == "direct":
            yield name, engine
        elif name in processes.PEERS:
            try:
                yield name, stack.enter_context(processes.peer(name, engine, own, measured.cores))
            except StartError as error:
                measured.missing[name] = str(error)
        else:
            fleet = processes.fleet_of(engine, own, name)
            yield name, stack.enter_context(processes.gateway(fleet, own, measured.cores))
