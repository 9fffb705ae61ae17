"""Replicas that take, give back and settle at random, all at once: never too much, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.store.state import TOTAL, Bucket, Budget, Claim
from tests.examples import few_examples
from tests.integration.state.replicas import Replica, replicas
from tests.waiting import until

DAY = "2026-11-22"


class World:
    """What truly is taken, spent and held. A maker's budgets pay for its keys too."""

    def __init__(self, limits_usd: dict[str, float], capacity: float) -> None:
        self.limits_usd = limits_usd
        self.used_usd: Counter[tuple[str, str]] = Counter()
        self.spent_usd: Counter[tuple[str, str]] = Counter()
        self.tokens = Bucket("tokens", capacity, 1e-9)
        self.level = capacity

    async def client(self, replica: Replica, seed: int, turns: int) -> None:
        chance = random.Random(seed)
        for _ in range(turns):
            keys = chance.choice([["a", "maker"], ["b", "maker"], ["maker"]])
            budgets = [Budget(key, chance.choice([DAY, TOTAL]), self.limits_usd[key]) for key in keys]
            names = [(each.key, each.period) for each in budgets]
            amount = chance.choice([0.0, 1.0, 2.5])
            wanted = Claim([(self.tokens, amount)], budgets, chance.uniform(0.01, 0.5), 0.01)
            grant = await replica.state.take(wanted, 0)
            if not grant.given:
                continue
            self.level -= amount
            assert self.level >= -1e-6
            for name in names:
                self.used_usd[name] += grant.reserved_usd
                assert self.used_usd[name] <= self.limits_usd[name[0]] + 1e-8
            if chance.random() < 0.7:
                await asyncio.sleep(chance.uniform(0, 0.004))
            cost_usd = grant.reserved_usd * chance.choice([0.0, 0.3, 1.0])
            replica.state.settle(budgets, grant.reserved_usd, cost_usd)
            for name in names:
                self.used_usd[name] -= grant.reserved_usd - cost_usd
                self.spent_usd[name] += cost_usd
            if chance.random() < 0.3:
                replica.state.give(self.tokens, amount, 0)
                self.level += amount


@pytest.mark.parametrize("count", [2, 4])
@settings(few_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), limit_usd=st.floats(0.5, 8.0), capacity=st.integers(5, 200))
def test_a_random_script_never_passes_a_limit_and_ends_exact(calm_server, count, seed, limit_usd, capacity):
    async def script() -> None:
        world = World({"a": limit_usd, "b": limit_usd / 2, "maker": limit_usd}, float(capacity))
        async with replicas(calm_server.url, count) as started:
            await asyncio.gather(*(world.client(each, seed + n, 8) for n, each in enumerate(started * 3)))
            for each in started:
                await until(
                    lambda each=each: all(
                        abs(each.state.spent_usd(*name) - usd) < 1e-9 for name, usd in world.spent_usd.items()
                    )
                )
            await until(
                lambda: (
                    not any(each.state._ledger.unsent or each.state._claims.adjustments for each in started)
                )
            )
            everything = Claim([(world.tokens, world.level)], [Budget("maker", DAY, limit_usd)], 1e9, 0.0)
            left_usd = limit_usd - world.spent_usd["maker", DAY]
            if left_usd > 1e-6:
                grant = await started[-1].state.take(everything, 0)
                assert grant.given
                assert grant.reserved_usd == pytest.approx(left_usd, abs=1e-9)
            assert not (await started[0].state.take(Claim([(world.tokens, world.level + 0.01)]), 0)).given

    asyncio.run(script())
