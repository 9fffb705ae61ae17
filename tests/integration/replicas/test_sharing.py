"""What replicas of the router know of each other: load, health, turns, what they learned, and who served what."""

from __future__ import annotations

import asyncio

import pytest

from router.core.events import Probed
from router.core.state import Work
from tests.integration.gateway.live import fault, vllm
from tests.integration.replicas.replicas import replicas


async def test_load_turns_observations_and_rows_are_one_truth(tmp_path, redis):
    async with replicas(tmp_path, redis, 2, vllm("a"), vllm("b"), vllm("c")) as fleet:
        one, two = fleet.gateways
        # Load: what one has under way the other counts, and both want as many replicas.
        for engine in fleet.engines.values():
            engine.arm(fault("hang_mid_stream", after_tokens=1))
        async with one.stream(model="small:round_robin") as response:
            name = response.headers["x-headway-instance"]
            await fleet.until(lambda: two.instances[name].elsewhere.in_flight == 1)
            assert (two.instances[name].in_flight, two.instances[name].own.in_flight) == (1, 0)
            _, told = await two.get("/admin/fleet")
            (row,) = [each for each in told["instances"] if each["name"] == name]
            assert (row["in_flight"], row["elsewhere"]["in_flight"], told["replicas"]) == (0, 1, 2)
            assert told["state"]["connected"]
            async with asyncio.timeout(60):
                while True:  # a busy replica may be silent for so long that its load is forgotten
                    wanted = [(await gw.get("/admin/scaling"))[1] for gw in (one, two)]
                    if wanted[0] == wanted[1] and wanted[0]["models"][0]["in_flight"] == 1:
                        break
        for engine in fleet.engines.values():
            engine.faults.clear()
        await fleet.quiet()

        # Round robin: each continues from what the other took last.
        taken = []
        for number in range(9):
            gw = fleet.gateways[number % 2]
            _, headers, _ = await gw.chat(model="small:round_robin")
            taken.append(headers["x-headway-instance"])
            other = fleet.gateways[(number + 1) % 2].gateway.runner.scheduler.policies["round_robin"].cursor
            await fleet.until(lambda other=other, last=taken[-1]: _last(other) == last)
        first = "abc".index(taken[0])
        assert taken == ["abc"[(first + at) % 3] for at in range(9)]

        # Observations: the second learns all that the first does. (A latency model also reads the age of each replica's
        # own load reports, so the predicted TTFTs may differ.)
        for _ in range(12):
            assert (await one.chat(model="small", max_tokens=8))[0] == 200
        sharing = [gw.gateway.predictor.sharing for gw in fleet.gateways]
        await fleet.until(
            lambda: (
                sharing[1].counts.received > 50 and _learned(one) == pytest.approx(_learned(two), abs=0.05)
            )
        )
        assert sharing[1].counts.ignored == sharing[1].counts.unfit == 0
        _, mine = await one.post("/v1/routing/predict", {"model": "small", "messages": _HELLO})
        _, theirs = await two.post("/v1/routing/predict", {"model": "small", "messages": _HELLO})
        for ours, others in zip(mine["candidates"], theirs["candidates"], strict=True):
            for what in ("output_tokens_p50", "output_tokens_p90"):
                assert ours["predicted"][what] == pytest.approx(others["predicted"][what], rel=0.01), what

        # Rows: whoever is asked finds what the other has just served, and takes feedback on it.
        for _ in range(5):
            _, headers, _ = await one.chat(model="small")
            request_id = headers["x-request-id"]
            await _found(lambda path=f"/v1/routing/{request_id}": two.get(path))
        _, headers, _ = await one.chat(model="small")
        judged = {"request_id": headers["x-request-id"], "quality": 1.0}
        await _found(lambda: two.post("/v1/feedback", judged))
        counts = [gw.gateway.predictor.feedback_counts for gw in fleet.gateways]
        await fleet.until(lambda: counts[0]() == counts[1]() == {"llama-3.1-8b": 1})
        assert (await two.get("/v1/routing/req_none"))[0] == 404


_HELLO = [{"role": "user", "content": "Hello"}]


