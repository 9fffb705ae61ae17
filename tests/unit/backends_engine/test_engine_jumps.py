"""Jumps over steps that are alike: for every load the same outcome as single steps."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine import Engine, Sequence, SlotEngine, profile
from backends.engine.series import count_within, span_s
from router.core.profile import EngineProfile
from tests.unit.backends_engine.loads import PROFILE, WHOLE_PROMPTS, Arrival, check_same, loads, play

MODELS_OF_A_DESKTOP = {"a": "llama-3.1-8b-q4", "b": "qwen2.5-7b-q4"}


@given(load=loads(300, least_prompt=0), most=st.integers(1, 3), slots=st.integers(1, 3))
def test_slots(load: list[Arrival], most: int, slots: int) -> None:
    def make(every_token: bool) -> SlotEngine:
        return SlotEngine(
            {model: dataclasses.replace(PROFILE, load_s=1.0 + ord(model) % 3) for model in "abc"},
            slots=slots,
            max_loaded_models=most,
            max_pending=6,
            keep_alive_s=2.0,
            every_token=every_token,
        )

    check_same(make, load)


@pytest.mark.parametrize("one", [PROFILE, WHOLE_PROMPTS], ids=["chunks", "whole prompts"])
@given(load=loads(600), unit=st.sampled_from([16, 64]), caching=st.booleans())
def test_batching(one: EngineProfile, load: list[Arrival], unit: int, caching: bool) -> None:
    def make(every_token: bool) -> Engine:
        return Engine(one, every_token=every_token, prefix_caching=caching)

    check_same(make, load, unit)


def test_the_same_load_gives_the_same_progress() -> None:
    load = [
        Arrival(0.01 * (n % 5), 37 * (n % 11) + 1, 13 * (n % 7), "a", n % 3, None, None, False)
        for n in range(60)
    ]
    first, second = Engine(PROFILE), Engine(PROFILE)
    assert play(first, load, 16) == play(second, load, 16)
    assert first.preemptions_total > 0


@given(load=loads(600), one=st.sampled_from([PROFILE, WHOLE_PROMPTS]))
def test_gaps_are_those_between_the_tokens_given_out(load: list[Arrival], one: EngineProfile) -> None:
    """No abort and no preemption, whose gaps are not told."""
    calm = [dataclasses.replace(each, abort_after_s=None) for each in load]
    roomy = dataclasses.replace(one, kv_capacity_tokens=100_000)
    told: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    for every_token, gaps in told.items():
        engine = Engine(roomy, every_token=every_token)

        def hear(gap_s: float, count: int, gaps: list[tuple[float, int]] = gaps) -> None:
            gaps.append((gap_s, count))

        engine.on_gaps = hear
        _, out = play(engine, calm, 16)
        assert engine.preemptions_total == 0
        if every_token:
            times: dict[str, list[float]] = {}
            for progress in out:
                times.setdefault(progress.seq_id, []).append(progress.at_s)
            seen = sorted(after - before for each in times.values() for before, after in pairwise(each))
            expected = sorted(gap_s for gap_s, count in gaps for _ in range(count))
            assert expected == pytest.approx(seen, rel=1e-6)
    (stepped, jumped) = told.values()
    assert sum(count for _, count in jumped) == sum(count for _, count in stepped)
    assert math.fsum(gap_s * count for gap_s, count in jumped) == pytest.approx(
        math.fsum(gap_s * count for gap_s, count in stepped), rel=1e-9
    )
    assert max(jumped, default=(0.0, 0))[0] == pytest.approx(max(stepped, default=(0.0, 0))[0], rel=0.05)


def test_a_jump_of_slots_is_one_event() -> None:
    engine = SlotEngine({"a": PROFILE}, every_token=False)
    engine.submit(Sequence("1", 10, 200, model="a"), 0.0)
    engine.submit(Sequence("2", 10, 300, model="a"), 0.0)
    events = 0
    while (at := engine.next_at()) is not None:
        engine.advance(at)
        events += 1
    assert events == 4  # the load, the prompts, the end of the one, the end of the other


def test_models_in_turns_are_jumped_over_together() -> None:
    engine = SlotEngine({"a": PROFILE, "b": PROFILE}, every_token=False)
    engine.submit(Sequence("load", 0, 0, model="b"), 0.0)
    engine.submit(Sequence("1", 10, 500, model="a"), 0.0)
    engine.advance(2.5)
    engine.submit(Sequence("2", 10, 400, model="b"), 2.5)
    events = 0
    while (at := engine.next_at()) is not None:
        engine.advance(at)
        events += 1
    assert events < 12


@pytest.mark.parametrize("every_token", [True, False])
@pytest.mark.parametrize("now", [5.0, 5.01225])  # steps of `a` and `b` take 12.1 ms
def test_turns_after_a_jump(now: float, every_token: bool) -> None:
    engine = SlotEngine(dict.fromkeys("abc", PROFILE), every_token=every_token)
    for model in "abc":
        engine.submit(Sequence(f"load {model}", 0, 0, model=model), 0.0)
    engine.advance(3.0)
    engine.submit(Sequence("a", 10, 500, model="a"), 4.0)
    engine.submit(Sequence("b", 10, 500, model="b"), 4.0)
    engine.submit(Sequence("c", 10, 5, model="c"), 4.0)
    engine.advance(now)
    # A step of `a` or `b` is under way. After it comes `c`, which ran longer ago than the other one.
    one = Sequence("c again", 10, 2, model="c")
    engine.submit(one, now)
    while (at := engine.next_at()) is not None:
        engine.advance(at)
    step_s = PROFILE.step_s(10, 0, 0, 55)
    assert step_s < one.first_token_at_s - now < step_s + PROFILE.step_s(0, 1, 500)


@given(
    first_s=st.floats(1e-3, 1),
    slope_s=st.floats(0, 1e-3),
    count=st.integers(0, 5000),
    part=st.floats(0.01, 0.99),
)
def test_steps_within_a_time(first_s: float, slope_s: float, count: int, part: float) -> None:
    spent_s = span_s(first_s, slope_s, count) + part * (first_s + count * slope_s)
    assert span_s(first_s, slope_s, count) == pytest.approx(
        math.fsum(first_s + number * slope_s for number in range(count))
    )
    assert count_within(first_s, slope_s, spent_s, 10_000) == count
    assert count_within(first_s, slope_s, spent_s, 7) == min(count, 7)
    assert count_within(first_s, slope_s, -1.0, 7) == 0


def test_a_model_that_loads_during_a_jump_has_its_turn() -> None:
    first_tokens_s = []
    for every_token in (True, False):
        models = {name: profile(f"{model}@rtx-4090") for name, model in MODELS_OF_A_DESKTOP.items()}
        engine = SlotEngine(models, every_token=every_token)
        engine.submit(Sequence("a1", 100, 800, model="a"), 0.0)
        engine.submit(Sequence("b1", 100, 50, model="b"), 3.2)
        engine.abort("b1", 3.3)
        late = Sequence("b2", 100, 50, model="b")
        engine.submit(late, 7.0)
        engine.advance(60.0)
        first_tokens_s.append(late.first_token_at_s)
    assert first_tokens_s[1] == pytest.approx(first_tokens_s[0], rel=1e-9)
