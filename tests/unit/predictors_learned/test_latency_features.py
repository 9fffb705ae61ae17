"""The rows that the latency model sees."""

import math
from typing import Any

import pytest

from predictors.kernels import InstanceHistory
from predictors.kernels.reference.estimates import Estimate
from predictors.learned.latency import EVENT_FEATURES, LATENCY_FEATURES, TARGET_FEATURES
from router.core.state import Instance
from router.core.types import LoadReport

ESTIMATE = Estimate(
    ttft_s=0.2,
    tpot_s=0.02,
    ttft_stratum=1,
    tpot_stratum=0,
    ttft_bias=0.1,
    tpot_bias=-0.1,
    ttft_count=5,
    tpot_count=3,
    prompt_tokens=300.0,
    cached_tokens=0.0,
    output_tokens=200.0,
    pending_tokens=0.0,
    step_s=0.02,
)


def slower(estimate: Estimate, by: float) -> Estimate:
    return estimate._replace(
        ttft_s=estimate.ttft_s * by, tpot_s=estimate.tpot_s * by, step_s=estimate.step_s * by
    )


class Queried(InstanceHistory):
    """Gives a row after each event."""

    def dispatched(self, instance: Instance, estimate: Any, step_s: float, now: float) -> None:
        super().dispatched(instance, estimate, step_s, now)
        self.target(instance, ESTIMATE, now)

    def first_token(self, instance: Instance, estimate: Any, waited_s: float, now: float) -> None:
        super().first_token(instance, estimate, waited_s, now)
        self.target(instance, ESTIMATE, now)

    def ended(
        self, instance: Instance, estimate: Any, output_tokens: int, tpot_s: float | None, now: float
    ) -> None:
        super().ended(instance, estimate, output_tokens, tpot_s, now)
        self.target(instance, ESTIMATE, now)


def history(
    by: float = 1.0, kind: type[InstanceHistory] = InstanceHistory
) -> tuple[InstanceHistory, Instance]:
    """A few requests at an engine that is `by` times slower than another."""
    events, instance = kind(None), Instance("a", "vllm", {})
    estimate = slower(ESTIMATE, by)
    for at in range(6):
        instance.dispatched(300)
        events.waits(by * at)
        events.dispatched(instance, estimate, estimate.step_s, by * at)
    for at in range(4):
        instance.first_token(300, 200)
        events.stops_waiting(by * at)
        events.first_token(instance, estimate, by * (6.0 + 0.1 * at - at), by * (6.0 + 0.1 * at))
    instance.released(300, 200, True)
    events.ended(instance, estimate, 50, by * 0.03, by * 7.0)
    instance.takes_report(LoadReport(running=5, waiting=0, kv_usage=0.25), by * 7.5)
    events.reported(instance, by * 7.5)
    return events, instance


def named(row: tuple[float, ...], names: tuple[str, ...] = TARGET_FEATURES) -> dict[str, float]:
    return dict(zip(names, row, strict=True))


def test_names_are_unique_and_rows_have_one_value_each():
    assert len(set(LATENCY_FEATURES)) == len(LATENCY_FEATURES) == len(EVENT_FEATURES) + len(TARGET_FEATURES)
    events, instance = history()
    assert {len(row) for row in events.events} == {len(EVENT_FEATURES)}
    row = events.target(instance, ESTIMATE, 8.0)
    assert len(row) == len(TARGET_FEATURES)
    assert all(map(math.isfinite, row))


def test_an_instance_of_which_nothing_is_known_has_a_row():
    row = named(InstanceHistory(None).target(Instance("a", "vllm", {}), ESTIMATE, 3.0))
    assert row["ttft_seen"] == row["tpot_seen"] == row["oldest_age"] == row["wait_by_8"] == 0.0
    assert row["ttft_steps"] == pytest.approx(math.log(10.0))


