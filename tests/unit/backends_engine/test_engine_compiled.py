"""The compiled engine gives out what the engine in Python gives out, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine import batching, compiled
from router.core.profile import EngineProfile
from tests.unit.backends_engine.loads import PROFILE, WHOLE_PROMPTS, Arrival, Outcome, loads, play

pytestmark = pytest.mark.skipif(compiled.WHY_NOT_NATIVE is not None, reason=str(compiled.WHY_NOT_NATIVE))


@given(
    load=loads(600),
    one=st.sampled_from([PROFILE, WHOLE_PROMPTS]),
    unit=st.sampled_from([16, 64]),
    caching=st.booleans(),
    every_token=st.booleans(),
)
def test_both_are_the_same(
    load: list[Arrival], one: EngineProfile, unit: int, caching: bool, every_token: bool
) -> None:
    def played(kind: Callable[..., batching.Engine]) -> tuple[Outcome, object, list[tuple[float, int]]]:
        engine = kind(one, prefix_caching=caching, every_token=every_token)
        gaps: list[tuple[float, int]] = []
        engine.on_gaps = lambda gap_s, count: gaps.append((gap_s, count))
        outcome, out = play(engine, load, unit)
        return outcome, out, gaps

    assert compiled.Engine is not batching.Engine
    assert played(compiled.Engine) == played(batching.Engine)
