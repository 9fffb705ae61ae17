"""A copy of an engine goes on as the engine would have, and what happens to one of them does not reach the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine import Engine, SlotEngine
from backends.engine.shared import SharedEngine
from tests.examples import few_examples
from tests.unit.backends_engine.loads import PROFILE, WHOLE_PROMPTS, Arrival, loads, play

SLOWER = dataclasses.replace(PROFILE, name="slower", per_token_s=3e-4)


def copied(engine: Engine | SlotEngine, now: float) -> Engine | SlotEngine:
    """A copy, while the engine runs on by itself."""
    found = engine.copy()
    engine.advance(now + 30.0)
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda **settings: Engine(PROFILE, **settings),
        lambda **settings: Engine(WHOLE_PROMPTS, **settings),
        lambda **settings: SharedEngine({"a": PROFILE, "b": SLOWER, "c": PROFILE}, **settings),
        lambda **settings: SlotEngine(
            dict.fromkeys("abc", PROFILE), max_loaded_models=2, keep_alive_s=2.0, **settings
        ),
    ],
    ids=["chunks", "whole prompts", "several models", "slots"],
)
@few_examples
@given(load=loads(300), unit=st.sampled_from([16, 64]))
def test_a_copy_goes_on_alone(
    make: Callable[..., Engine | SlotEngine], load: list[Arrival], unit: int
) -> None:
    expected, out = play(make(every_token=False), load, unit)
    found, same = play(make(every_token=False), load, unit, copied)
    assert same == out
    # Times and cached tokens of the sequences are those of the engine that served them last.
    assert found.aborted_after_tokens == expected.aborted_after_tokens
    assert (found.seen, found.totals) == (expected.seen, expected.totals)
