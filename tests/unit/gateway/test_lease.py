"""A lease: it grows ahead of the need, waits where it must, and is settled once, whatever still runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from router.gateway.keys.quote import Quote

from router.core.errors import Refusal
from router.gateway.keys.accounts import TOTAL, Account, KeyBudget
from router.gateway.keys.admission import BudgetAdmission, rolled_up
from router.gateway.keys.keyring import Headers
from router.gateway.keys.reservation import Reservation
from router.store.records import AttemptRecord, RequestRecord
from router.store.state import Bucket, Budget, MemoryState, Want
from tests.integration.budgets.audit import Audited

NOW = 1_800_000_000.0
QUOTE = Quote(least_usd=1.0, first_usd=4.0, step_usd=3.0, most_usd=100.0)


@dataclass
class World:
    """One till, with a clock that stands still."""

    state: Audited
    budget_admission: BudgetAdmission

    async def open(
        self, account: Account, tokens: float, quote: Quote | None, headers: Headers, now: float = NOW
    ) -> Reservation:
        try:
            reservation = await self.budget_admission.enter(account, now, headers)
        except Refusal:  # as a small body is: with what it needs
            reservation = await self.budget_admission.enter(account, now, headers, tokens)
        try:
            await self.budget_admission.hold(reservation, tokens, quote, headers)
        except Refusal:
            reservation.close(0.0, 0)
            raise
        return reservation

    async def reservation(self, budget_usd: float = 100.0, quote: Quote = QUOTE) -> Reservation:
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


def ended(cost_usd: float = 0.0, prompt: int = 0, output: int = 0) -> RequestRecord:
    record = RequestRecord("r", NOW, cost_usd=cost_usd, prompt_tokens=prompt, output_tokens=output)
    record.attempt_records.append(AttemptRecord(1, "i", "m", NOW, output_tokens=output, billed=output > 0))
    return record


async def test_it_grows_before_it_is_used_up(world: World) -> None:
    reservation = await world.reservation()
    assert (reservation.reserved_usd, reservation.left_usd) == (4.0, 100.0)
    assert reservation.pays(1, 2.5)
    await asyncio.sleep(0)
    assert world.held_usd == 4.0  # half a step is left
    assert reservation.pays(1, 3.5)
    await asyncio.sleep(0)
    assert world.held_usd == reservation.reserved_usd == 7.0
    assert reservation.pays(1, 6.5)
    await asyncio.sleep(0)
    assert world.held_usd == 13.0  # twice the step
    reservation.settle(ended(5.5))
    assert (world.held_usd, world.spent_usd) == (0.0, 5.5)


async def test_it_asks_for_no_more_than_the_request_can_cost(world: World) -> None:
    reservation = await world.reservation(quote=Quote(1.0, 4.0, 3.0, 5.0))
    assert reservation.pays(1, 4.0)
    await asyncio.sleep(0)
    assert world.held_usd == 5.0
    assert reservation.pays(1, 5.0)
    await asyncio.sleep(0)
    assert (world.held_usd, world.state.takes) == (5.0, 2)
    assert await reservation.cover(1, 5.5)  # an engine that does not keep to what was asked of it
    assert world.held_usd > 6.0
    reservation.settle(ended(5.5))


async def test_what_the_budget_does_not_have_is_refused(world: World) -> None:
    reservation = await world.reservation(5.0)
    assert reservation.pays(1, 4.0)
    assert not reservation.pays(1, 4.5)
    assert await reservation.cover(1, 4.5)
    assert world.held_usd == 5.0
    assert not await reservation.cover(1, 5.5)
    takes = world.state.takes
    assert reservation.pays(1, 5.0)
    assert reservation.left_usd == 5.0
    await asyncio.sleep(0)
    assert world.state.takes == takes  # it does not ask at every event
    reservation.settle(ended(5.0))
    with pytest.raises(Refusal, match="spent, or held") as caught:
        await world.reservation(5.0)
    assert (caught.value.code, caught.value.should_retry) == ("insufficient_quota", False)


async def test_it_asks_again_when_it_must(world: World) -> None:
    """What others held may have come back."""
    reservation, other = await world.reservation(8.0), await world.reservation(8.0)
    assert not await reservation.cover(1, 5.0)
    other.settle(ended(1.0))
    assert await reservation.cover(1, 5.0)
    reservation.settle(ended(7.0))
    assert world.spent_usd == 8.0


async def test_attempts_are_paid_out_of_one_lease(world: World) -> None:
    reservation = await world.reservation(5.0)
    assert await reservation.cover(1, 2.0)
    assert await reservation.cover(2, 2.5)
    assert not await reservation.cover(3, 1.0)
    reservation.bill(1, 0.0)
    assert await reservation.cover(3, 1.0)
    reservation.settle(ended(5.0))


async def test_what_an_engine_made_beyond_what_was_held_is_spent_too(world: World) -> None:
    reservation = await world.reservation(5.0)
    reservation.bill(1, 9.0)
    reservation.settle(ended(9.0))
    assert world.spent_usd == 9.0
    with pytest.raises(Refusal, match="spent"):
        await world.reservation(5.0)
    assert world.state.beyond_usd["k", TOTAL] == 5.0


async def test_it_is_settled_once(world: World) -> None:
    reservation = await world.reservation()
    reservation.settle(ended(2.0))
    reservation.settle(ended(2.0))
    assert world.spent_usd == 2.0


@pytest.mark.parametrize("waited_for", [False, True])
async def test_an_answer_that_comes_too_late_is_given_back(world: World, waited_for: bool) -> None:
    reservation = await world.reservation()
    world.state.delay_s = 0.02
    waiting = asyncio.create_task(reservation.cover(1, 6.0)) if waited_for else None
    assert reservation.pays(1, 3.9)
    await asyncio.sleep(0.015)  # decided, and on its way
    assert world.held_usd > 4.0
    reservation.settle(ended(3.0))
    if waiting is not None:
        waiting.cancel()
    await world.budget_admission.aclose()
    assert (world.held_usd, world.spent_usd) == (0.0, 3.0)
    assert not reservation.pays(1, 50.0)
    assert not await reservation.cover(1, 50.0)


async def test_who_waits_may_give_up_alone(world: World) -> None:
    reservation = await world.reservation()
    world.state.delay_s = 0.01
    waiting = [asyncio.create_task(reservation.cover(number, 3.0)) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert await waiting[1]
    assert await waiting[2]
    reservation.settle(ended(9.0))


async def test_a_state_that_fails_pays_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reservation = await world.reservation()

    async def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(world.state, "take", broken)
        assert not await reservation.cover(1, 4.5)
    assert await reservation.cover(1, 4.5)
    reservation.settle(ended(4.5))


async def test_limits_and_budgets_are_taken_together(world: World) -> None:
    """All or nothing, of the key and of the keys that made it."""
    requests = (Bucket("k/requests", 4, 0.5), Bucket("m/requests", 5, 0.5))
    tokens = (Bucket("k/tokens", 50, 1.0), Bucket("m/tokens", 1000, 1.0))
    account = Account("k", requests, tokens, (KeyBudget("k"), KeyBudget("m", per_day_usd=9.0)))
    told: list[tuple[bytes, bytes]] = []
    first = await world.open(account, 70, QUOTE, told)
    assert dict(told)[b"x-ratelimit-remaining-requests"] == b"3"
    assert (
        dict(told)[b"x-ratelimit-remaining-tokens"] == b"0"
    )  # an estimate beyond the bucket takes all of it
    assert world.state.reserved == {
        (key, period): 4.0 for key in ("k", "m") for period in ("2027-01-15", TOTAL)
    }
    told.clear()
    with pytest.raises(Refusal, match="The key's tokens per minute") as caught:
        await world.open(account, 70, QUOTE, told)
    assert (caught.value.code, caught.value.retry_after_s) == ("rate_limit_exceeded", pytest.approx(50.0))
    assert dict(told)[b"x-ratelimit-remaining-requests"] == b"3"  # nothing was left: it has taken nothing
    assert set(world.state.reserved.values()) == {4.0}
    first.settle(ended(8.5, prompt=5, output=15))
    again = await world.open(account, 0, Quote(0.1, 0.1, 0.1, 0.1), told)
    with pytest.raises(Refusal, match="made this key for today") as caught:
        await world.open(account, 0, QUOTE, told)
    assert caught.value.code == "insufficient_quota"
    again.settle(ended())
    told.clear()
    (await world.open(account, 0, Quote(0.1, 0.1, 0.1, 0.1), told)).settle(ended())
    assert dict(told)[b"x-ratelimit-remaining-tokens"] == b"30"  # 20 of 50 were used


async def test_tokens_of_a_request_that_nobody_answered_come_back(world: World) -> None:
    bucket = Bucket("k/tokens", 100, 1.0)
    account = Account("k", tokens=(bucket,), key_budgets=(KeyBudget("k"),))
    for billed, output, left in ((False, 0, 100), (True, 0, 90), (True, 5, 75)):
        reservation = await world.open(account, 60, None, [])
        record = ended(prompt=10, output=output)
        record.attempt_records[0].billed = billed
        reservation.settle(record)
        told: list[tuple[bytes, bytes]] = []
        (await world.open(account, 0, None, told)).settle(ended())
        assert dict(told)[b"x-ratelimit-remaining-tokens"] == b"%d" % left


async def test_without_limits_nothing_is_taken_but_spend_is_counted(world: World) -> None:
    reservation = await world.open(Account("k", key_budgets=(KeyBudget("k"), KeyBudget("m"))), 10, None, [])
    assert (world.state.takes, reservation.budgeted, reservation.left_usd) == (0, False, None)
    reservation.settle(ended(2.0))
    assert world.state.spent_usd("k", TOTAL) == world.state.spent_usd("m", "2027-01-15") == 2.0


async def test_a_day_is_the_requests_whole_life(world: World) -> None:
    """Who arrives before midnight spends of that day's budget, whenever it ends."""
    now = [1_799_971_199.0]  # a second before midnight
    world.budget_admission.clock = lambda: now[0]
    account = Account("k", key_budgets=(KeyBudget("k", per_day_usd=10.0),))
    late = await world.open(account, 0, QUOTE, [], now[0])
    now[0] += 2
    early = await world.open(account, 0, QUOTE, [], now[0])
    assert await late.cover(1, 9.0)
    assert await early.cover(1, 9.0)
    late.settle(ended(9.0))
    assert world.state.spent_usd("k", "2027-01-14") == 9.0
    assert world.state.spent_usd("k", "2027-01-15") == 0.0
    early.settle(ended(8.0))
    assert world.state.spent_usd("k", "2027-01-15") == 8.0
    assert world.state.spent_usd("k", TOTAL) == 17.0


