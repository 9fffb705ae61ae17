"""Prompts first and whole, in steps of their own, as older engines batch: hand-computed cases."""

from __future__ import annotations

import dataclasses

import pytest

from backends.engine import Engine, PromptTooLong, Sequence
from tests.unit.backends_engine.test_engine_batching import PROFILE as BATCHING
from tests.unit.backends_engine.test_engine_batching import run as played
from tests.unit.backends_engine.test_engine_batching import tokens_of

PROFILE = dataclasses.replace(BATCHING, max_batched_tokens=1000, chunked_prefill=False)


def run(engine: Engine) -> dict[str, list[float]]:
    """Token times of each sequence."""
    out = played(engine)
    return {name: tokens_of(out, name) for name in {one.seq_id for one in out}}


def pairs(tokens: int) -> float:
    return tokens * (tokens + 1) / 2


def test_a_decoding_sequence_waits_while_prompts_are_computed() -> None:
    engine = Engine(PROFILE)
    gaps: list[tuple[float, int]] = []
    engine.on_gaps = lambda gap_s, count: gaps.append((gap_s, count))
    engine.submit(Sequence("a", 10, 3), 0.0)
    engine.submit(Sequence("b", 600, 2), 0.001)
    engine.submit(Sequence("c", 500, 2), 0.001)  # does not fit into the step of b
    times = run(engine)
    first_a = 0.002 + 0.010 + pairs(10) * 1e-7
    first_b = first_a + 0.002 + 0.060 + pairs(600) * 1e-7
    first_c = first_b + 0.002 + 0.050 + pairs(500) * 1e-7
    together = first_c + 0.002 + 0.010 + (11 + 601 + 501) * 1e-6
    alone = together + 0.002 + 0.010 + 12e-6
    assert times["a"] == pytest.approx([first_a, together, alone])
    assert times["b"] == pytest.approx([first_b, together])
    assert times["c"] == pytest.approx([first_c, together])
    assert [count for _, count in gaps] == [1, 1, 1, 1]
    assert [gap_s for gap_s, _ in gaps] == pytest.approx(
        [together - first_a, together - first_b, together - first_c, alone - together]
    )
    assert engine.generation_tokens_total == 7


def test_prompts_that_fit_share_a_step() -> None:
    engine = Engine(PROFILE)
    for name in ("a", "b"):
        engine.submit(Sequence(name, 500, 1), 0.0)
    both = 0.002 + 0.1 + 2 * pairs(500) * 1e-7
    assert run(engine) == {"a": pytest.approx([both]), "b": pytest.approx([both])}


def test_no_later_prompt_goes_before_one_that_does_not_fit() -> None:
    engine = Engine(PROFILE)
    sequences = [Sequence("a", 600, 1), Sequence("long", 600, 1), Sequence("short", 10, 1)]
    for one in sequences:
        engine.submit(one, 0.0)
    times = run(engine)
    first, second, third = (times[one.id][0] for one in sequences)
    assert first < second == third


def test_only_the_part_that_is_not_cached_counts_in_the_budget() -> None:
    engine = Engine(PROFILE)
    engine.submit(Sequence("cold", 800, 1, tuple(range(50))), 0.0)
    run(engine)
    for name in ("x", "y"):
        engine.submit(Sequence(name, 800, 1, tuple(range(50))), 5.0)
    times = run(engine)
    assert times["x"] == times["y"]


def test_an_admission_leaves_one_block_in_a_hundred_free() -> None:
    # 200 blocks: 2 stay free, so that the second prompt of 100 blocks waits for the first one's end.
    for second, waits in ((1568, False), (1584, True)):
        engine = Engine(dataclasses.replace(PROFILE, kv_capacity_tokens=3200, max_batched_tokens=3200))
        engine.submit(Sequence("a", 1600, 5), 0.0)
        engine.submit(Sequence("b", second, 5), 0.0)
        times = run(engine)
        assert (times["b"][0] >= times["a"][-1]) == waits


def test_what_a_step_or_the_memory_cannot_hold_is_too_long() -> None:
    with pytest.raises(PromptTooLong, match="the limit is 1000 "):
        Engine(PROFILE).submit(Sequence("a", 1000, 1), 0.0)
    engine = Engine(dataclasses.replace(PROFILE, kv_capacity_tokens=3200, max_batched_tokens=4000))
    assert engine.limit_tokens == 3168  # without the two blocks that stay free
    cut = Engine(PROFILE)
    cut.submit(Sequence("a", 990, 50), 0.0)
    assert len(run(cut)["a"]) == 10


def test_a_preempted_sequence_is_computed_again_as_one_prompt() -> None:
    # 8 blocks: two sequences of 48 + 40 tokens need 6 each.
    engine = Engine(dataclasses.replace(PROFILE, kv_capacity_tokens=128), prefix_caching=False)
    first, second = Sequence("first", 48, 40), Sequence("second", 48, 40)
    engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    times = run(engine)
    assert engine.preemptions_total == 1
    assert {name: len(each) for name, each in times.items()} == {"first": 40, "second": 40}
    # It lost its blocks with 64 tokens or more and finds none until the first one has ended.
    assert sum(at < times["first"][-1] for at in times["second"]) == 64 - 48 + 1
    assert (engine.prompt_tokens_total, engine.generation_tokens_total) == (96, 80)
    assert engine.kv.free == engine.kv.total


def test_abort_in_a_step_of_prompts() -> None:
    engine = Engine(PROFILE)
    engine.submit(Sequence("decodes", 16, 50), 0.0)  # its next token needs a new block
    engine.submit(Sequence("prompt", 600, 5), 0.001)
    at = engine.next_at()
    assert at is not None
    engine.advance(at)
    until = engine.next_at()
    assert until is not None
    assert engine.abort("decodes", at + 0.01) == 1
    assert engine.next_at() == until
    assert engine.abort("prompt", at + 0.02) == 0
    run(engine)
    assert engine.kv.free == engine.kv.total


def test_a_jump_ends_where_a_prompt_can_come_in() -> None:
    ends = []
    for every_token in (True, False):
        engine = Engine(PROFILE, every_token=every_token)
        engine.submit(Sequence("a", 10, 500), 0.0)
        engine.advance(1.0)
        late = Sequence("late", 100, 20)
        engine.submit(late, 1.0001)
        times = run(engine)
        assert late.first_token_at_s - 1.0001 < 2 * 0.0125 + pairs(100) * 1e-7
        ends.append([times["a"][-1], times["late"][-1]])
    assert ends[1] == pytest.approx(ends[0])