def test_a_slower_engine_gives_the_same_rows():
    fast, fast_instance = history()
    slow, slow_instance = history(by=16.0)
    for one, other in zip(fast.events, slow.events, strict=True):
        assert other == pytest.approx(one)
    assert slow.target(slow_instance, slower(ESTIMATE, 16.0), 16.0 * 8.0) == pytest.approx(
        fast.target(fast_instance, ESTIMATE, 8.0)
    )


def test_a_row_does_not_depend_on_rows_before_it():
    (events, instance), (queried, same) = history(), history(kind=Queried)
    assert queried.target(same, ESTIMATE, 8.0) == events.target(instance, ESTIMATE, 8.0)
    for each, of_each in ((events, instance), (queried, same)):
        of_each.released(300, 200, False)
        each.stops_waiting(5.0)
        each.lost(of_each, 3.5, False, 8.5)
    assert queried.target(same, ESTIMATE, 9.0) == events.target(instance, ESTIMATE, 9.0)


def test_tokens_of_a_prompt_are_coarse():
    events, instance = history()
    row = events.target(instance, ESTIMATE._replace(prompt_tokens=300.0), 8.0)
    assert events.target(instance, ESTIMATE._replace(prompt_tokens=303.0), 8.0) == row
    assert events.target(instance, ESTIMATE._replace(prompt_tokens=600.0), 8.0) != row


def test_who_waits_is_known_by_when_it_was_dispatched():
    events, instance = history()
    row = named(events.target(instance, ESTIMATE, 8.0))
    # Those dispatched at 4 and 5 have no first token yet.
    corrected_s = 0.2 * math.exp(0.1)
    assert row["oldest_age"] == pytest.approx(math.log1p(4.0 / corrected_s))
    assert row["middle_age"] == pytest.approx(math.log1p(3.0 / corrected_s))
    instance.released(300, 200, False)
    events.stops_waiting(5.0)
    events.lost(instance, 3.5, False, 8.5)
    row = named(events.target(instance, ESTIMATE, 9.0))
    assert row["oldest_age"] == pytest.approx(math.log1p(5.0 / corrected_s))


def test_a_lost_answer_that_had_begun_leaves_those_that_wait():
    events, instance = history()
    before = named(events.target(instance, ESTIMATE, 8.5))["oldest_age"]
    events.lost(instance, 7.0, True, 8.5)
    assert named(events.target(instance, ESTIMATE, 8.5))["oldest_age"] == before


def test_what_came_last_is_relative_to_this_request():
    events, instance = history()
    row = named(events.target(instance, ESTIMATE, 8.0))
    assert row["ttft_last"] == pytest.approx(math.log(3.3) - math.log(0.2) - 0.1)
    assert row["tpot_last"] == pytest.approx(math.log(0.03 / 0.02) + 0.1)
    # Prompts in the prefix cache have a history of their own.
    cached = named(events.target(instance, ESTIMATE._replace(cached_tokens=290.0), 8.0))
    assert cached["ttft_seen"] == 0.0
    assert cached["ttft_other"] == row["ttft_median"]


def test_errors_are_bounded():
    events, instance = InstanceHistory(None), Instance("a", "vllm", {})
    instance.dispatched(300)
    events.dispatched(instance, ESTIMATE, ESTIMATE.step_s, 0.0)
    instance.first_token(300, 200)
    events.first_token(instance, ESTIMATE, 1e6, 1e6)
    assert named(events.events[-1], EVENT_FEATURES)["event.error"] == 3.0


def test_events_tell_their_kind_and_the_queue():
    events, _ = history()
    kinds = [name for row in events.events for name, on in list(named(row, EVENT_FEATURES).items())[:5] if on]
    found = [kind.partition(".")[2] for kind in kinds]
    assert found == ["dispatched"] * 6 + ["first_token"] * 4 + ["ended", "reported"]
    last = named(events.events[-1], EVENT_FEATURES)
    assert last["event.awaiting"] == pytest.approx(math.log1p(2))
    assert last["event.kv_usage"] == 0.25