async def _found(ask):
    """Ask until the row is there: on a busy machine it is written later than the other replica looks again."""
    async with asyncio.timeout(60):
        while (status := (await ask())[0]) != 200:
            assert status == 404


def _learned(gw):
    """By candidate: how many TTFTs and TPOTs were learned, and the median log errors of their estimates."""
    return {
        (*key, kind, what): getattr(getattr(stats, kind).pooled, what)
        for key, stats in gw.gateway.predictor.stats.candidates.items()
        for kind in ("ttft", "tpot")
        for what in ("count", "median")
    }


def _last(cursor):
    last = set(cursor._last.values())
    return next(iter(last))[0] if len(last) == 1 else None


async def test_an_ejection_is_heard_of_but_one_blind_replica_takes_nobody_out(tmp_path, redis):
    probes = {"interval_s": 0.1, "timeout_s": 10.0, "eject_after": 2, "return_after": 2}
    async with replicas(tmp_path, redis, 2, vllm("a"), vllm("b"), probes=probes) as fleet:
        blind, seeing = fleet.gateways
        here, there = blind.instances["b"], seeing.instances["b"]
        taken_out = asyncio.Event()
        apply = seeing.gateway.runner.apply

        def watched(event, origin=None):
            apply(event, origin)
            if not there.healthy:
                taken_out.set()

        async def no_answer():
            return False

        seeing.gateway.runner.apply = watched
        blind.gateway.fleet.backends["b"].probe = no_answer
        await asyncio.wait_for(taken_out.wait(), 60)
        assert there.ejections == 0  # it has heard of it only
        await fleet.until(lambda: there.healthy)  # by its own probes

        # However often the blind one takes it out from here on, the other one goes by its own word.
        taken_out.clear()
        for _ in range(3):
            here.healthy = True
            before = here.ejections
            await fleet.until(lambda before=before: here.ejections > before)
            heard = seeing.gateway.state.health.exchanges
            await fleet.until(lambda heard=heard: seeing.gateway.state.health.exchanges > heard + 3)
        assert not taken_out.is_set()
        assert not here.healthy
        names = [
            {(await gw.chat(model="small:round_robin"))[1]["x-headway-instance"] for _ in range(4)}
            for gw in (blind, seeing)
        ]
        assert names == [{"a"}, {"a", "b"}]


async def test_redis_is_killed_and_comes_back_under_load(tmp_path, redis):
    async with replicas(tmp_path, redis, 4, vllm("a"), vllm("b")) as fleet:
        states = [gw.gateway.state for gw in fleet.gateways]
        outcomes = []
        over = asyncio.Event()

        async def ask(gw):
            while not over.is_set():
                status, _, answer = await gw.chat(model="small:round_robin", max_tokens=16)
                outcomes.append((status, answer["headway"]["outcome"]))

        async def served(more):
            enough = len(outcomes) + more
            await fleet.until(lambda: len(outcomes) >= enough)

        asking = [asyncio.create_task(ask(gw)) for gw in fleet.gateways for _ in range(2)]
        await served(40)
        redis.kill()
        await fleet.until(lambda: not any(state.health.connected for state in states))
        await served(40)
        redis.start(keep=False)  # with nothing of what it had
        await fleet.joined()
        await served(40)
        # Load and ejections are shared again.
        await fleet.until(
            lambda: any(each.elsewhere.in_flight for each in fleet.gateways[3].instances.values())
        )
        first, others = fleet.gateways[0].instances["b"], [gw.instances["b"] for gw in fleet.gateways[1:]]
        taken_out = [each.own_word_until for each in others]
        fleet.gateways[0].gateway.runner.apply(Probed("b", False))
        fleet.gateways[0].gateway.runner.apply(Probed("b", False))
        assert first.ejections == 1
        await fleet.until(
            lambda: all(each.own_word_until > before for each, before in zip(others, taken_out, strict=True))
        )
        over.set()
        await asyncio.gather(*asking)
        assert set(outcomes) == {(200, "ok")}
        await fleet.quiet()
        for gw in fleet.gateways:
            assert all(each.work == each.own == Work() for each in gw.instances.values())
