"""What is held out: whole groups, whole levels, or what came last; never the same thing on both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.datasets.splits import split
from predictors.training.dataset import Dataset, DatasetError, joined
from tests.unit.benchmarks_training.made import answers, log


def test_whole_levels_are_held_out_of_each_source() -> None:
    data = joined([log(("1", "2", "4", "8", "16"), 20), log(("low", "high"), 20, source="other")])
    train, test = split(data, 0.2, 1, of_prompts=False)
    for source, count in (("log", 1), ("other", 1)):
        seen, held = ({run.level for run in part.runs if run.source == source} for part in (train, test))
        assert seen.isdisjoint(held)
        assert len(held) == count
        assert seen
    assert len(train.attempts) + len(test.attempts) == len(data.attempts)
    assert len(train.states) + len(test.states) == len(data.states)


def test_equal_levels_stay_together() -> None:
    data = log(("1", "1", "2", "2", "4", "4"), 10)
    train, test = split(data, 0.3, 5, of_prompts=False)
    assert {run.level for run in train.runs}.isdisjoint(run.level for run in test.runs)
    assert len(test.runs) == 2


def test_a_log_without_levels_is_cut_in_time() -> None:
    train, test = split(log(attempts=100), 0.2, 1, of_prompts=False)
    assert [each.dispatched_s for each in test.attempts] == list(range(80, 100))
    assert [each.dispatched_s for each in train.attempts] == list(range(80))
    assert min(each.at_s for each in test.states) == 80
    assert max(each.at_s for each in train.states) == 79


def test_runs_of_one_clock_are_cut_at_one_moment() -> None:
    early = log(attempts=100, started_at_s=1000.0)
    late = log(attempts=100, started_at_s=1060.0)
    late = replace(
        late,
        runs=tuple(replace(run, id="later") for run in late.runs),
        attempts=tuple(replace(each, run="later") for each in late.attempts),
        states=(),
    )
    data = joined([early, late])
    train, test = split(data, 0.25, 1, of_prompts=False)
    starts = {run.id: run.started_at_s or 0.0 for run in data.runs}
    ends = [starts[each.run] + each.dispatched_s for each in train.attempts]
    begins = [starts[each.run] + each.dispatched_s for each in test.attempts]
    assert max(ends) < min(begins)
    assert len(begins) == pytest.approx(0.25 * 200, abs=2)


@pytest.mark.parametrize(
    ("data", "of_prompts"), [(answers(1), True), (log(attempts=1), False), (Dataset(), False)]
)
def test_too_little_to_hold_out(data: Dataset, of_prompts: bool) -> None:
    with pytest.raises(DatasetError, match="too little data to hold out"):
        split(data, 0.2, 1, of_prompts=of_prompts)


def test_the_seed_alone_decides() -> None:
    data = log(tuple("abcdefgh"), 5)

    def held(seed: int, given: Dataset = data) -> set[str | None]:
        return {run.level for run in split(given, 0.25, seed, of_prompts=False)[1].runs}

    backwards = replace(data, runs=data.runs[::-1], attempts=data.attempts[::-1])
    assert held(1) == held(1, backwards)
    assert len({frozenset(held(seed)) for seed in range(6)}) > 1
