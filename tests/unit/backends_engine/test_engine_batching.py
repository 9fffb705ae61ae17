"""Continuous batching by hand-computed cases."""

from __future__ import annotations

import dataclasses

import pytest

from backends.engine import Engine, Progress, PromptTooLong, Sequence, SlotEngine
from router.core.profile import EngineProfile
from tests.engine_profiles import profile

PROFILE = profile(
    "test",
    overhead_s=0.002,
    floor_s=0.010,
    per_token_s=0.0001,
    per_kv_token_s=1e-6,
    per_pair_s=1e-7,
    kv_capacity_tokens=16_000,
    max_batched_tokens=256,
    max_seqs=8,
)


def small(**changes: int) -> EngineProfile:
    return dataclasses.replace(PROFILE, **changes)


def run(engine: Engine | SlotEngine) -> list[Progress]:
    """All that comes until it is idle."""
    out: list[Progress] = []
    while (at := engine.next_at()) is not None:
        out += engine.advance(at)
    return out


def seq(name: str, prompt: int, output: int, prefix: tuple[int, ...] = ()) -> Sequence:
    return Sequence(name, prompt, output, prefix)


def tokens_of(out: list[Progress], name: str) -> list[float]:
    return [one.at_s for one in out if one.seq_id == name for _ in range(one.new_tokens)]


def test_step_times_of_one_sequence() -> None:
    engine = Engine(PROFILE)
    engine.submit(seq("a", 200, 3), 1.0)
    out = run(engine)
    # The prefill: 200 tokens at 0.1 ms beat the floor, and 200 * 201 / 2 = 20,100 pairs.
    first = 1.0 + 0.002 + 0.020 + 20_100 * 1e-7
    # Then the context is 201 and 202 tokens, each read once.
    second = first + 0.002 + 0.010 + 201e-6
    third = second + 0.002 + 0.010 + 202e-6
    assert [one.at_s for one in out] == pytest.approx([first, second, third])
    found = [(one.seq_id, one.new_tokens, one.finished) for one in out]
    assert found == [("a", 1, None), ("a", 1, None), ("a", 1, "stop")]
    assert engine.next_at() is None
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert (engine.prompt_tokens_total, engine.generation_tokens_total) == (200, 3)


def test_nothing_is_given_out_before_the_step_ends() -> None:
    engine = Engine(PROFILE)
    engine.submit(seq("a", 10, 2), 0.0)
    at = engine.next_at()
    assert engine.advance(at - 1e-9) == []
    assert engine.running == 1
    assert [one.at_s for one in engine.advance(at)] == [at]


def test_arrivals_at_one_moment_share_a_step_and_later_ones_wait() -> None:
    engine = Engine(PROFILE)
    a, b, c = seq("a", 50, 5), seq("b", 50, 5), seq("c", 50, 5)
    engine.submit(a, 0.0)
    engine.submit(b, 0.0)
    end = engine.next_at()
    engine.submit(c, end / 2)
    assert (engine.running, engine.waiting) == (2, 1)
    run(engine)
    assert (a.admitted_at_s, b.admitted_at_s, c.admitted_at_s) == (0.0, 0.0, end)
    assert a.first_token_at_s == b.first_token_at_s == end


def test_chunked_prefill_interleaves_with_decode() -> None:
    engine = Engine(PROFILE)
    engine.submit(seq("decoding", 10, 30), 0.0)
    engine.submit(seq("long", 1000, 2), 0.0)
    out = run(engine)
    # The first step has 10 + 246 tokens, the next ones 1 + 255, 1 + 255 and 1 + 244.
    first_of_long = tokens_of(out, "long")[0]
    assert sum(at <= first_of_long for at in tokens_of(out, "decoding")) == 4
    prefilling = PROFILE.step_s(255, 1, 11, 255 * (246 + 256 / 2))
    gap = tokens_of(out, "decoding")[1] - tokens_of(out, "decoding")[0]
    assert gap == pytest.approx(prefilling)


def test_seats_are_limited_and_first_come_first_served() -> None:
    engine = Engine(small(max_seqs=2))
    all_of_them = [seq(str(number), 20, 4) for number in range(5)]
    for one in all_of_them:
        engine.submit(one, 0.0)
    assert engine.next_at() is not None
    assert (engine.running, engine.waiting) == (2, 3)
    run(engine)
    admitted = [one.admitted_at_s for one in all_of_them]
    assert None not in admitted
    assert admitted == sorted(admitted, key=lambda at: at or 0.0)
    assert len(set(admitted)) == 3


