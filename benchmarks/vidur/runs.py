"""The runs: both simulators alternately, each run in a process of its own."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import orjson

from benchmarks.vidur.case import TraceRequest, as_vidur, trace, write_trace
from benchmarks.vidur.environment import interpreter

Simulator = Literal["vidur", "headway"]
Seconds = Literal["simulation_s", "cpu_s", "process_s"]
SIMULATORS: tuple[Simulator, ...] = ("vidur", "headway")
_DRIVER = Path(__file__).with_name("driver.py")


class RunError(Exception):
    """A simulator ended with an error; the message is its last line."""


@dataclass(frozen=True, slots=True)
class Run:
    """Wall-clock seconds of one run: of the simulation alone, of what comes before it in the program, and of the
    whole process with the interpreter's start and imports. `cpu_s` is the simulation's CPU time."""

    simulation_s: float
    setup_s: float
    process_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was simulated, by request: seconds from arrival to the first token and to the end."""

    ttft_s: Sequence[float]
    e2e_s: Sequence[float]

    def quantile(self, of: Literal["ttft_s", "e2e_s"], share: float) -> float:
        """The value that a `share` of the requests stays below."""
        return float(np.quantile(getattr(self, of), share))


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs over one number of replicas. Outcomes are of the last run; every run has the same."""

    replicas: int
    requests: int
    runs: dict[Simulator, list[Run]]
    outcomes: dict[Simulator, Outcome]

    def median(self, simulator: Simulator, of: Seconds) -> float:
        """Of the runs' field `of`."""
        values: list[float] = [getattr(run, of) for run in self.runs[simulator]]
        return statistics.median(values)

    def ratio(self, of: Seconds) -> float:
        """How many times as long Vidur takes, by the medians."""
        return self.median("vidur", of) / self.median("headway", of)


def measure(
    environment: Path,
    folder: Path,
    *,
    replicas: int,
    count: int,
    rate_per_s: float,
    passes: int,
    seed: int,
    on_run: Callable[[str], None],
) -> Measured:
    """Run both `passes` times over `count` requests, `rate_per_s` of them for each replica. Files go to `folder`.
    The order changes with every pass. Raises RunError."""
    requests = trace(count, rate_per_s * replicas, seed)
    commands = _commands(environment, folder, requests, replicas)
    runs: dict[Simulator, list[Run]] = {name: [] for name in SIMULATORS}
    outcomes: dict[Simulator, Outcome] = {}
    for number in range(passes):
        for name in SIMULATORS if number % 2 == 0 else SIMULATORS[::-1]:
            on_run(f"{name}, replicas {replicas}")
            run, outcomes[name] = one(commands[name])
            runs[name].append(run)
    return Measured(replicas, count, runs, outcomes)


def one(command: list[str]) -> tuple[Run, Outcome]:
    """Run `command`, whose last argument is the file that it writes its outcome to. Raises RunError."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own command)
    process_s = time.perf_counter() - began
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise RunError(f"{Path(command[0]).name} ended with {done.returncode}: {lines[-1]}")
    told = orjson.loads(Path(command[-1]).read_bytes())
    run = Run(told["simulation_s"], told["setup_s"], process_s, told["simulation_cpu_s"])
    return run, Outcome(told["ttft_s"], told["e2e_s"])


def _commands(
    environment: Path, folder: Path, requests: Sequence[TraceRequest], replicas: int
) -> dict[Simulator, list[str]]:
    trace_file, case_file = folder / f"trace-{replicas}.csv", folder / f"case-{replicas}.json"
    write_trace(requests, trace_file)
    case_file.write_bytes(orjson.dumps(as_vidur(requests, replicas, trace_file)))
    ours = [sys.executable, "-m", "benchmarks.vidur.ours", str(trace_file), str(replicas)]
    # -I: none of this package's modules may be found in place of one that Vidur imports.
    vidur = [str(interpreter(environment)), "-I", str(_DRIVER), str(case_file)]
    return {"vidur": [*vidur, str(folder / "vidur.json")], "headway": [*ours, str(folder / "headway.json")]}
