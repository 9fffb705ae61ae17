"""One engine's measurements, split by load level into those that are fitted and those that are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.calibrate.measured import Level
from benchmarks.calibrate.profile import Constants
from benchmarks.workloads.format import WorkloadError


@dataclass(frozen=True, slots=True)
class Split:
    """Names of the fitted levels and of those held out; no level is in both."""

    fit: tuple[str, ...]
    test: tuple[str, ...]


#: Level names in order of load to a split of them.
Splitter = Callable[[Sequence[str]], Split]


@dataclass(frozen=True, slots=True)
class Study:
    """Levels of one engine (or of a cluster of like ones) and how they are to be compared.

    `paired`: each request against its own simulation; else only the distributions of a level, as where it is
    not known which replica served whom. `limits` are what the source knows of the engine's limits, `start` the
    registered profile nearest to it. `first` are constants to start with where the levels lack the times for a guess.
    `checks` are other predictions of the held-out levels: predicted over measured E2E, by the name of the prediction.
    The report also has the held-out errors of all engines that share a name in `groups`.
    """

    name: str
    levels: Mapping[str, Level]
    split: Split
    limits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    start: str | None = None
    paired: bool = True
    prefix_caching: bool = False
    notes: tuple[str, ...] = ()
    first: Constants | None = None
    checks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()

    def part(self, names: Sequence[str]) -> list[Level]:
        return [self.levels[name] for name in names]


def by_load(levels: Sequence[Level]) -> list[Level]:
    """The levels in order of offered load. A WorkloadError if two have one name."""
    names = [level.name for level in levels]
    for name in names:
        if names.count(name) > 1:
            raise WorkloadError(f"level {name!r} is in more than one file")
    return sorted(levels, key=lambda level: (level.rate_per_s, level.name))


def splitter(fit: Sequence[str] | None, test: Sequence[str] | None) -> Splitter:
    """Split by these names; all others go to the other side. Without names: of every three levels in order of
    load the middle one is held out, of two the lower. The splitter raises a WorkloadError for names that do not fit."""

    def split(names: Sequence[str]) -> Split:
        for each in (*(fit or ()), *(test or ())):
            if each not in names:
                raise WorkloadError(f"unknown level {each!r} in --fit or --test (known: {', '.join(names)})")
        both = sorted(set(fit or ()) & set(test or ()))
        if both:
            raise WorkloadError(f"level {both[0]!r} is in --fit and in --test: leave it out of one of them")
        held = test
        if fit is None and test is None:
            held = names[1::3] if len(names) > 2 else names[:-1]
        chosen = Split(
            tuple(fit if fit is not None else (each for each in names if each not in (held or ()))),
            tuple(held if held is not None else (each for each in names if each not in (fit or ()))),
        )
        if not chosen.fit:
            raise WorkloadError("no level is left to fit")
        return chosen

    return split