def test_lengths_that_do_not_fit() -> None:
    engine = Engine(PROFILE, context_tokens=100)
    with pytest.raises(PromptTooLong, match="prompt of 100 tokens, the limit is 100 "):
        engine.submit(seq("long", 100, 1), 0.0)
    engine.submit(seq("cut", 98, 50), 0.0)
    out = run(engine)
    assert len(out) == 2
    assert out[-1].finished == "length"
    with pytest.raises(PromptTooLong):
        Engine(small(kv_capacity_tokens=64)).submit(seq("long", 64, 1), 0.0)
    with pytest.raises(ValueError, match="at least one prompt token"):
        engine.submit(seq("empty", 0, 1), 1.0)
    engine.submit(seq("twice", 5, 5), 1.0)
    with pytest.raises(ValueError, match="already"):
        engine.submit(seq("twice", 5, 5), 1.0)


def test_a_profile_that_cannot_decode_all_its_seats_is_refused() -> None:
    with pytest.raises(ValueError, match="max_batched_tokens"):
        Engine(small(max_batched_tokens=4))
    with pytest.raises(ValueError, match="no block"):
        Engine(small(kv_capacity_tokens=15))


def test_prefill_only() -> None:
    engine = Engine(PROFILE)
    engine.submit(seq("embedding", 300, 0), 0.0)
    out = run(engine)
    assert [(one.new_tokens, one.finished) for one in out] == [(0, "stop")]
    assert engine.generation_tokens_total == 0
    assert engine.kv_usage == 0.0


def test_finish_reason_is_the_callers() -> None:
    engine = Engine(PROFILE)
    engine.submit(Sequence("a", 10, 2, finish="length"), 0.0)
    assert run(engine)[-1].finished == "length"


def test_preemption_recomputes_and_recovers() -> None:
    # 8 blocks: two sequences of 48 + 40 tokens need 6 each.
    engine = Engine(small(kv_capacity_tokens=128), prefix_caching=False)
    first, second = seq("first", 48, 40), seq("second", 48, 40)
    engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    out = run(engine)
    assert engine.preemptions_total >= 1
    for name in ("first", "second"):
        times = tokens_of(out, name)
        assert len(times) == 40
        assert times == sorted(times)
    # The one admitted first is never the one preempted, so it ends first.
    assert tokens_of(out, "first")[-1] < tokens_of(out, "second")[-1]
    # Recomputing prompt and output counts neither twice.
    assert (engine.prompt_tokens_total, engine.generation_tokens_total) == (96, 80)
    assert engine.kv_usage == 0.0


def test_a_preempted_sequence_comes_back_before_others_but_not_in_the_same_step() -> None:
    # Chunks of 13 tokens at most need one block: the victim would find room at once.
    engine = Engine(small(kv_capacity_tokens=128, max_batched_tokens=16, max_seqs=2), prefix_caching=False)
    for name in ("first", "victim", "waits"):
        engine.submit(seq(name, 48, 40), 0.0)
    while (at := engine.next_at()) is not None and engine.preemptions_total == 0:
        engine.advance(at)
    assert engine.preemptions_total == 1
    assert (engine.running, engine.waiting) == (1, 2)
    ends = {one.seq_id: one.at_s for one in run(engine) if one.finished}
    assert ends["first"] < ends["victim"] < ends["waits"]


@pytest.mark.parametrize("hashed", [0, 1, 3])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_preempted_sequence_finds_its_prompt_in_the_cache(hashed: int, chunked: bool) -> None:
    def ends(prefix_caching: bool, hashed: int) -> dict[str, float]:
        settings = small(kv_capacity_tokens=176, chunked_prefill=chunked, max_batched_tokens=300)
        engine = Engine(settings, prefix_caching=prefix_caching)
        for number, (name, output) in enumerate((("first", 30), ("victim", 100))):
            hashes = tuple(range(10 * number, 10 * number + hashed))
            engine.submit(seq(name, 70, output, hashes), 0.0)
        out = run(engine)
        assert engine.preemptions_total == 1
        assert engine.kv_usage == 0.0
        return {one.seq_id: one.at_s for one in out if one.finished}

    cached, all_again = ends(True, hashed), ends(False, hashed)
    assert cached["victim"] < all_again["victim"]
    # As a prompt of which every block has a hash.
    assert cached == pytest.approx(ends(True, 4))


