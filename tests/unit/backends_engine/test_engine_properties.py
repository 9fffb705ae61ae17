"""What holds for every load: limits, conservation, determinism, and agreement of the two ways to step."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine import Engine, Progress, Sequence
from router.core.profile import EngineProfile

PROFILE = EngineProfile(
    "test", 0.002, 0.01, 1e-4, 1e-6, 1e-8, kv_capacity_tokens=1024, max_batched_tokens=64, max_seqs=6
)

WHOLE_PROMPTS = dataclasses.replace(  # 150 blocks, of which an admission leaves one free
    PROFILE, kv_capacity_tokens=2400, max_batched_tokens=600, chunked_prefill=False
)
PROFILES = st.sampled_from([PROFILE, WHOLE_PROMPTS])


@dataclasses.dataclass(frozen=True)
class Arrival:
    wait_s: float
    prompt: int
    output: int
    group: int  # arrivals of one group share the beginning of their prompts
    abort_after_s: float | None


arrivals = st.lists(
    st.builds(
        Arrival,
        st.floats(0, 0.3),
        st.integers(1, 400),
        st.integers(0, 120),
        st.integers(0, 3),
        st.none() | st.floats(0, 2),
    ),
    min_size=1,
    max_size=25,
)


def check_limits(engine: Engine) -> None:
    assert 0 <= engine.kv.free <= engine.kv.total
    assert 0.0 <= engine.kv_usage <= 1.0
    assert engine.running <= engine.profile.max_seqs
    assert engine.running + engine.waiting == len(engine._all)
    prefill = sum(count for _, count in engine._chunks)
    decoding = engine._decoding
    tokens = prefill + len(decoding.sequences) * (not engine._prompts_only)
    assert tokens <= engine.profile.max_batched_tokens
    if engine._stretch and not engine.profile.chunked_prefill:
        assert engine._prompts_only == bool(engine._chunks)
    assert decoding.context_tokens == sum(one.offset + decoding.steps for one in decoding.sequences.values())


def play(engine: Engine, load: list[Arrival]) -> tuple[list[Progress], set[str]]:
    events: list[tuple[float, int, Sequence | None]] = []
    at_s = 0.0
    for number, one in enumerate(load):
        at_s += one.wait_s
        blocks = one.prompt // engine.profile.block_tokens
        prefix = tuple(1000 * one.group + block for block in range(blocks))
        events.append((at_s, number, Sequence(str(number), one.prompt, one.output, prefix)))
        if one.abort_after_s is not None:
            events.append((at_s + one.abort_after_s, number, None))
    out: list[Progress] = []
    aborted: set[str] = set()
    for now, number, sequence in sorted(events, key=lambda event: event[:2]):
        while (at := engine.next_at()) is not None and at <= now:
            check_limits(engine)
            out += engine.advance(at)
        out += engine.advance(now)
        if sequence is not None:
            engine.submit(sequence, now)
        else:
            if str(number) in engine._all:
                aborted.add(str(number))
            engine.abort(str(number), now)
        check_limits(engine)
    for _ in range(100_000):
        at = engine.next_at()
        if at is None:
            break
        check_limits(engine)
        out += engine.advance(at)
    return out, aborted


def check_conserved(engine: Engine, load: list[Arrival], out: list[Progress], aborted: set[str]) -> None:
    ended = Counter(one.seq_id for one in out if one.finished)
    given_out: Counter[str] = Counter()
    for one in out:
        given_out[one.seq_id] += one.new_tokens
    for number, arrival in enumerate(load):
        name = str(number)
        if name in aborted:
            assert ended[name] == 0
            assert given_out[name] <= arrival.output
        else:
            assert ended[name] == 1
            assert given_out[name] == arrival.output
    assert (engine.running, engine.waiting) == (0, 0)
    assert engine.kv.free == engine.kv.total
    assert [one.at_s for one in out] == sorted(one.at_s for one in out)


@given(load=arrivals, caching=st.booleans(), one=PROFILES)
def test_every_sequence_ends_once_within_the_limits(
    load: list[Arrival], caching: bool, one: EngineProfile
) -> None:
    engine = Engine(one, prefix_caching=caching)
    out, aborted = play(engine, load)
    check_conserved(engine, load, out, aborted)
    assert engine.generation_tokens_total == sum(one.new_tokens for one in out)
    assert engine.prefix_hits_total <= engine.prefix_queries_total
    assert caching or not engine.prefix_hits_total


@given(load=arrivals, one=PROFILES)
def test_stretches_agree_with_single_steps(load: list[Arrival], one: EngineProfile) -> None:
    calm = [dataclasses.replace(one, abort_after_s=None) for one in load]
    ends = []
    engines = [Engine(one), Engine(one, every_token=False)]
    for engine in engines:
        out, aborted = play(engine, calm)
        check_conserved(engine, calm, out, aborted)
        ends.append({one.seq_id: one.at_s for one in out if one.finished})
    assert ends[0] == pytest.approx(ends[1])
    assert engines[0].preemptions_total == engines[1].preemptions_total
    assert engines[0].prefix_hits_total == engines[1].prefix_hits_total


@given(load=arrivals, one=PROFILES)
def test_stretches_with_aborts_stay_within_the_limits(load: list[Arrival], one: EngineProfile) -> None:
    engine = Engine(one, every_token=False)
    out, aborted = play(engine, load)
    check_conserved(engine, load, out, aborted)


def test_the_same_load_gives_the_same_progress() -> None:
    load = [Arrival(0.01 * (n % 5), 37 * (n % 11) + 1, 13 * (n % 7), n % 3, None) for n in range(60)]
    first, second = Engine(PROFILE), Engine(PROFILE)
    assert play(first, load) == play(second, load)
    assert first.preemptions_total == second.preemptions_total > 0
