"""Token buckets under a clock of our own."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.store.memory_state import MemoryState
from router.store.redis_link import Link
from router.store.state import Bucket, Budget, Claim


@given(capacity=st.integers(1, 20), steps=st.lists(st.floats(0.0, 5.0, allow_nan=False), max_size=60))
def test_never_more_than_capacity_and_refill(capacity: int, steps: list[float]) -> None:
    """However requests arrive, no window holds more than the capacity and what refilled during it."""
    rate = capacity / 60.0

    async def granted_at() -> list[float]:
        state, bucket, now, times = MemoryState(), Bucket("b", float(capacity), rate), 50.0, []
        for step in steps:
            now += step
            if (await state.take(Claim([(bucket, 1.0)]), now)).given:
                times.append(now)
        return times

    times = asyncio.run(granted_at())
    for i, start in enumerate(times):
        for j in range(i, len(times)):
            assert j - i + 1 <= capacity + rate * (times[j] - start) + 1e-6


# --- money --------------------------------------------------------------------------------------------
async def test_what_killed_runs_spent_may_be_told_late_and_twice() -> None:
    state, name = MemoryState(), ("k", "total")
    budget = [Budget(*name, 1.0)]
    state.load_spent({name: {"run-1": 0.2}})
    state.settle(budget, 0.0, 0.3)
    state.load_spent({name: {"run-1": 0.4}})  # the store knows more of it by now
    state.load_spent({name: {"run-1": 0.1}})
    assert state.spent_usd(*name) == pytest.approx(0.7)
    grant = await state.take(Claim((), budget, 1.0, 0.0), 0.0)
    assert grant.reserved_usd == pytest.approx(0.3)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cr/et@h",
        "redis://:s3cr#et@h:1",
        "rediss://u:s3cr@h:port",
        "redis://:s3cr@h?socket_timeout=3",
        "redis://:s3cr@h?ssl_ca_certs=/etc/ca.pem",
    ],
)
def test_a_wrong_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="state") as told:
        Link(url, 1.0)
    assert "s3cr" not in str(told.value)
