"""What replicas tell each other through Redis."""

from __future__ import annotations

import asyncio
import time

import redis.asyncio

from router.core.state import Work
from router.store.state import TOTAL, Bucket, Budget, Claim, Peers, ReplicaReport
from tests.integration.state.replicas import Replica, replicas
from tests.waiting import until

DAY = "2026-11-22"


async def test_each_hears_the_sum_of_the_others_work_and_of_what_waits_there(calm_server):
    async with replicas(calm_server.url, 3) as (a, b, c):
        b.ear.tells = ReplicaReport({"x": Work(1, 1, 100, 0), "y": Work(2, 0, 0, 50)}, queued={"m": 2})
        c.ear.tells = ReplicaReport({"x": Work(3, 0, 0, 70), "idle": Work()}, queued={"m": 1, "n": 4})
        b.state.wake()
        c.state.wake()
        both = {"x": Work(4, 1, 100, 70), "y": Work(2, 0, 0, 50)}
        await until(lambda: a.ear.peers[-1].work == both)
        assert a.ear.peers[-1] == Peers(3, both, queued={"m": 3, "n": 4})
        await until(lambda: b.ear.peers[-1].work == {"x": Work(3, 0, 0, 70)})
        await b.state.aclose()
        await until(lambda: a.ear.peers[-1] == Peers(2, {"x": Work(3, 0, 0, 70)}, queued={"m": 1, "n": 4}))


async def test_work_is_told_without_being_asked_for(calm_server):
    async with replicas(calm_server.url, 2) as (a, b):
        b.ear.tells = ReplicaReport({"x": Work(5, 0, 0, 0)})  # nobody pokes
        await until(lambda: a.ear.peers[-1].work == {"x": Work(5, 0, 0, 0)})


async def test_an_ejection_is_received_once_and_earlier_ones_are_not(calm_server):
    async with replicas(calm_server.url, 2) as (a, b):
        b.ear.tells = ReplicaReport(ejections={"x": 1})
        b.state.wake()
        await until(lambda: any(each.ejected for each in a.ear.peers))
        b.ear.tells = ReplicaReport({"y": Work(1)}, {"x": 1})
        b.state.wake()
        await until(lambda: "y" in a.ear.peers[-1].work)
        assert [each.ejected for each in a.ear.peers if each.ejected] == [{"x"}]
        late = Replica(calm_server.url, _name(a), "run-late")
        await late.start()
        await until(lambda: bool(late.ear.peers))
        assert not late.ear.peers[-1].ejected
        await late.state.aclose()


async def test_turns_reach_only_the_others(calm_server):
    async with replicas(calm_server.url, 2) as (a, b):
        b.ear.tells = ReplicaReport(turns={"m": ("x", "m"), "n": ("y", "n")})
        b.state.wake()
        await until(lambda: bool(a.ear.peers[-1].turns))
        assert a.ear.peers[-1].turns == {"m": ("x", "m"), "n": ("y", "n")}
        assert not any(each.turns for each in b.ear.peers)


async def test_observations_reach_the_others_in_order_and_a_replica_that_was_away_misses_them(calm_server):
    async with replicas(calm_server.url, 2) as (a, b):
        told = [bytes([0, n, 255]) for n in range(200)]
        for each in told:
            a.state.send_observations(each)
        await until(lambda: len(b.ear.observations) >= len(told))
        late = Replica(calm_server.url, _name(a), "run-late")
        await late.start()
        b.state.send_observations(b"one more")
        await until(lambda: late.ear.observations == [b"one more"])
        await until(lambda: a.ear.observations == [b"one more"])
        assert b.ear.observations == told
        await late.state.aclose()


async def test_one_that_starts_later_hears_documents_and_money(calm_server):
    async with replicas(calm_server.url, 1) as (a,):
        await a.state.change("keys", lambda content: {"made": ["k1"]})
        a.state.settle([Budget("k", DAY, 1.0)], 0.0, 0.25)
        late = Replica(calm_server.url, _name(a), "run-late")
        await until(lambda: not a.state._ledger.unsent)
        await late.start()
        assert late.ear.documents == {"keys": {"made": ["k1"]}}
        await until(lambda: late.state.spent_usd("k", DAY) == 0.25)
        await late.state.aclose()


async def test_what_a_dead_replica_had_reserved_is_free_again_and_what_it_spent_is_not(calm_server):
    async with replicas(calm_server.url, 1) as (a,):
        b = Replica(calm_server.url, _name(a), "run-killed")
        await b.start()
        budget = [Budget("k", DAY, 1.0), Budget("maker", DAY, 1.0)]
        assert (await b.state.take(Claim((), budget, 0.6, 0.6), 0)).given
        b.state.settle(budget, 0.1, 0.1)
        b.ear.tells = ReplicaReport({"x": Work(3, 0, 0, 0)})
        b.state.wake()
        await until(lambda: bool(a.ear.peers) and "x" in a.ear.peers[-1].work)
        await b.die()
        assert (await a.state.take(Claim((), budget, 1.0, 0.0), 0)).reserved_usd == 0.4
        a.state.settle(budget, 0.4, 0.0)

        async with redis.asyncio.Redis.from_url(calm_server.url) as client:
            # as if it had been silent for longer than a replica may be
            await client.zadd(f"{{{_name(a)}}}:replicas", {"run-killed": time.time() - 11})
            await until(lambda: a.ear.peers[-1] == Peers(1))
            # it might be cut off only, and go on paying from what it has reserved
            assert (await a.state.take(Claim((), budget, 1.0, 0.0), 0)).reserved_usd == 0.4
            a.state.settle(budget, 0.4, 0.0)
            await client.zadd(f"{{{_name(a)}}}:holders", {"run-killed": time.time() - 61})
            a.state.wake()

            async def free() -> float:
                grant = await a.state.take(Claim((), budget, 1.0, 0.0), 0)
                if grant.reserved_usd < 0.5:
                    a.state.settle(budget, grant.reserved_usd, 0.0)
                return grant.reserved_usd

            while abs((free_usd := await free()) - 0.9) > 1e-9:
                assert free_usd == 0.4
                await asyncio.sleep(0.01)


