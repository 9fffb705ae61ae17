"""A key's reservation: taken all or nothing, grown on demand, and closed once, whatever still runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from router.config import KeyConfig
from router.core.errors import Refusal
from router.core.money.quote import Quote
from router.core.money.reservation import Funding
from router.gateway.keys.accounts import TOTAL, Account, KeyBudget
from router.gateway.keys.admission import BudgetAdmission, Headers, KeyReservation
from router.gateway.keys.recorded_spending import rolled_up
from router.gateway.keys.tenants import Tenants
from router.store.keys import StoredKey
from router.store.memory_state import MemoryState
from router.store.state import Bucket, Budget, Claim, Grant
from tests.integration.budgets.audit import Audited

NOW = 1_800_000_000.0
QUOTE = Quote(least_usd=1.0, first_usd=4.0, step_usd=3.0, most_usd=100.0)


@dataclass
class World:
    """The budgets of one gateway, with a clock that stands still."""

    state: Audited
    budget_admission: BudgetAdmission

    async def open(
        self, account: Account, tokens: float, quote: Quote | None, headers: Headers, now: float = NOW
    ) -> KeyReservation:
        try:
            reservation = await self.budget_admission.enter(account, now, headers)
        except Refusal:  # as a small body is: with what it needs
            reservation = await self.budget_admission.enter(account, now, headers, tokens)
        try:
            await self.budget_admission.hold(reservation, tokens, quote, headers)
        except Refusal:
            reservation.cancel()
            raise
        return reservation

    async def reservation(self, budget_usd: float = 100.0, quote: Quote = QUOTE) -> KeyReservation:
        account = Account("k", key_budgets=(KeyBudget("k", total_usd=budget_usd),))
        return await self.open(account, 10, quote, [])

    @property
    def held_usd(self) -> float:
        return self.state.reserved.get(("k", TOTAL), 0.0)

    @property
    def spent_usd(self) -> float:
        return self.state.spent_usd("k", TOTAL)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    state = Audited()
    budget_admission = BudgetAdmission(state, lambda: NOW)
    yield World(state, budget_admission)
    await budget_admission.aclose()
    assert not state.reserved
    assert not state.broken


async def turns() -> None:
    """Let the loop do what it has to do."""
    for _ in range(10):
        await asyncio.sleep(0)


async def grown(reservation: KeyReservation, usd: float) -> tuple[float, float | None] | None:
    """What `grow` says; None if it says nothing."""
    answers: list[tuple[float, float | None]] = []
    reservation.grow(usd, lambda reserved_usd, left_usd: answers.append((reserved_usd, left_usd)))
    await turns()
    return answers[0] if answers else None


async def test_it_begins_with_what_was_quoted_and_grows_on_demand(world: World) -> None:
    reservation = await world.reservation(6.0)
    assert reservation.funding == Funding(4.0, 6.0, 3.0, 100.0)
    assert await grown(reservation, 1.5) == (1.5, 2.0)
    assert world.held_usd == 5.5
    assert await grown(reservation, 1.5) == (0.5, 0.5)  # what there is
    assert await grown(reservation, 1.5) == (0.0, 0.0)
    with pytest.raises(Refusal, match="spent, or reserved") as caught:
        await world.reservation(6.0)
    assert (caught.value.code, caught.value.should_retry) == ("insufficient_quota", False)
    reservation.close(6.0, 5.5)
    assert (world.held_usd, world.spent_usd) == (0.0, 5.5)


async def test_what_others_held_may_come_back(world: World) -> None:
    reservation, other = await world.reservation(8.0), await world.reservation(8.0)
    assert await grown(reservation, 1.0) == (0.0, 0.0)
    other.close(4.0, 1.0)
    assert await grown(reservation, 4.0) == (3.0, 3.0)
    reservation.close(7.0, 7.0)
    assert world.spent_usd == 8.0


async def test_what_an_engine_made_beyond_what_was_held_is_spent_too(world: World) -> None:
    reservation = await world.reservation(5.0)
    reservation.close(4.0, 9.0)
    assert world.spent_usd == 9.0
    with pytest.raises(Refusal, match="spent"):
        await world.reservation(5.0)
    assert world.state.beyond_usd["k", TOTAL] == 5.0


async def test_it_is_closed_once(world: World) -> None:
    reservation = await world.reservation()
    reservation.close(4.0, 2.0)
    reservation.close(4.0, 2.0)
    reservation.cancel()
    assert world.spent_usd == 2.0


async def test_a_request_that_was_not_sent_gives_all_back(world: World) -> None:
    reservation = await world.reservation()
    reservation.cancel()
    assert (world.held_usd, world.spent_usd) == (0.0, 0.0)


async def test_money_that_comes_too_late_is_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reservation = await world.reservation()
    take, arrives = world.state.take, asyncio.Event()

    async def slowly(want: Claim, now: float) -> Grant:
        grant = await take(want, now)
        await arrives.wait()
        return grant

    monkeypatch.setattr(world.state, "take", slowly)
    answers: list[float] = []
    reservation.grow(6.0, lambda reserved_usd, _: answers.append(reserved_usd))
    await turns()
    assert world.held_usd == 10.0  # decided, and on its way
    reservation.close(4.0, 3.0)
    arrives.set()
    await world.budget_admission.aclose()
    assert (world.held_usd, world.spent_usd, answers) == (0.0, 3.0, [])


async def test_a_state_that_fails_gives_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reservation = await world.reservation()

    async def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(world.state, "take", broken)
        assert await grown(reservation, 4.5) == (0.0, None)
    assert await grown(reservation, 4.5) == (4.5, 96.0)
    reservation.close(8.5, 4.5)


async def test_limits_and_budgets_are_taken_together(world: World) -> None:
    """All or nothing, of the key and of the keys that made it."""
    requests = (Bucket("k/requests", 4, 0.5), Bucket("m/requests", 5, 0.5))
    tokens = (Bucket("k/tokens", 50, 1.0), Bucket("m/tokens", 1000, 1.0))
    account = Account("k", requests, tokens, (KeyBudget("k"), KeyBudget("m", per_day_usd=9.0)))
    headers: Headers = []
    first = await world.open(account, 70, QUOTE, headers)
    assert dict(headers)[b"x-ratelimit-remaining-requests"] == b"3"
    # An estimate beyond the bucket takes all of it.
    assert dict(headers)[b"x-ratelimit-remaining-tokens"] == b"0"
    assert world.state.reserved == {
        (key, period): 4.0 for key in ("k", "m") for period in ("2027-01-15", TOTAL)
    }
    headers.clear()
    with pytest.raises(Refusal, match="The key's tokens per minute") as caught:
        await world.open(account, 70, QUOTE, headers)
    assert (caught.value.code, caught.value.retry_after_s) == ("rate_limit_exceeded", pytest.approx(50.0))
    assert dict(headers)[b"x-ratelimit-remaining-requests"] == b"3"  # nothing was left: it has taken nothing
    assert set(world.state.reserved.values()) == {4.0}
    first.close(4.0, 8.5, 20)
    again = await world.open(account, 0, Quote(0.1, 0.1, 0.1, 0.1), headers)
    with pytest.raises(Refusal, match="made this key for today") as caught:
        await world.open(account, 0, QUOTE, headers)
    assert caught.value.code == "insufficient_quota"
    again.cancel()
    headers.clear()
    (await world.open(account, 0, Quote(0.1, 0.1, 0.1, 0.1), headers)).cancel()
    assert dict(headers)[b"x-ratelimit-remaining-tokens"] == b"30"  # 20 of 50 were used


async def test_tokens_that_were_not_used_come_back(world: World) -> None:
    bucket = Bucket("k/tokens", 100, 1.0)
    account = Account("k", tokens=(bucket,), key_budgets=(KeyBudget("k"),))
    for used, left in ((0, b"100"), (10, b"90"), (15, b"75"), (None, b"15")):
        reservation = await world.open(account, 60, None, [])
        reservation.close(0.0, 0.0, used)
        headers: Headers = []
        (await world.open(account, 0, None, headers)).cancel()
        assert dict(headers)[b"x-ratelimit-remaining-tokens"] == left


async def test_without_limits_nothing_is_taken_but_spend_is_counted(world: World) -> None:
    reservation = await world.open(Account("k", key_budgets=(KeyBudget("k"), KeyBudget("m"))), 10, None, [])
    assert (world.state.takes, reservation.funding) == (0, None)
    reservation.close(0.0, 2.0)
    assert world.state.spent_usd("k", TOTAL) == world.state.spent_usd("m", "2027-01-15") == 2.0


async def test_a_day_is_the_requests_whole_life(world: World) -> None:
    """Who arrives before midnight spends of that day's budget, whenever it ends."""
    now = [1_799_971_199.0]  # a second before midnight
    world.budget_admission.clock = lambda: now[0]
    account = Account("k", key_budgets=(KeyBudget("k", per_day_usd=10.0),))
    late = await world.open(account, 0, QUOTE, [], now[0])
    now[0] += 2
    early = await world.open(account, 0, QUOTE, [], now[0])
    assert await grown(late, 5.0) == (5.0, 6.0)
    assert await grown(early, 5.0) == (5.0, 6.0)
    late.close(9.0, 9.0)
    assert world.state.spent_usd("k", "2027-01-14") == 9.0
    assert world.state.spent_usd("k", "2027-01-15") == 0.0
    early.close(9.0, 8.0)
    assert world.state.spent_usd("k", "2027-01-15") == 8.0
    assert world.state.spent_usd("k", TOTAL) == 17.0


