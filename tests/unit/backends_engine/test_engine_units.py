"""Hashes that cover more than one KV block."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine import Engine, Sequence, SlotEngine
from tests.unit.backends_engine.loads import PROFILE as LOADED
from tests.unit.backends_engine.test_engine_batching import run as played

PROFILE = dataclasses.replace(LOADED, kv_capacity_tokens=100_000, max_batched_tokens=100, max_seqs=4, slots=4)
UNIT = 64


def run(engine: Engine | SlotEngine) -> dict[str, float]:
    return {one.seq_id: one.at_s for one in played(engine) if one.finished}


def coarse(name: str, prompt: int, hashes: tuple[int, ...], model: str = "") -> Sequence:
    return Sequence(name, prompt, 5, hashes, model, prefix_tokens=UNIT)


@pytest.mark.parametrize("make", [lambda: Engine(PROFILE), lambda: SlotEngine({"": PROFILE})])
def test_full_units_are_found_again(make: Callable[[], Engine | SlotEngine]) -> None:
    engine = make()
    for number, (prompt, cached) in enumerate(((200, 0), (200, 192), (150, 128), (192, 128), (60, 0))):
        one = coarse(str(number), prompt, (1, 2, 3, 4))
        engine.submit(one, 10.0 * number)
        run(engine)
        assert one.cached_tokens == cached


def test_a_unit_is_evicted_as_a_whole() -> None:
    engine = Engine(dataclasses.replace(PROFILE, kv_capacity_tokens=16 * 16))
    engine.submit(coarse("cold", 200, (1, 2, 3)), 0.0)
    run(engine)
    assert (engine.kv.free, engine.kv_usage) == (16, 0.0)
    engine.submit(Sequence("other", 90, 5), 10.0)  # 6 blocks: 4 were plain, the third unit goes
    run(engine)
    warm = coarse("warm", 200, (1, 2, 3))
    engine.submit(warm, 20.0)
    run(engine)
    assert warm.cached_tokens == 128
    assert engine.kv.free == 16


def test_units_that_are_refused() -> None:
    engine = Engine(PROFILE)
    with pytest.raises(ValueError, match="not a multiple"):
        engine.submit(Sequence("1", 100, 1, (1,), prefix_tokens=40), 0.0)
    with pytest.raises(ValueError, match="not a multiple"):
        SlotEngine({"": PROFILE}).submit(Sequence("1", 100, 1, (1,), prefix_tokens=0), 0.0)
    engine.submit(Sequence("1", 100, 1, prefix_tokens=32), 0.0)  # says nothing without hashes
    engine.submit(coarse("2", 100, (1,)), 0.0)
    engine.submit(Sequence("3", 100, 1), 0.0)
    with pytest.raises(ValueError, match="64 tokens in this engine, not 16"):
        engine.submit(Sequence("4", 100, 1, (1,)), 0.0)
    assert set(run(engine)) == {"1", "2", "3"}


def test_slots_compare_hashes_of_one_length_only() -> None:
    engine = SlotEngine({"": PROFILE}, slots=1)
    engine.submit(coarse("coarse", 200, (1, 2, 3)), 0.0)
    run(engine)
    fine = Sequence("fine", 200, 5, (1, 2, 3))
    engine.submit(fine, 10.0)
    run(engine)
    assert fine.cached_tokens == 0


loads = st.lists(
    st.tuples(
        st.floats(0, 0.2), st.integers(0, 8), st.integers(1, UNIT - 1), st.integers(0, 8), st.integers(0, 2)
    ),
    min_size=1,
    max_size=15,
)


@given(load=loads, slots=st.booleans())
def test_units_do_what_their_blocks_would(load: list[tuple[float, int, int, int, int]], slots: bool) -> None:
    """While nothing is evicted, and the last unit is never full, as where its hash is not known."""
    outcomes = []
    for unit in (UNIT, 16):
        engine = SlotEngine({"": PROFILE}) if slots else Engine(PROFILE)
        at_s = 0.0
        sequences = []
        for number, (wait_s, units, rest, shared, group) in enumerate(load):
            at_s += wait_s
            hashes = [1000 * (group if place < shared else 100 + number) + place for place in range(units)]
            if unit == 16:
                hashes = [10 * one + part for one in hashes for part in range(UNIT // 16)]
            one = Sequence(str(number), units * UNIT + rest, number % 7, tuple(hashes), prefix_tokens=unit)
            engine.submit(one, at_s)
            sequences.append(one)
        ends = run(engine)
        cached = [one.cached_tokens for one in sequences]
        outcomes.append((ends, cached, engine.prefix_hits_total))
    assert outcomes[0] == outcomes[1]
