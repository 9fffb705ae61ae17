"""What is held out of training: whole groups of prompts, whole load levels, or the last part in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import sha256
from operator import attrgetter

from benchmarks.workloads.published import grouped
from predictors.training.dataset import Dataset, DatasetError, Run, fraction_of, split_prompts

#: (run, time on its clock) -> whether it belongs to a part.
_Wanted = Callable[[str, float], bool]


def split(data: Dataset, held_out: float, seed: int, *, of_prompts: bool) -> tuple[Dataset, Dataset]:
    """(training part, held-out part). Names and times alone decide, so the same data are split the same way
    wherever that is done. Raises DatasetError where one part would be empty."""
    if of_prompts:
        train, test = split_prompts(data, held_out, seed)
        what = "groups of prompts"
        empty = not train.answers or not test.answers
    else:
        train, test = split_runs_and_time(data, held_out, seed)
        what = "runs"
        empty = not train.attempts or not test.attempts
    if empty:
        raise DatasetError(f"too little data to hold out {held_out:g} of its {what}")
    return train, test


def digest(part: Dataset, *, of_prompts: bool) -> str:
    """A hash of what makes a part: its prompts, or its attempts. Another part has another one."""
    if of_prompts:
        names = [each.id for each in part.prompts]
    else:
        names = [f"{each.run} {each.dispatched_s}" for each in part.attempts]
    return sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


def split_runs_and_time(data: Dataset, held_out: float, seed: int) -> tuple[Dataset, Dataset]:
    """By source: whole levels where it has several, else the last part in time."""
    out: set[str] = set()
    cuts: dict[str, float] = {}
    for source, runs in grouped(data.runs, attrgetter("source")).items():
        levels = {run.level for run in runs}
        if None in levels or len(levels) < 2:
            cuts.update(_cuts(data, runs, held_out))
            continue
        chosen = _chosen(sorted(level for level in levels if level is not None), source, held_out, seed)
        out.update(run.id for run in runs if run.level in chosen)
    early = {run.id for run in data.runs} - out

    def is_early(run: str, at_s: float) -> bool:
        return run in early and at_s < cuts.get(run, math.inf)

    return _part(data, is_early), _part(data, lambda run, at_s: not is_early(run, at_s), prompts=False)


def _chosen(levels: Sequence[str], source: str, held_out: float, seed: int) -> set[str]:
    """At least one of the levels, and never all."""
    count = min(max(1, round(held_out * len(levels))), len(levels) - 1)
    return set(sorted(levels, key=lambda level: fraction_of(f"{source}/{level}", seed))[:count])


def _cuts(data: Dataset, runs: Sequence[Run], held_out: float) -> dict[str, float]:
    """By run: when on its own clock the held-out part begins. One moment for all where their clocks are
    known, so that nothing later is learned than what is asked about; else a share of each run."""
    ids = {run.id for run in runs}
    attempts = grouped((each for each in data.attempts if each.run in ids), attrgetter("run"))
    times = {run: [each.dispatched_s for each in found] for run, found in attempts.items()}
    starts = {run.id: run.started_at_s for run in runs}
    known = {run: start for run, start in starts.items() if start is not None}
    if len(known) == len(runs):
        cut = _late([known[run] + at_s for run, found in times.items() for at_s in found], held_out)
        return {run: cut - start for run, start in known.items()}
    return {run: _late(found, held_out) for run, found in times.items()}


def _late(times: Sequence[float], held_out: float) -> float:
    """The time at which the last share of `times` begins; infinity without any."""
    ordered = sorted(times)
    if not ordered:
        return math.inf
    return ordered[min(round((1 - held_out) * len(ordered)), len(ordered) - 1)]


def _part(data: Dataset, wanted: _Wanted, *, prompts: bool = True) -> Dataset:
    """Runs of which attempts are wanted, with the wanted attempts and states."""
    attempts = tuple(each for each in data.attempts if wanted(each.run, each.dispatched_s))
    used = {each.run for each in attempts}
    return Dataset(
        data.prompts if prompts else (),
        data.answers if prompts else (),
        tuple(run for run in data.runs if run.id in used),
        attempts,
        tuple(each for each in data.states if each.run in used and wanted(each.run, each.at_s)),
        data.about,
    )