def test_what_a_key_spent_counts_for_those_that_made_it() -> None:
    tenants = Tenants([KeyConfig(name="a", sha256="0" * 64)], [StoredKey("b", "1" * 64, "a", "{}", NOW)])
    spent = {
        ("a", TOTAL): {"x": 1.0},
        ("b", TOTAL): {"x": 2.0, "y": 4.0},
        ("gone", TOTAL): {"x": 8.0},
        ("", TOTAL): {"x": 9.0},
    }
    assert rolled_up(spent, tenants) == {
        ("a", TOTAL): {"x": 3.0, "y": 4.0},
        ("b", TOTAL): {"x": 2.0, "y": 4.0},
        ("gone", TOTAL): {"x": 8.0},
    }


async def test_only_so_many_are_under_way_at_once(world: World) -> None:
    """Of the key and of the keys that made it, whatever becomes of a request."""
    slots = (Budget("k/slots", TOTAL, 2.0), Budget("m/slots", TOTAL, 3.0))
    account, maker = Account("k", slots=slots), Account("m", slots=slots[1:])
    first, second = [await world.budget_admission.enter(account, NOW, []) for _ in range(2)]
    with pytest.raises(Refusal, match=r"^The key has reached its max_concurrency") as caught:
        await world.budget_admission.enter(account, NOW, [])
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
    third = await world.budget_admission.enter(maker, NOW, [])
    first.cancel()
    first.cancel()
    with pytest.raises(Refusal, match=r"^The key has"):
        await world.budget_admission.enter(maker, NOW, []) and await world.budget_admission.enter(
            maker, NOW, []
        )
    with pytest.raises(Refusal, match=r"^A key that made this key has"):
        await world.budget_admission.enter(account, NOW, [])
    # Nor with a bound of its maker's alone.
    with pytest.raises(Refusal, match=r"^A key that made this key has"):
        await world.budget_admission.enter(Account("j", slots=slots[1:]), NOW, [])
    assert world.state.reserved == {("k/slots", TOTAL): 1.0, ("m/slots", TOTAL): 3.0}
    world.state.settle(slots[1:], 1.0, 0.0)
    for reservation in (second, third):
        reservation.cancel()


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_a_clock_that_is_set_back_starves_no_bucket(steps: list[float]) -> None:
    """However the clock jumped before, what was taken is back a minute after the last take."""
    state, bucket = MemoryState(), Bucket("k/requests", 3, 3 / 60)

    async def run() -> None:
        now = NOW
        for step in steps:
            now += step
            await state.take(Claim([(bucket, 1.0)]), now)
        await state.take(Claim([(bucket, 1.0)]), now)
        assert (await state.take(Claim([(bucket, 3.0)]), now + 60)).given

    asyncio.run(run())
