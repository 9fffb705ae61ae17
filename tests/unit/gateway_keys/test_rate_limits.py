"""Requests and tokens a minute, of a key and of those that made it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from router.core.errors import Refusal
from router.core.types import Outcome
from router.gateway.keys.admission import BudgetAdmission, KeyReservation
from router.gateway.keys.tenants import Tenants, key_of
from router.store.keys import StoredKey
from router.store.memory_state import MemoryState
from router.store.redis_state import RedisState
from router.store.state import State


class Limited:
    """A key `team-a` of the fleet file and, below it, `made` of the table."""

    def __init__(self, *, made: dict[str, Any] | None = None, state: State | None = None, **settings: Any):
        digest = hashlib.sha256(b"a").hexdigest()
        row = StoredKey("made", hashlib.sha256(b"b").hexdigest(), "team-a", json.dumps(made or {}), 1.0)
        self._tenants = Tenants([key_of("team-a", digest, settings)], [row])
        self._now = 0.0
        self._admission = BudgetAdmission(state or MemoryState(), lambda: self._now)

    async def admit(
        self, now: float, tokens: float = 0.0, name: str = "team-a"
    ) -> tuple[KeyReservation, dict[str, str]]:
        self._now = now
        headers: list[tuple[bytes, bytes]] = []
        reservation = None
        try:
            try:
                reservation = await self._admission.enter(self._tenants.account(name), now, headers)
            except Refusal:  # as a small body is: with what it needs
                reservation = await self._admission.enter(self._tenants.account(name), now, headers, tokens)
            await self._admission.hold(reservation, tokens, None, headers)
        except Refusal:
            if reservation is not None:
                reservation.cancel()
            raise
        finally:
            self.headers = {name.decode(): value.decode() for name, value in headers}
        return reservation, self.headers

    async def refused(
        self, now: float, tokens: float = 0.0, name: str = "team-a"
    ) -> tuple[Refusal, dict[str, str]]:
        with pytest.raises(Refusal) as refusal:
            await self.admit(now, tokens, name)
        return refusal.value, self.headers


async def test_three_a_minute_are_three_at_once() -> None:
    key = Limited(requests_per_minute=3)
    for remaining, reset in ((2, "20s"), (1, "40s"), (0, "1m0s")):
        _, headers = await key.admit(100.0)
        assert headers == {
            "x-ratelimit-limit-requests": "3",
            "x-ratelimit-remaining-requests": str(remaining),
            "x-ratelimit-reset-requests": reset,
        }
    refusal, headers = await key.refused(100.0)
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    assert refusal.outcome == Outcome.REJECTED_RATE
    assert refusal.retry_after_s == pytest.approx(20.0)
    assert headers["x-ratelimit-remaining-requests"] == "0"
    for _ in range(5):  # refused ones cost nothing
        refusal, _ = await key.refused(119.0)
    assert refusal.retry_after_s == pytest.approx(1.0)
    await key.admit(120.0)
    await key.refused(120.0)


async def test_more_than_was_reserved_is_a_debt() -> None:
    key = Limited(tokens_per_minute=600)
    reservation, _ = await key.admit(0.0, tokens=100)
    reservation.close(0.0, 0.0, 1000)
    refusal, headers = await key.refused(0.0, tokens=20)
    assert refusal.retry_after_s == pytest.approx(42.0)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    await key.admit(42.0, tokens=20)


async def test_a_request_refused_for_tokens_takes_no_request_where_none_are_left() -> None:
    key = Limited(requests_per_minute=2, tokens_per_minute=60)
    await key.admit(0.0, tokens=60)
    refusal, headers = await key.refused(0.0, tokens=30)
    assert "tokens" in refusal.message
    assert refusal.retry_after_s == pytest.approx(30.0)
    assert headers["x-ratelimit-remaining-requests"] == "1"


async def test_a_request_that_is_read_before_it_is_refused_takes_one() -> None:
    key = Limited(requests_per_minute=3, tokens_per_minute=60)
    await key.admit(0.0, tokens=30)
    refusal, headers = await key.refused(0.0, tokens=40)
    assert "tokens" in refusal.message
    assert refusal.retry_after_s == pytest.approx(10.0)
    assert headers["x-ratelimit-remaining-requests"] == "1"
    _, headers = await key.admit(0.0, tokens=30)  # no token was taken
    assert headers["x-ratelimit-remaining-tokens"] == "0"


async def test_a_made_key_takes_from_its_maker_and_never_more_than_its_own() -> None:
    key = Limited(requests_per_minute=3, made={"requests_per_minute": 2})
    for _ in range(2):
        await key.admit(0.0, name="made")
    refusal, headers = await key.refused(0.0, name="made")
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert refusal.retry_after_s == pytest.approx(30.0)
    _, headers = await key.admit(0.0)
    assert headers["x-ratelimit-remaining-requests"] == "0"
    await key.refused(0.0)
    # Its own limit has room again at 30 s; its maker's has had since 20 s, and gives the last of it away.
    await key.admit(30.0)
    await key.refused(30.0, name="made")


async def test_new_settings_of_a_key_refill_nothing() -> None:
    state = MemoryState()
    await Limited(requests_per_minute=1, state=state).admit(0.0)
    await Limited(requests_per_minute=1, state=state).refused(0.0)
    _, headers = await Limited(state=state).admit(0.0)  # no limit any more
    assert headers == {}


async def test_without_redis_more_tokens_than_the_share_holds_pass_when_it_is_full() -> None:
    alone = RedisState(
        "redis://127.0.0.1:1", name="n", run_id="r", timeout_s=0.25, interval_s=0.02, replicas=2
    )
    key = Limited(state=alone, tokens_per_minute=600)
    _, headers = await key.admit(0.0, 500.0)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    refusal, _ = await key.refused(0.0, 500.0)
    assert refusal.code == "rate_limit_exceeded"
