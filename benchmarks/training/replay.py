"""A sample of a gateway's own log to train on anew, in which rare loads are not drowned by the usual one (docs/evaluation.md).

A window's stratum is its class of queue x of KV use, as llm-d stratifies (see its latency-predictor training). Of each stratum
the newest windows are kept, and kept whole: a model of event streams learns from what came before what.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from predictors.training.dataset import Attempt, Dataset, Run, State, by_run, fraction_of, joined

WINDOW_S = 60.0
#: Requests waiting at most, KV use at most, of the classes but the last.
QUEUE_CLASSES = (0, 4, 32)
KV_CLASSES = (0.2, 0.4, 0.6, 0.8)
#: Class of queue, class of KV use; None where the engine did not report it.
Stratum = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Window:
    """One window of a run. `at_s`: when it began, since the epoch where that is known."""

    run: str
    place: int
    at_s: float
    attempts: int
    stratum: Stratum


def replayed(log: Dataset, base: Dataset, *, base_share: float, per_stratum: int, seed: int) -> Dataset:
    """What to train on anew: the log's sample with at most `per_stratum` attempts a stratum (one window more
    where it is the first), and `base_share` of the runs that were trained on before. Prompts and answers are
    kept, all of both."""
    kept = base.keep(run=lambda run: fraction_of(run.id, seed) < base_share)
    return joined([kept, cut(log, choose(windows(log), per_stratum))])


def windows(log: Dataset, window_s: float = WINDOW_S) -> list[Window]:
    """All windows with attempts in them."""
    attempts, states = by_run(log.attempts), by_run(log.states)
    found = []
    for run in log.runs:
        waiting: dict[int, int] = defaultdict(int)
        kv: dict[int, float] = {}
        counts: dict[int, int] = defaultdict(int)
        for attempt, queued in _with_queue(attempts[run.id]):
            place = int(attempt.dispatched_s // window_s)
            counts[place] += 1
            waiting[place] = max(waiting[place], queued)
        for state in states[run.id]:
            place = int(state.at_s // window_s)
            if state.waiting is not None:
                waiting[place] = max(waiting[place], state.waiting)
            if state.kv_usage is not None:
                kv[place] = max(kv.get(place, 0.0), state.kv_usage)
        start = run.started_at_s or 0.0
        found += [
            Window(run.id, place, start + place * window_s, count, stratum(waiting[place], kv.get(place)))
            for place, count in sorted(counts.items())
        ]
    return found


def stratum(waiting: int, kv_usage: float | None) -> Stratum:
    """The stratum of a window with such a queue and KV use at most."""
    queue = sum(waiting > bound for bound in QUEUE_CLASSES)
    return queue, None if kv_usage is None else bisect_right(KV_CLASSES, kv_usage)


def choose(found: Iterable[Window], per_stratum: int) -> list[Window]:
    """Of each stratum the newest windows, until it has `per_stratum` attempts."""
    room: dict[Stratum, int] = defaultdict(lambda: per_stratum)
    chosen = []
    for window in sorted(found, key=lambda each: (-each.at_s, each.run)):
        left = room[window.stratum]
        if left == per_stratum or window.attempts <= left:
            chosen.append(window)
            room[window.stratum] = max(0, left - window.attempts)
    return chosen


def cut(log: Dataset, chosen: Iterable[Window], window_s: float = WINDOW_S) -> Dataset:
    """The chosen windows, neighbours joined, each stretch as a run of its own. Attempts that are under way when
    a stretch begins belong to it too: they are what its first requests meet."""
    places: dict[str, set[int]] = defaultdict(set)
    for window in chosen:
        places[window.run].add(window.place)
    attempts, states = by_run(log.attempts), by_run(log.states)
    runs: list[Run] = []
    kept_attempts: list[Attempt] = []
    kept_states: list[State] = []
    for run in log.runs:
        for first, last in _stretches(sorted(places[run.id])):
            start, end = first * window_s, (last + 1) * window_s
            name = f"{run.id}/{first}-{last}"
            runs.append(replace(run, id=name))
            kept_attempts += [
                replace(each, run=name)
                for each in attempts[run.id]
                if start <= each.dispatched_s < end or each.dispatched_s < start < (each.ended_s or 0.0)
            ]
            kept_states += [replace(each, run=name) for each in states[run.id] if start <= each.at_s < end]
    return Dataset(log.prompts, log.answers, tuple(runs), tuple(kept_attempts), tuple(kept_states), log.about)


def _stretches(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of neighbours."""
    for _, group in groupby(enumerate(places), key=lambda one: one[1] - one[0]):
        same = [place for _, place in group]
        yield same[0], same[-1]


def _with_queue(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, int]]:
    """Each attempt with how many dispatched before it had neither a first token nor an end yet."""
    waiting: list[float] = []
    for attempt in attempts:
        waiting = [until for until in waiting if until > attempt.dispatched_s]
        yield attempt, len(waiting)
        until = attempt.first_token_s if attempt.first_token_s is not None else attempt.ended_s
        if until is not None:
            waiting.append(until)
