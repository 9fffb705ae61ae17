"""A sample of a log keeps what is rare and new, in whole windows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.training.replay import Window, choose, cut, replayed, stratum, windows
from predictors.training.dataset import Attempt, Dataset, Run, joined

from .made import answers, log


def renamed(data: Dataset, name: str) -> Dataset:
    (run,) = data.runs
    return replace(
        data,
        runs=(replace(run, id=name),),
        attempts=tuple(replace(each, run=name) for each in data.attempts),
        states=tuple(replace(each, run=name) for each in data.states),
    )


def test_strata() -> None:
    assert stratum(0, 0.0) == (0, 0)
    assert stratum(1, 0.2) == (1, 1)
    assert stratum(5, 0.5) == (2, 2)
    assert stratum(33, 1.0) == (3, 4)
    assert stratum(0, None) == (0, None)
    assert len({stratum(q, kv)[:2] for q in (0, 1, 5, 33) for kv in (0.1, 0.3, 0.5, 0.7, 0.9)}) == 20


def test_windows_tell_the_worst_of_their_time() -> None:
    data = log(attempts=150, waiting=0, kv_usage=0.1, started_at_s=1000.0)
    states = list(data.states)
    states[70] = replace(states[70], waiting=40, kv_usage=0.95)
    found = windows(replace(data, states=tuple(states)))
    seen = [(each.place, each.at_s, each.attempts) for each in found]
    assert seen == [(0, 1000.0, 60), (1, 1060.0, 60), (2, 1120.0, 30)]
    assert [each.stratum for each in found] == [(0, 0), (3, 4), (0, 0)]


def test_without_reports_the_queue_is_counted() -> None:
    """Six requests at once that wait ten seconds each: the last finds five before it."""
    attempts = tuple(Attempt("r", "m", 0.1 * i, 10, 10.0 + i, 12.0 + i) for i in range(6))
    (window,) = windows(Dataset(runs=(Run("r", "log", "a", "m"),), attempts=attempts))
    assert window.stratum == (2, None)


def test_rare_loads_outlive_common_ones_and_the_newest_are_kept() -> None:
    day = 86_400.0
    common = [
        Window(f"day {d}", place, d * day + place * 60, 100, (0, 0)) for d in range(30) for place in range(20)
    ]
    rare = [Window("day 2", 30, 2 * day + 1800, 50, (3, 4))]
    chosen = choose([*common, *rare], 500)
    assert rare[0] in chosen
    kept = [each for each in chosen if each.stratum == (0, 0)]
    assert sum(each.attempts for each in kept) == 500
    assert min(each.at_s for each in kept) > max(each.at_s for each in common if each not in kept)


def test_a_window_larger_than_the_bound_is_still_seen() -> None:
    large = [Window("r", place, 60.0 * place, 900, (1, 1)) for place in range(3)]
    assert choose(large, 500) == [large[2]]


def test_windows_are_cut_whole_with_what_was_under_way() -> None:
    data = log(attempts=300)
    found = windows(data)
    sample = cut(data, [found[1], found[2], found[4]])
    assert [run.id for run in sample.runs] == ["log-0/1-2", "log-0/4-4"]
    first = [each.dispatched_s for each in sample.attempts if each.run == "log-0/1-2"]
    # Those of 58 and 59 s end after 60 s: the first requests of the window met them.
    assert first == list(range(58, 180))
    assert [each.at_s for each in sample.states if each.run == "log-0/4-4"] == list(range(240, 300))


def test_the_base_is_not_forgotten() -> None:
    busy = renamed(log(attempts=600, waiting=50, kv_usage=0.9), "busy")
    base = joined([log(tuple("abcdefghijklmnop"), 10, source="base"), answers(5)])
    sample = replayed(busy, base, base_share=0.5, per_stratum=120, seed=1)
    kept = [run.id for run in sample.runs if run.source == "base"]
    assert 4 <= len(kept) <= 12
    assert len(sample.prompts) == 5
    of_log = [each for each in sample.attempts if each.run.startswith("busy/")]
    assert 120 <= len(of_log) <= 125
    assert min(each.dispatched_s for each in of_log) >= 470
    other = replayed(busy, base, base_share=0.5, per_stratum=120, seed=2)
    assert [run.id for run in other.runs if run.source == "base"] != kept
    assert replayed(busy, base, base_share=0.5, per_stratum=120, seed=1) == sample


def test_nothing_is_made_up() -> None:
    data = log(attempts=200)
    sample = replayed(data, Dataset(), base_share=0.5, per_stratum=10_000, seed=1)
    assert [replace(each, run="log-0") for each in sample.attempts] == list(data.attempts)
    assert [replace(each, run="log-0") for each in sample.states] == list(data.states)
    assert not replayed(Dataset(), Dataset(), base_share=0.5, per_stratum=1, seed=1).runs


@pytest.mark.parametrize("window_s", [10.0, 45.0])
def test_any_window_loses_nothing(window_s: float) -> None:
    data = log(attempts=100)
    chosen = windows(data, window_s)
    assert sum(each.attempts for each in chosen) == 100
    assert len(cut(data, chosen, window_s).attempts) == 100
