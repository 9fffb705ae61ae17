"""Redis that is killed, forgets, hangs, or is cut off from one replica: money stays exact, and nobody waits for long."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import redis.asyncio

from router.core.state import Work
from router.store.redis_link import Link
from router.store.redis_state import _EXCHANGE, RedisState
from router.store.state import TOTAL, Bucket, Budget, Claim, ReplicaReport, StateError
from tests.integration.state.replicas import Ear, Replica, Way, fleet, replicas
from tests.waiting import until

DAY = "2026-11-22"
#: Sums of many amounts may differ in their last bits.
EXACT = 1e-9


class Spender:
    """Clients of one replica: each takes, is answered, and pays less than was reserved."""

    def __init__(self, replica: Replica, budgets: list[Budget], seed: int) -> None:
        self._state = replica.state
        self._budgets = budgets
        self._random = random.Random(seed)
        self.spent_usd = 0.0
        self.held_usd = 0.0
        self.given = self.refused = 0
        self.stop = False

    async def client(self) -> None:
        while not self.stop:
            grant = await self._state.take(
                Claim((), self._budgets, self._random.uniform(0.01, 0.05), 0.01), 0
            )
            if not grant.given:
                self.refused += 1
                await asyncio.sleep(0.005)
                continue
            self.given += 1
            self.held_usd += grant.reserved_usd
            await asyncio.sleep(self._random.uniform(0.0, 0.01))
            cost_usd = grant.reserved_usd * self._random.random()
            self.held_usd -= grant.reserved_usd
            self.spent_usd += cost_usd
            self._state.settle(self._budgets, grant.reserved_usd, cost_usd)


@asynccontextmanager
async def spending(started: list[Replica], budgets: list[Budget]):
    spenders = [Spender(each, budgets, seed) for seed, each in enumerate(started)]
    clients = [asyncio.create_task(each.client()) for each in spenders for _ in range(4)]
    try:
        yield spenders
    finally:
        for each in spenders:
            each.stop = True
        await asyncio.gather(*clients)


async def lasts(spenders: list[Spender], more: int = 60) -> None:
    """Until each has been granted so many more."""
    before = [each.given for each in spenders]
    await until(lambda: all(each.given >= count + more for each, count in zip(spenders, before, strict=True)))


async def back(started: list[Replica]) -> None:
    """Until Redis grants again for all."""
    await until(lambda: all(each.state._claims.fallback is None for each in started))


async def in_redis(url: str, replica: Replica, key: str, period: str) -> tuple[float, float, float]:
    """Of a budget: the sums spent and held, and the sum of what the runs have spent."""
    async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
        fields = await client.hgetall(f"{replica.state._prefix}budget:{period}:{key}")
    by_run = sum(float(usd) for name, usd in fields.items() if name.startswith("run:"))
    return float(fields.get("spent", 0)), float(fields.get("held", 0)), by_run


async def spent_is_exact(server, started, spenders, *periods):
    """All replicas and Redis come to know what was spent of these budgets."""
    truth_usd = sum(each.spent_usd for each in spenders)
    for each in started:
        await until(lambda each=each: abs(each.state.spent_usd("k", DAY) - truth_usd) < EXACT)
    await until(lambda: not any(each.state._ledger.unsent for each in started))
    for period in periods:
        found = await in_redis(server.url, started[0], "k", period)
        assert found == pytest.approx((truth_usd, 0, truth_usd), abs=EXACT)


@pytest.mark.parametrize("keep", [True, False], ids=["with its data", "empty"])
async def test_what_was_spent_is_exact_when_redis_is_killed_under_load(server, keep):
    budgets = [Budget("k", DAY, 1e6), Budget("k", TOTAL, 1e6)]
    async with replicas(server.url, 3) as started:
        async with spending(started, budgets) as spenders:
            await lasts(spenders)
            for _ in range(2):
                server.kill()
                await lasts(spenders)
                server.start(keep=keep)
                await lasts(spenders)
            await back(started)
            await lasts(spenders)
        await spent_is_exact(server, started, spenders, DAY, TOTAL)
        assert all(each.state.health.failures > 0 for each in started)


@pytest.mark.parametrize("keep", [True, False], ids=["with its data", "empty"])
async def test_a_budget_holds_when_all_lose_redis_at_once(server, keep):
    budget = [Budget("k", DAY, 9.0)]
    tenth = Claim((), budget, 0.1, 0.1)
    async with replicas(server.url, 3) as started:
        for each in started:
            assert (await each.state.take(Claim((), budget, 1.0, 1.0), 0)).given
            each.state.settle(budget, 0.5, 0.5)  # 0.5 is spent, 0.5 still reserved
        await until(lambda: all(abs(each.state.spent_usd("k", DAY) - 1.5) < EXACT for each in started))
        await until(lambda: not any(each.state._ledger.unsent for each in started))
        await until(
            lambda: all(
                abs(each.state._ledger.balance(("k", DAY)).reserved_elsewhere_usd - 1.0) < EXACT
                for each in started
            )
        )
        server.kill()
        taken = [0, 0, 0]
        for number, each in enumerate(started):
            while (await each.state.take(tenth, 0)).given:
                taken[number] += 1
        assert taken == [20, 20, 20], "a third of the 6 USD that were left each"
        server.start(keep=keep)
        await until(lambda: all(each.state.health.connected for each in started))
        assert not any([(await each.state.take(tenth, 0)).given for each in started]), (
            "while others come back"
        )
        await back(started)
        assert not any([(await each.state.take(tenth, 0)).given for each in started])
        for each in started:
            each.state.settle(budget, 0.5 + 2.0, 0.5 + 1.0)
        await until(lambda: all(abs(each.state.spent_usd("k", DAY) - 6.0) < EXACT for each in started))
        assert (await started[0].state.take(Claim((), budget, 9.0, 0.0), 0)).reserved_usd == pytest.approx(
            3.0
        )


async def test_buckets_are_shared_out_while_redis_is_away_and_owed_when_it_is_back(server):
    rate = Bucket("requests", 60, 1e-6)
    async with replicas(server.url, 3) as started:
        for each in started:
            for _ in range(4):
                assert (await each.state.take(Claim([(rate, 1)]), 0)).given
        for each in started:  # so that each has seen the same level
            assert (await each.state.take(Claim([(rate, 0)]), 0)).levels[0].level == pytest.approx(
                48, abs=0.1
            )
        server.kill()
        a, b, c = (each.state for each in started)
        given = [(await a.take(Claim([(rate, 1)]), 0)).given for _ in range(20)]
        assert given.count(True) == 16, "a third of 48"
        for _ in range(6):
            assert (await b.take(Claim([(rate, 1)]), 0)).given
        b.give(rate, 2, 0)
        server.start()
        await back(started)
        await until(lambda: not any(each.state._claims.adjustments for each in started))
        assert (await c.take(Claim([(rate, 0)]), 0)).levels[0].level == pytest.approx(48 - 16 - 4, abs=0.1)


async def test_one_that_is_cut_off_spends_its_share_at_most(server):
    budget = [Budget("k", DAY, 9.0)]
    async with Way(server.port) as way:
        name = fleet()
        a, b = (Replica(server.url, name, run) for run in ("run-a", "run-b"))
        cut_off = Replica(f"redis://127.0.0.1:{way.port}", name, "run-c")
        started = [a, b, cut_off]
        for each in started:
            await each.start()
        await until(lambda: all(each.state.health.replicas == 3 for each in started))
        await way.close()
        await until(lambda: not cut_off.state.health.connected)
        granted_usd = 0.0
        for each in started:
            while (grant := await each.state.take(Claim((), budget, 0.1, 0.1), 0)).given:
                granted_usd += grant.reserved_usd
        assert granted_usd == pytest.approx(9.0 + 9.0 / 3)
        await way.open()
        await back(started)
        assert not any([(await each.state.take(Claim((), budget, 0.1, 0.1), 0)).given for each in started])
        for each in started:
            await each.state.aclose()


async def test_what_redis_did_though_its_answer_was_lost_is_not_done_twice(server):
    tokens, budget = Bucket("tokens", 100, 1e-6), [Budget("k", DAY, 1.0)]
    async with replicas(server.url, 1) as (other,), Way(server.port) as way:
        name = other.state._prefix[1:-2]
        replica = Replica(f"redis://127.0.0.1:{way.port}", name, "run-unlucky")
        await replica.start()
        await until(lambda: other.state.health.replicas == 2)
        state = replica.state
        assert (await state.take(Claim([(tokens, 100)]), 0)).given
        way.deaf, patient_s = True, state._link._timeout_s
        state._link._timeout_s = 0.25
        state.give(tokens, 40, 0)
        grant = await state.take(Claim((), budget, 0.4, 0.4), 0)  # granted there, and then by its share here
        assert grant.reserved_usd == pytest.approx(0.4)
        assert not state.health.connected
        assert (await other.state.take(Claim([(tokens, 0)]), 0)).levels[0].level == pytest.approx(40, abs=0.1)
        state.settle(budget, grant.reserved_usd, 0.3)
        way.deaf, state._link._timeout_s = False, patient_s
        await back([replica])
        assert (await state.take(Claim([(tokens, 0)]), 0)).levels[0].level == pytest.approx(40, abs=0.1)
        await until(lambda: not state._ledger.unsent)
        assert await in_redis(server.url, replica, "k", DAY) == pytest.approx((0.3, 0.0, 0.3), abs=EXACT)
        await state.aclose()


async def test_an_exchange_that_comes_after_a_later_one_is_not_heeded(server):
    async with replicas(server.url, 1) as (a,):
        budget = [Budget("k", DAY, 1.0)]
        assert (await a.state.take(Claim((), budget, 0.4, 0.4), 0)).given
        _, earlier = a.state._message(bye=False)
        a.state.settle(budget, 0.4, 0.1)
        await until(lambda: not a.state._ledger.unsent)
        link = Link(server.url, 1.0)
        early = json.loads(earlier) | {"reserved": [[f"{DAY}:k", 0.9]]}
        prefix = a.state._prefix
        assert json.loads(await link.run(_EXCHANGE, f"{prefix}replicas", prefix, json.dumps(early))) == {
            "late": True
        }
        await link.aclose()
        assert (await in_redis(server.url, a, "k", DAY))[:2] == pytest.approx((0.1, 0.0), abs=EXACT)


async def test_nobody_waits_for_a_redis_that_hangs(server):
    budget = [Budget("k", DAY, 1e6)]
    async with replicas(server.url, 2, timeout_s=0.25) as started:
        async with spending(started, budget) as spenders:
            await lasts(spenders)
            server.pause()
            await lasts(spenders)
            assert not any(each.state.health.connected for each in started)
            server.go_on()  # and reads what was sent to it meanwhile
            await back(started)
            await lasts(spenders)
        await spent_is_exact(server, started, spenders, DAY)


async def test_a_redis_that_forgot_gets_documents_back_the_latest_of_each(server):
    async with replicas(server.url, 2) as started:
        a, b = started
        await a.state.change("keys", lambda content: {"made": 1})
        await b.state.change("keys", lambda content: {"made": content.get("made", 0) + 1})
        server.kill()
        await until(lambda: not any(each.state.health.connected for each in started))
        with pytest.raises(StateError, match="nothing was changed"):
            await a.state.change("keys", lambda content: {"made": 100})
        server.start(keep=False)
        await back(started)
        await b.state.change("keys", lambda content: {"made": content["made"] + 1})
        late = Replica(server.url, a.state._prefix[1:-2], "run-late")
        await late.start()
        assert late.ear.documents == {"keys": {"made": 3}}
        await late.state.aclose()


async def test_a_flushed_redis_is_told_everything_again(server):
    budget = [Budget("k", DAY, 1.0)]
    async with replicas(server.url, 2) as started:
        a, b = started
        assert (await a.state.take(Claim((), budget, 0.5, 0.5), 0)).given
        b.state.settle(budget, 0.0, 0.25)
        await until(lambda: all(each.state.spent_usd("k", DAY) == 0.25 for each in started))
        async with redis.asyncio.Redis.from_url(server.url) as client:
            await client.flushall()
            await client.script_flush()
        await until(lambda: all(each.state._claims.fallback is not None for each in started))
        await back(started)
        grant = await b.state.take(Claim((), budget, 1.0, 0.0), 0)
        assert grant.reserved_usd == pytest.approx(0.25)
        assert a.state.health.failures == 0


async def test_a_replica_starts_without_redis_and_joins_later(server):
    server.kill()
    replica = Replica(server.url, fleet(), "run-0")
    replica.state.load_spent({("k", DAY): {"run-before": 0.5}})
    await replica.start()
    budget = [Budget("k", DAY, 1.0)]
    grant = await replica.state.take(Claim([(Bucket("requests", 1, 1e-6), 1)], budget, 1.0, 0.1), 0)
    assert grant.reserved_usd == pytest.approx(0.5)
    assert not replica.state.health.connected
    server.start()
    await back([replica])
    refused = await replica.state.take(Claim([(Bucket("requests", 1, 1e-6), 1)], budget, 1.0, 0.1), 0)
    assert refused.levels[0].wait_s > 0
    assert refused.short == budget[0]
    assert replica.state.health.alone_s > 0
    await replica.state.aclose()


async def test_what_a_killed_replica_had_not_told_comes_from_the_store(server):
    """The next run loads what the store has of all runs; what Redis knew already is not counted twice."""
    async with replicas(server.url, 1) as (a,):
        budget = [Budget("k", TOTAL, 10.0)]
        b = Replica(server.url, a.state._prefix[1:-2], "run-killed")
        await b.start()
        b.state.settle(budget, 0.0, 1.0)
        await until(lambda: a.state.spent_usd("k", TOTAL) == 1.0)
        await b.die()
        b.state.settle(budget, 0.0, 0.5)  # never told, but in the store
        c = Replica(server.url, a.state._prefix[1:-2], "run-next")
        c.state.load_spent({("k", TOTAL): {"run-killed": 1.5}})
        await c.start()
        await until(lambda: a.state.spent_usd("k", TOTAL) == 1.5)
        assert (await c.state.take(Claim((), budget, 10.0, 0.0), 0)).reserved_usd == pytest.approx(8.5)
        await c.state.aclose()


async def test_the_others_work_is_forgotten_when_nothing_is_received(server):
    async with replicas(server.url, 2) as (a, b):
        b.ear.tells = ReplicaReport({"x": Work(3, 0, 0, 0)})
        b.state.wake()
        await until(lambda: "x" in a.ear.peers[-1].work)
        server.kill()
        await until(lambda: not a.ear.peers[-1].work)
        assert a.ear.peers[-1].replicas == 2, "the last guess at how many share"
        server.start()
        await until(lambda: "x" in a.ear.peers[-1].work)


async def test_workers_that_start_without_redis_share_what_one_may_take():
    """They have never seen each other, but know how many they are."""
    async with AsyncExitStack() as stack:
        workers = []
        for number in range(2):
            settings = {"name": "n", "run_id": f"r{number}", "timeout_s": 20.0, "interval_s": 0.02}
            state = RedisState("redis://127.0.0.1:1", **settings, replicas=2)
            await state.start(Ear())
            stack.push_async_callback(state.aclose)
            workers.append(state)
        claim = Claim([(Bucket("b", 4.0, 0.001), 1.0)], [Budget("k", DAY, 1.0)], 1.0, 0.0)
        for worker in workers:
            grants = [await worker.take(claim, 0.0) for _ in range(3)]
            assert [grant.given for grant in grants] == [True, False, False]  # its half of the money is gone
            assert grants[0].reserved_usd == pytest.approx(0.5)
            requests = [await worker.take(Claim(claim.takes), 0.0) for _ in range(3)]
            assert [grant.given for grant in requests] == [True, False, False]  # two of the four


async def test_a_limit_that_changes_while_redis_is_away_holds_at_once():
    state = RedisState("redis://127.0.0.1:1", name="n", run_id="r", timeout_s=20.0, interval_s=0.02)
    for limit, given in ((10.0, True), (2.0, True), (2.0, True), (2.0, False), (5.0, False)):
        one = Claim([(Bucket("b", limit, 0.001), 1.0)])
        assert (await state.take(one, 0.0)).given is given


async def test_a_key_has_no_more_slots_than_it_may_when_redis_is_back(server):
    one = Claim((), (Budget("k/slots", TOTAL, 3.0, whole=True),), 1.0, 1.0)
    async with replicas(server.url, 2) as started:
        server.kill()
        held = []
        for each in started:
            while (await each.state.take(one, 0)).given:
                held.append(each)
        assert held == [started[0]] * 2 + [started[1]] * 2  # its half of three, rounded up
        server.start()
        await back(started)
        for more in (False, True):  # one has ended: three are under way; another one has
            held.pop(0).state.settle(one.budgets, 1.0, 0.0)
            assert (await started[0].state.take(one, 0)).given is more


async def test_a_rate_is_not_granted_afresh_in_each_interruption(server):
    bucket = Bucket("requests:k", 30.0, 0.001)
    one = Claim([(bucket, 1.0)], [], 0.0, 0.0)
    async with replicas(server.url, 2) as started:
        given = 0
        for _ in range(3):
            server.kill()
            for each in started:
                while (await each.state.take(one, 0)).given:
                    given += 1
            server.start()
            await back(started)
        assert given == 30