def test_prefix_hits_shorten_the_prefill() -> None:
    shared = tuple(range(12))
    engine = Engine(PROFILE)
    engine.submit(seq("cold", 200, 1, shared), 0.0)
    cold_s = run(engine)[-1].at_s
    warm = seq("warm", 200, 1, shared)
    engine.submit(warm, 10.0)
    warm_s = run(engine)[-1].at_s - 10.0
    assert warm.cached_tokens == 192
    assert warm_s == pytest.approx(PROFILE.step_s(8, 0, 0, 8 * (192 + 4.5)))
    assert warm_s < cold_s
    assert (engine.prefix_queries_total, engine.prefix_hits_total) == (400, 192)


def test_the_last_token_of_a_cached_prompt_is_computed() -> None:
    engine = Engine(PROFILE)
    for name in ("cold", "warm"):
        one = seq(name, 32, 1, (1, 2))
        engine.submit(one, 0.0 if name == "cold" else 1.0)
        run(engine)
    assert one.cached_tokens == 16


def test_prefix_caching_can_be_off() -> None:
    engine = Engine(PROFILE, prefix_caching=False)
    for at in (0.0, 1.0):
        one = seq("a", 64, 1, (1, 2, 3, 4))
        engine.submit(one, at)
        run(engine)
    assert one.cached_tokens == 0
    assert engine.prefix_queries_total == 128
    assert engine.prefix_hits_total == 0


def test_a_shared_prefix_is_held_once() -> None:
    shared = tuple(range(8))
    engine = Engine(small(kv_capacity_tokens=160))
    engine.submit(seq("a", 136, 10, shared), 0.0)
    engine.submit(seq("b", 136, 10, shared), 0.0)  # found in the very step that computes it
    assert engine.next_at() is not None
    # 9 blocks of the one, and of the other the last only: together they would not fit without sharing.
    assert engine.running == 2
    assert engine.kv_usage == 1.0
    run(engine)


def test_abort_frees_blocks_in_mid_step() -> None:
    engine = Engine(PROFILE)
    for name in ("a", "b", "waits"):
        engine.submit(seq(name, 200, 50), 0.0)
    at = engine.next_at()
    engine.abort("waits", at / 2)
    engine.abort("a", at / 2)
    engine.abort("unknown", at / 2)
    assert engine.next_at() == at  # the step under way keeps its length
    out = run(engine)
    assert {one.seq_id for one in out} == {"b"}
    assert len(out) == 50
    assert engine.kv_usage == 0.0
    engine.submit(seq("a", 5, 1), 100.0)  # the name is free again
    assert [one.seq_id for one in run(engine)] == ["a"]


def test_abort_of_a_decoding_sequence() -> None:
    engine = Engine(PROFILE)
    engine.submit(seq("a", 15, 50), 0.0)
    engine.submit(seq("b", 15, 5), 0.0)
    for _ in range(3):
        at = engine.next_at()
        assert at is not None
        engine.advance(at)
    assert engine.abort("a", at) == 3  # tokens that it had
    assert engine.abort("a", at) == 0
    out = run(engine)
    assert {one.seq_id for one in out} == {"b"}
    assert engine.kv_usage == 0.0


def test_progress_ended_by_a_submission_is_not_lost() -> None:
    engine = Engine(PROFILE)
    engine.submit(seq("a", 10, 2), 0.0)
    engine.submit(seq("b", 10, 2), 5.0)  # far after the end of the first
    assert [one.seq_id for one in engine.advance(5.0)] == ["a", "a"]
    assert [one.seq_id for one in run(engine)] == ["b", "b"]


def test_without_every_token_first_and_last_are_told() -> None:
    engine = Engine(PROFILE, every_token=False)
    engine.submit(seq("a", 10, 100), 0.0)
    out = run(engine)
    assert [(one.new_tokens, one.finished) for one in out] == [(1, None), (99, "stop")]


def test_a_long_stretch_is_cut_by_an_arrival() -> None:
    slow, fast = Engine(PROFILE), Engine(PROFILE, every_token=False)
    ends: list[dict[str, float]] = []
    for engine in (slow, fast):
        engine.submit(seq("a", 10, 500), 0.0)
        out = engine.advance(1.0)
        engine.submit(seq("b", 10, 20), 1.0001)
        engine.abort("unknown", 1.1)
        out += run(engine)
        ends.append({one.seq_id: one.at_s for one in out if one.finished})
    assert ends[0] == pytest.approx(ends[1])
