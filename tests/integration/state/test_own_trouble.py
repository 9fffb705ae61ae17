"""Trouble of a replica's own: requests that leave, listeners that fail, more buckets than need be remembered."""

from __future__ import annotations

import asyncio

import pytest

from router import background
from router.store.state import Bucket, Budget, Claim
from tests.integration.state.replicas import Ear, replicas
from tests.waiting import until

DAY = "2026-11-22"


async def test_a_grant_for_a_request_that_leaves_in_the_same_moment_is_let_go(calm_server):
    async with replicas(calm_server.url, 1) as (a,):
        rate, budget = Bucket("requests", 1, 1e-6), [Budget("k", DAY, 1.0)]
        takes = a.state._claims
        granted = takes.granted
        asked = asyncio.create_task(a.state.take(Claim([(rate, 1)], budget, 1.0, 1.0), 0))

        def granted_and_left(rows):
            granted(rows)
            if rows:
                asked.cancel()

        takes.granted = granted_and_left
        with pytest.raises(asyncio.CancelledError):
            await asked
        takes.granted = granted
        assert (await a.state.take(Claim([(rate, 1)], budget, 1.0, 1.0), 0)).given


async def test_an_error_in_this_process_leaves_no_take_without_an_answer(calm_server, caplog, monkeypatch):
    monkeypatch.setattr(background, "_logged_at", {})

    class Fails(Ear):
        fails = False

        def report(self):
            if self.fails:
                raise RuntimeError("a listener's own")
            return super().report()

    async with replicas(calm_server.url, 2) as (a, b):
        a.state._listener = listener = Fails()
        listener.fails = True
        grant = await a.state.take(Claim((), [Budget("k", DAY, 1.0)], 1.0, 0.1), 0)
        assert grant.reserved_usd == pytest.approx(0.5), "by its share"
        assert "shared-state failed (RuntimeError)" in caplog.text
        listener.fails = False
        await until(lambda: a.state._claims.fallback is None)
        assert (await b.state.take(Claim((), [Budget("k", DAY, 1.0)], 1.0, 0.1), 0)).reserved_usd == 0.5


async def test_buckets_that_are_full_again_are_not_remembered(calm_server):
    async with replicas(calm_server.url, 1) as (a,):
        claims = [Claim([(Bucket(f"quick-{n}", 1, 1e9), 1)]) for n in range(999)]
        claims += [Claim([(Bucket(f"slow-{n}", 1, 1e-6), 1)]) for n in range(20)]
        grants = await asyncio.gather(*(a.state.take(each, 0) for each in claims))
        assert all(each.given for each in grants)
        last = await a.state.take(claims[-1], 0)
        assert not last.given
        assert set(a.state._claims._levels) <= {f"slow-{n}" for n in range(20)} | {
            f"quick-{n}" for n in range(800, 999)
        }