async def test_a_replica_that_was_taken_for_dead_tells_everything_again(calm_server):
    async with replicas(calm_server.url, 2) as (a, b):
        budget = [Budget("k", DAY, 1.0)]
        assert (await a.state.take(Claim((), budget, 0.6, 0.6), 0)).given
        a.ear.tells = ReplicaReport({"x": Work(3, 0, 0, 0)})
        known = len(b.ear.peers)
        async with redis.asyncio.Redis.from_url(calm_server.url) as client:
            while not any(each.replicas == 1 for each in b.ear.peers[known:]):  # a may come in between
                await client.zadd(f"{{{_name(a)}}}:replicas", {"run-0": time.time() - 11})
                b.state.wake()
                await asyncio.sleep(0.01)
        await until(lambda: b.ear.peers[-1] == Peers(2, {"x": Work(3, 0, 0, 0)}))
        grant = await b.state.take(Claim((), budget, 1.0, 0.0), 0)
        assert abs(grant.reserved_usd - 0.4) < 1e-9


async def test_one_that_hung_for_a_while_is_missed_and_its_work_is_known_again_afterwards(calm_server):
    async with replicas(calm_server.url, 2) as (a, b):
        b.ear.tells = ReplicaReport({"x": Work(3, 0, 0, 0)})
        b.state.wake()
        await until(lambda: "x" in a.ear.peers[-1].work)
        goes_on = asyncio.Event()
        b.state._timer.due = goes_on.wait
        await until(lambda: a.ear.peers[-1] == Peers(1))
        goes_on.set()
        await until(lambda: a.ear.peers[-1] == Peers(2, {"x": Work(3, 0, 0, 0)}))
        del b.state._timer.due


async def test_days_that_have_expired_leave_nothing_behind(calm_server):
    async with (
        replicas(calm_server.url, 1) as (a,),
        redis.asyncio.Redis.from_url(calm_server.url, decode_responses=True) as client,
    ):
        prefix = a.state._prefix
        a.state.settle([Budget("k", DAY, 1.0), Budget("k", TOTAL, 1.0)], 0.0, 0.5)
        await until(lambda: not a.state._ledger.unsent)
        changes = f"{prefix}changes"
        until_expired_s = await client.ttl(f"{prefix}budget:{DAY}:k")
        assert 2 * 86400 < until_expired_s <= 3 * 86400
        assert await client.ttl(f"{prefix}budget:{TOTAL}:k") == -1
        await client.delete(f"{prefix}budget:{DAY}:k")  # as if they were over
        while await client.zscore(changes, f"b:run-0:{DAY}:k") is not None:
            a.state.wake()
            await asyncio.sleep(0.01)
        assert await client.zscore(changes, f"b:run-0:{TOTAL}:k") is not None


async def test_fleets_with_different_names_share_nothing(calm_server):
    one = Bucket("requests", 1, 1e-6)
    async with replicas(calm_server.url, 1) as (a,), replicas(calm_server.url, 1) as (b,):
        grants = await asyncio.gather(a.state.take(Claim([(one, 1)]), 0), b.state.take(Claim([(one, 1)]), 0))
        assert all(each.given for each in grants)


def _name(replica: Replica) -> str:
    return replica.state._prefix[1:-2]


async def test_turns_do_not_grow_whatever_clients_name(calm_server):
    async with replicas(calm_server.url, 2) as (a, b), redis.asyncio.from_url(calm_server.url) as client:
        for start in range(0, 6000, 500):
            b.ear.tells = ReplicaReport(turns={f"set-{start + each}": ("x", "m") for each in range(500)})
            b.state.wake()
            names = b.ear.tells.turns.keys()
            await until(lambda names=names: any(names & each.turns.keys() for each in a.ear.peers))
        b.ear.tells = ReplicaReport()
        prefix = f"{{{_name(a)}}}:"
        assert await client.hlen(f"{prefix}turns") == 1024
        changes = await client.zrange(f"{prefix}changes", 0, -1)
        assert sum(each.startswith(b"t:") for each in changes) == 1024


async def test_turns_that_wait_for_redis_do_not_grow_either(server):
    async with replicas(server.url, 1) as (a,):
        server.kill()
        for start in range(0, 6000, 1000):
            a.ear.tells = ReplicaReport(turns={f"set-{start + each}": ("x", "m") for each in range(1000)})
            failures = a.state.health.failures
            a.state.wake()
            await until(lambda failures=failures: a.state.health.failures > failures)
        assert len(a.state._turns) == 1024


async def test_a_replica_that_is_gone_does_not_count_until_a_clock_that_was_set_back_catches_up(calm_server):
    async with replicas(calm_server.url, 1) as (a,):
        b = Replica(calm_server.url, _name(a), "run-killed")
        await b.start()
        await until(lambda: a.state.health.replicas == 2)
        await b.die()
        ahead = {"run-killed": time.time() + 3600}  # as written before the clock of Redis was set back
        async with redis.asyncio.from_url(calm_server.url) as client:
            sets = [f"{{{_name(a)}}}:{each}" for each in ("replicas", "holders")]
            for each in sets:
                await client.zadd(each, ahead)
            await until(lambda: a.state.health.replicas == 1, within_s=10)
            assert [each for each in sets if await client.zscore(each, "run-killed") > time.time()] == []
