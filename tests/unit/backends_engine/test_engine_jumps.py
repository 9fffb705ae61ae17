"""Jumps over steps that are alike: for every load the same outcome as single steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine import Engine, Progress, QueueFull, Sequence, SlotEngine, profile
from backends.engine.series import count_within, span_s
from router.core.profile import EngineProfile

PROFILE = EngineProfile(
    "test",
    overhead_s=0.002,
    floor_s=0.01,
    per_token_s=1e-4,
    per_kv_token_s=1e-6,
    per_pair_s=1e-8,
    kv_capacity_tokens=1024,
    max_batched_tokens=64,
    max_seqs=6,
    load_s=1.0,
    slots=2,
)
WHOLE_PROMPTS = dataclasses.replace(  # 102 blocks, of which an admission leaves one free
    PROFILE, kv_capacity_tokens=1632, max_batched_tokens=700, chunked_prefill=False
)
MODELS_OF_A_DESKTOP = {"a": "llama-3.1-8b-q4", "b": "qwen2.5-7b-q4"}


@dataclasses.dataclass(frozen=True)
class Arrival:
    wait_s: float
    prompt: int
    output: int
    model: str
    group: int  # arrivals of one group share the beginning of their prompts
    keep_alive_s: float | None
    abort_after_s: float | None
    watched: bool  # the caller looks at each end of a step before this arrival


def loads(most_prompt: int) -> st.SearchStrategy[list[Arrival]]:
    arrival = st.builds(
        Arrival,
        st.just(0.0) | st.floats(0, 1),
        st.integers(1, most_prompt),
        st.integers(0, 150),
        st.sampled_from("abc"),
        st.integers(0, 2),
        st.sampled_from([None, 0.0, 1.5]),
        st.none() | st.floats(0, 4),
        st.booleans(),
    )
    return st.lists(arrival, min_size=1, max_size=20)


@dataclasses.dataclass
class Outcome:
    """All that the two ways to step have to agree in."""

    times_s: dict[str, float]  # of each sequence: admission, first token, end, as far as it came
    cached_tokens: list[int]
    aborted_after_tokens: list[int]
    seen: list[tuple[int, int, int, int]]  # at each event: running, waiting, tokens so far
    totals: list[int]


def play(engine: Engine | SlotEngine, load: list[Arrival], unit: int) -> tuple[Outcome, list[Progress]]:
    events: list[tuple[float, int, Sequence | None]] = []
    at_s = 0.0
    for number, one in enumerate(load):
        at_s += one.wait_s
        prefix = tuple(1000 * one.group + block for block in range(-(-one.prompt // unit)))
        events.append(
            (
                at_s,
                number,
                Sequence(str(number), one.prompt, one.output, prefix, one.model, prefix_tokens=unit),
            )
        )
        if one.abort_after_s is not None:
            events.append((at_s + one.abort_after_s, number, None))
    out: list[Progress] = []
    outcome = Outcome({}, [], [], [], [])
    for now, number, sequence in sorted(events, key=lambda event: event[:2]):
        while load[number].watched and (at := engine.next_at()) is not None and at <= now:
            out += engine.advance(at)
        out += engine.advance(now)
        try:
            if sequence is None:
                outcome.aborted_after_tokens.append(engine.abort(str(number), now))
            elif isinstance(engine, SlotEngine):
                engine.submit(sequence, now, load[number].keep_alive_s)
            else:
                engine.submit(sequence, now)
        except QueueFull:
            outcome.aborted_after_tokens.append(-1)
        totals = (engine.prompt_tokens_total, engine.generation_tokens_total)
        outcome.seen.append((engine.running, engine.waiting, *totals))
    while (at := engine.next_at()) is not None:
        out += engine.advance(at)
    assert (engine.running, engine.waiting) == (0, 0)
    assert isinstance(engine, SlotEngine) or engine.kv.free == engine.kv.total
    ends = {one.seq_id: one.at_s for one in out if one.finished}
    for _, _, sequence in events:
        if sequence is not None:
            times = (sequence.admitted_at_s, sequence.first_token_at_s, ends.get(sequence.id))
            for what, time_s in zip(("in", "first", "end"), times, strict=True):
                if time_s is not None:
                    outcome.times_s[f"{sequence.id} {what}"] = time_s
            outcome.cached_tokens.append(sequence.cached_tokens)
    outcome.totals = [value for name, value in vars(engine).items() if name.endswith("_total")]
    return outcome, out


def check_same(make: Callable[[bool], Engine | SlotEngine], load: list[Arrival], unit: int = 16) -> None:
    stepped, every = play(make(True), load, unit)
    jumped, told = play(make(False), load, unit)
    assert jumped.times_s == pytest.approx(stepped.times_s, rel=1e-9)
    stepped.times_s = jumped.times_s = {}
    assert jumped == stepped
    # Told are the first and the last token, with all tokens between them.
    given_out: dict[str, list[Progress]] = {}
    for one in every:
        given_out.setdefault(one.seq_id, []).append(one)
    expected: list[tuple[str, int, str | None]] = []
    for name, all_of_it in given_out.items():
        first, last = all_of_it[0], all_of_it[-1]
        expected.append((name, first.new_tokens, first.finished))
        if last.finished and last is not first:
            expected.append((name, len(all_of_it) - 1, last.finished))
    assert sorted((one.seq_id, one.new_tokens, str(one.finished)) for one in told) == sorted(
        (name, new, str(finished)) for name, new, finished in expected
    )
    assert [one.at_s for one in told] == sorted(one.at_s for one in told)


@given(load=loads(300), most=st.integers(1, 3), slots=st.integers(1, 3))
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


@given(load=loads(600), unit=st.sampled_from([16, 64]))
def test_batching(load: list[Arrival], unit: int) -> None:
    def make(every_token: bool) -> Engine:
        return Engine(PROFILE, every_token=every_token)

    check_same(make, load, unit)


@given(load=loads(600), unit=st.sampled_from([16, 64]))
def test_batching_of_whole_prompts(load: list[Arrival], unit: int) -> None:
    def make(every_token: bool) -> Engine:
        return Engine(WHOLE_PROMPTS, every_token=every_token)

    check_same(make, load, unit)


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
    assert one.first_token_at_s is not None
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
