"""What every state keeps to, asked and told through either of two replicas."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from router.store.state import TOTAL, Bucket, Budget, Claim
from tests.waiting import until

DAY = "2026-11-22"


def now() -> float:
    return time.time()


def bucket(name: str, capacity: float) -> Bucket:
    """One that does not refill while a test lasts."""
    return Bucket(name, capacity, 1e-6)


async def takes(pair, claim: Claim, count: int):
    """So many at once, from both."""
    return await asyncio.gather(*(pair[n % 2].state.take(claim, now()) for n in range(count)))


async def spent(pair, usd: float, key: str = "k", period: str = DAY) -> None:
    for each in pair:
        await until(lambda each=each: each.state.spent_usd(key, period) == pytest.approx(usd, abs=1e-12))


async def test_a_bucket_gives_what_it_holds_and_not_one_more(pair):
    grants = await takes(pair, Claim([(bucket("requests", 20), 1)]), 50)
    assert sum(each.given for each in grants) == 20
    assert min(each.levels[0].level for each in grants) == pytest.approx(0, abs=0.01)
    refused = await pair[0].state.take(Claim([(bucket("requests", 20), 1)]), now())
    assert refused.levels[0].wait_s == pytest.approx(1e6, rel=0.01)


async def test_nothing_is_taken_of_one_bucket_when_another_has_too_little(pair):
    large, small = bucket("large", 10), bucket("small", 1)
    grants = await takes(pair, Claim([(large, 4), (small, 1)]), 3)
    assert [each.given for each in grants].count(True) == 1
    assert (await pair[1].state.take(Claim([(large, 6)]), now())).given


async def test_a_bucket_refills(pair):
    fast = Bucket("fast", 2, 50.0)
    assert all(each.given for each in await takes(pair, Claim([(fast, 1)]), 2))
    refused = await pair[0].state.take(Claim([(fast, 2)]), now())
    if not refused.given:
        await asyncio.sleep(refused.levels[0].wait_s + 0.01)
        assert (await pair[1].state.take(Claim([(fast, 2)]), now())).given


async def test_what_is_given_back_can_be_taken_and_what_is_taken_more_is_owed(pair):
    tokens = bucket("tokens", 100)
    assert (await pair[0].state.take(Claim([(tokens, 100)]), now())).given
    pair[0].state.give(tokens, 40, now())
    assert (await pair[0].state.take(Claim([(tokens, 40)]), now())).given
    pair[0].state.give(tokens, -30, now())
    grant = await pair[0].state.take(Claim([(tokens, 1)]), now())
    assert not grant.given
    assert grant.levels[0].level == pytest.approx(-30, abs=0.01)
    never_seen = bucket("never seen", 10)
    pair[1].state.give(never_seen, -4, now())
    assert not (await pair[1].state.take(Claim([(never_seen, 7)]), now())).given
    pair[1].state.give(never_seen, 1000, now())
    assert not (await pair[1].state.take(Claim([(never_seen, 11)]), now())).given, "never more than it holds"


async def test_reservations_never_pass_a_budget_and_the_last_gets_what_is_left(pair):
    budgets = [Budget("k", DAY, 5.0), Budget("k", TOTAL, 1.05)]
    grants = await takes(pair, Claim((), budgets, 0.1, 0.02), 40)
    assert sum(each.given for each in grants) == 11
    assert sum(each.reserved_usd for each in grants) == pytest.approx(1.05)
    assert min(each.reserved_usd for each in grants if each.given) == pytest.approx(0.05)
    assert {each.short for each in grants if not each.given} == {budgets[1]}


async def test_what_was_not_needed_is_free_again_and_what_was_spent_is_not(pair):
    a, b = (each.state for each in pair)
    budget = [Budget("k", DAY, 1.0)]
    first = await a.take(Claim((), budget, 0.6, 0.1), now())
    assert (first.reserved_usd, first.left_usd) == (pytest.approx(0.6), pytest.approx(1.0))
    assert (await b.take(Claim((), budget, 0.6, 0.5), now())).short == budget[0]
    a.settle(budget, first.reserved_usd, 0.25)
    await spent(pair, 0.25)
    second = await b.take(Claim((), budget, 1.0, 0.5), now())
    assert second.reserved_usd == pytest.approx(0.75)
    b.settle(budget, second.reserved_usd, 0.75)
    await spent(pair, 1.0)
    assert (await a.take(Claim((), budget, 0.1, 0.0), now())).short == budget[0]


async def test_a_budget_and_a_bucket_are_taken_together_or_not_at_all(pair):
    rate, budget = bucket("rate", 1), Budget("k", DAY, 1.0)
    state = pair[0].state
    assert not (await state.take(Claim([(rate, 1)], [budget], 3.0, 2.0), now())).given
    assert (await state.take(Claim([(rate, 1)]), now())).given, "no request was counted"
    assert not (await state.take(Claim([(rate, 1)], [budget], 1.0, 0.1), now())).given
    assert (await state.take(Claim((), [budget], 1.0, 1.0), now())).given, "no money was reserved"


async def test_a_budget_without_a_limit_is_counted_all_the_same(pair):
    budget = [Budget("k", DAY, math.inf)]
    grant = await pair[0].state.take(Claim((), budget, 7.0, 7.0), now())
    assert (grant.reserved_usd, grant.left_usd) == (7.0, math.inf)
    pair[0].state.settle(budget, 7.0, 6.5)
    await spent(pair, 6.5)


async def test_a_cost_without_a_reservation_counts(pair):
    pair[1].state.settle([Budget("k", DAY, 1.0)], 0.0, 1.5)
    await spent(pair, 1.5)
    grant = await pair[0].state.take(Claim((), [Budget("k", DAY, 1.0)], 0.1, 0.0), now())
    assert grant.short is not None
    assert grant.left_usd == pytest.approx(-0.5)


async def test_what_the_store_knows_is_spent_and_telling_less_changes_nothing(pair):
    for each in pair:
        each.state.load_spent({("k", DAY): {"run-before": 0.4, "run-before-that": 0.3}})
    pair[0].state.load_spent({("k", DAY): {"run-before": 0.1}})
    await spent(pair, 0.7)
    grant = await pair[1].state.take(Claim((), [Budget("k", DAY, 1.0)], 1.0, 0.0), now())
    assert grant.reserved_usd == pytest.approx(0.3)


async def test_days_long_past_are_forgotten_and_totals_are_not(pair):
    days = [f"2026-11-{number}" for number in range(10, 16)]
    for day in days:
        pair[0].state.settle([Budget("k", day, 1.0), Budget("k", TOTAL, 1.0)], 0.0, 0.1)
    await spent(pair, 0.6, period=TOTAL)
    assert [pair[0].state.spent_usd("k", day) for day in days] == [0.0, 0.1, 0.1, 0.1, 0.1, 0.1]


async def test_a_clock_that_is_years_ahead_for_a_moment_makes_no_budget_new(pair):
    pair[0].state.settle([Budget("k", DAY, 1.0)], 0.0, 0.4)
    await spent(pair, 0.4)
    pair[1].state.settle([Budget("k", "2036-01-01", 1.0)], 0.0, 0.1)
    await spent(pair, 0.1, period="2036-01-01")
    pair[0].state.settle([Budget("k", DAY, 1.0)], 0.0, 0.3)
    await spent(pair, 0.7)


async def test_a_take_that_nobody_waits_for_holds_nothing(pair):
    rate, budget = bucket("rate", 5), [Budget("k", DAY, 1.0)]
    for turns in range(6):  # given up before it is sent, under way, and in the moment of the answer
        asked = [
            asyncio.create_task(each.state.take(Claim([(rate, 1)], budget, 0.2, 0.2), now())) for each in pair
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        for task, each in zip(asked, pair, strict=True):
            done = (await asyncio.gather(task, return_exceptions=True))[0]
            if not isinstance(done, BaseException) and done.given:
                each.state.settle(budget, done.reserved_usd, 0.0)
                each.state.give(rate, 1, now())

    async with asyncio.timeout(60):
        while not (grant := await pair[0].state.take(Claim([(rate, 5)], budget, 1.0, 1.0), now())).given:  # noqa: ASYNC110 (a test may poll)
            await asyncio.sleep(0.01)
    assert grant.reserved_usd == pytest.approx(1.0)


async def test_a_document_is_changed_by_one_at_a_time_and_everybody_hears(pair):
    def more(content):
        return {"count": content.get("count", 0) + 1}

    await asyncio.gather(*(pair[n % 2].state.change("keys", more) for n in range(12)))
    for each in pair:
        await until(lambda each=each: each.ear.documents.get("keys") == {"count": 12})


async def test_health_tells_how_it_is(pair):
    health = pair[0].state.health
    assert health.connected
    assert health.failures == 0
    assert health.shared == (pair[0] is not pair[1])
    assert health.replicas == len(set(pair))