def test_what_a_key_spent_counts_for_those_that_made_it() -> None:
    accounts = {
        "a": Account("a", key_budgets=(KeyBudget("a"),)),
        "b": Account("b", key_budgets=(KeyBudget("b"), KeyBudget("a"))),
    }
    spent = {
        ("a", TOTAL): {"x": 1.0},
        ("b", TOTAL): {"x": 2.0, "y": 4.0},
        ("gone", TOTAL): {"x": 8.0},
        ("", TOTAL): {"x": 9.0},
    }
    assert rolled_up(spent, accounts) == {
        ("a", TOTAL): {"x": 3.0, "y": 4.0},
        ("b", TOTAL): {"x": 2.0, "y": 4.0},
        ("gone", TOTAL): {"x": 8.0},
    }


async def test_only_so_many_are_under_way_at_once(world: World) -> None:
    """Of the key and of the keys that made it, whatever becomes of a request."""
    slots = (Budget("k/slots", TOTAL, 2.0), Budget("m/slots", TOTAL, 3.0))
    account, maker = Account("k", slots=slots), Account("m", slots=slots[1:])
    first, second = [await world.budget_admission.enter(account, NOW, []) for _ in range(2)]
    with pytest.raises(Refusal, match=r"^The key has as many") as caught:
        await world.budget_admission.enter(account, NOW, [])
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
    third = await world.budget_admission.enter(maker, NOW, [])
    first.settle(ended())
    first.settle(ended())
    with pytest.raises(Refusal, match=r"^The key has"):
        await world.budget_admission.enter(maker, NOW, []) and await world.budget_admission.enter(
            maker, NOW, []
        )
    with pytest.raises(Refusal, match=r"^A key that made this key has"):
        await world.budget_admission.enter(account, NOW, [])
    with pytest.raises(
        Refusal, match=r"^A key that made this key has"
    ):  # nor with a bound of its maker's alone
        await world.budget_admission.enter(Account("j", slots=slots[1:]), NOW, [])
    assert world.state.reserved == {("k/slots", TOTAL): 1.0, ("m/slots", TOTAL): 3.0}
    world.state.settle(slots[1:], 1.0, 0.0)
    for reservation in (second, third):
        reservation.close(0.0, 0)


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_a_clock_that_is_set_back_starves_no_bucket(steps: list[float]) -> None:
    """However the clock jumped before, what was taken is back a minute after the last take."""
    state, bucket = MemoryState(), Bucket("k/requests", 3, 3 / 60)

    async def run() -> None:
        now = NOW
        for step in steps:
            now += step
            await state.take(Want([(bucket, 1.0)]), now)
        await state.take(Want([(bucket, 1.0)]), now)
        assert (await state.take(Want([(bucket, 3.0)]), now + 60)).given

    asyncio.run(run())
