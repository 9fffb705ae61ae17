"""Two replicas change one bucket in any order; answers are lost, and each may be taken for dead: each amount counts once."""

from __future__ import annotations

import asyncio
import json

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from router.store.redis_claims import BucketAdjustments, claim_row
from router.store.redis_link import Link
from router.store.redis_state import _EXCHANGE
from router.store.state import Bucket, Claim
from tests.integration.state.replicas import fleet

BUCKET = Bucket("tokens", 1e6, 1e-9)


class Client:
    """Sends adjustments as a replica does."""

    def __init__(self, link: Link, prefix: str, run: str) -> None:
        self._link, self._prefix, self.run = link, prefix, run
        self._number, self._hello = 0, True
        self.adjustments = BucketAdjustments()

    async def exchange(self, *claims: Claim, lost: bool = False) -> list[list[object]]:
        """The grants; with `lost` the answer never comes."""
        self._number += 1
        batch, rows = self.adjustments.batch()
        message = {
            **{"run": self.run, "number": self._number, "hello": self._hello, "bye": False},
            **{
                "adjustments_number": batch,
                "adjustments": rows,
                "claims": [claim_row(each) for each in claims],
            },
            **{"spent": [], "reserved": [], "view": None, "turns": {}, "documents": [], "observations": []},
            **{"since": 0, "last_message": ""},
        }
        text = await self._link.run(_EXCHANGE, f"{self._prefix}replicas", self._prefix, json.dumps(message))
        self._hello = lost
        if lost:
            return []
        answer = json.loads(text)
        if "unknown" in answer:
            self._hello = True
            return await self.exchange(*claims)
        self.adjustments.acknowledged()
        return answer["grants"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["adjust", "send", "lose", "dead"]), st.integers(-9, 9)),
        max_size=30,
    )
)
@example(steps=[(0, "adjust", 5), (0, "lose", 0), (0, "dead", 0)])
def test_each_adjustment_counts_once_in_any_order(calm_server, steps):
    async def script() -> None:
        prefix = f"{{{fleet()}}}:"
        link = Link(calm_server.url, 5.0)
        clients = [Client(link, prefix, f"run-{number}") for number in range(2)]
        level = BUCKET.capacity / 2
        await clients[0].exchange(Claim([(BUCKET, level)]))
        for number, what, amount in steps:
            client = clients[number]
            if what == "adjust":
                client.adjustments.add(BUCKET, float(amount))
                level += amount
            elif what == "dead":
                with redis.Redis.from_url(calm_server.url) as server:
                    server.zadd(f"{prefix}replicas", {client.run: 0}, xx=True)
                await clients[1 - number].exchange()
            else:
                await client.exchange(lost=what == "lose")
        for client in clients * 2:  # what was sent without an answer, and what came after it
            await client.exchange()
        ((_, (left,), *_),) = await clients[0].exchange(Claim([(BUCKET, 0.0)]))
        assert float(left) == pytest.approx(level, abs=1e-6)
        await link.aclose()

    asyncio.run(script())
