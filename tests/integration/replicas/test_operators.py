"""What operators change at one replica holds for all, and for those that start later."""

from __future__ import annotations

import asyncio
import logging

from router.store.redis_link import Link
from router.store.redis_state import _CHANGE
from router.store.state import StateError
from tests.integration.gateway.live import bearer, entry, key, live, vllm
from tests.integration.replicas.replicas import replicas

ADMIN = {
    "auth": {"admin_key_env": "ADMIN", "keys": [key("sesame", quality=0.5)], "engine_env": ["ENGINE_KEY"]}
}
SECRETS = {"ADMIN": "open up", "ENGINE_KEY": "of the engine"}
AS_ADMIN = {"headers": bearer("open up")}


async def test_changes_hold_everywhere_and_for_who_starts_later(tmp_path, redis, caplog):
    extra = vllm("x")
    await extra.start()
    try:
        async with replicas(
            tmp_path, redis, 2, vllm("a", speed=1.0), vllm("b", speed=1.0), environment=SECRETS, **ADMIN
        ) as fleet:
            one, two = fleet.gateways
            assert (await one.post("/admin/instances", entry(extra, api_key_env="ENGINE_KEY"), **AS_ADMIN))[
                0
            ] == 201
            await fleet.until(lambda: "x" in two.instances)
            assert (await two.post("/admin/instances", entry(extra), **AS_ADMIN))[0] == 409
            assert (await two.delete("/admin/instances/a", **AS_ADMIN))[0] == 200
            await fleet.until(lambda: set(one.instances) == {"b", "x"})
            assert (await one.patch("/admin/targets", {"key": "sesame", "quality": 0.9}, **AS_ADMIN))[
                0
            ] == 200
            await fleet.until(lambda: two.gateway.fleet.targets["sesame"].quality == 0.9)
            status, _ = await one.post(
                "/admin/instances", entry(extra, name="y", serves={"no": "x"}), **AS_ADMIN
            )
            assert status == 422
            assert two.gateway.changes.overlay.revision == one.gateway.changes.overlay.revision == 3

            # One that starts later, and one that has not the secret: it says so and goes on with what it has.
            three = await fleet.another(SECRETS)
            assert set(three.instances) == {"b", "x"}
            assert three.gateway.fleet.targets["sesame"].quality == 0.9
            with caplog.at_level(logging.ERROR, "headway"):
                four = await fleet.another({"ADMIN": "open up"})
            assert set(four.instances) == {"a", "b"}
            (line,) = [each.getMessage() for each in caplog.records if "ENGINE_KEY" in each.getMessage()]
            assert "not applied here" in line
            _, told = await four.get("/admin/fleet", **AS_ADMIN)
            assert "ENGINE_KEY" in told["changes"]["trouble"]
            assert (told["changes"]["revision"], told["replicas"]) == (0, 4)
            status, answer = await four.post("/admin/reload", {}, **AS_ADMIN)
            assert status == 200, answer
            await fleet.until(lambda: all(set(gw.instances) == {"a", "b"} for gw in fleet.gateways))
            assert four.gateway.changes.trouble is None
            assert two.gateway.fleet.targets["sesame"].quality == 0.5

            # A drained instance stays for all while one has something there.
            async with one.stream(
                model="auto", headers=bearer("sesame"), max_tokens=4000, ignore_eos=True
            ) as response:
                name = response.headers["x-headway-instance"]
                await fleet.until(lambda: two.instances[name].in_flight == 1)
                assert (await two.delete(f"/admin/instances/{name}?drain=true", **AS_ADMIN))[0] == 200
                await fleet.until(lambda: all(gw.instances[name].draining for gw in fleet.gateways))
                other = "a" if name == "b" else "b"
                for gw in fleet.gateways:
                    status, headers, _ = await gw.chat(headers=bearer("sesame"))
                    assert (status, headers["x-headway-instance"]) == (200, other)
                assert all(name in gw.instances for gw in fleet.gateways)
            await fleet.until(lambda: all(set(gw.instances) == {other} for gw in fleet.gateways))
    finally:
        await extra.stop()


async def test_every_replica_reads_its_own_file_and_a_bad_one_keeps_what_it_has(tmp_path, redis, caplog):
    async with replicas(tmp_path, redis, 3, vllm("a")) as fleet:
        one, two, three = fleet.gateways
        one.fleet["defaults"] = {"policy": "price"}
        two.fleet["defaults"] = {"policy": "round_robin"}
        three.fleet["defaults"] = {"policy": 5}
        with caplog.at_level(logging.ERROR, "headway"):
            assert (await one.post("/admin/reload", {}))[0] == 200
            await fleet.until(lambda: two.gateway.config.defaults.policy == "round_robin")
            await fleet.until(lambda: three.gateway.changes.trouble is not None)
        assert one.gateway.config.defaults.policy == "price"
        assert three.gateway.config.defaults.policy == "latency"
        status, answer = await three.post("/admin/reload", {})  # refused there, and nobody hears of it
        assert (status, "policy" in answer["error"]["message"]) == (422, True)
        assert two.gateway.changes.overlay.reloads == 1
        three.fleet["defaults"] = {"policy": "cost"}
        assert (await three.post("/admin/reload", {}))[0] == 200
        assert three.gateway.config.defaults.policy == "cost"
        assert three.gateway.changes.trouble is None
        await fleet.until(lambda: {gw.gateway.changes.overlay.reloads for gw in fleet.gateways} == {2})


async def test_two_changes_at_once_are_both_made(tmp_path, redis):
    engines = [vllm(name) for name in "uvwxyz"]
    for engine in engines:
        await engine.start()
    try:
        async with replicas(tmp_path, redis, 2, vllm("a")) as fleet:
            answers = await asyncio.gather(
                *(
                    fleet.gateways[at % 2].post("/admin/instances", entry(engine))
                    for at, engine in enumerate(engines)
                )
            )
            assert [status for status, _ in answers] == [201] * 6
            await fleet.until(lambda: all(set(gw.instances) == {*"auvwxyz"} for gw in fleet.gateways))
            documents = [gw.gateway.changes.overlay for gw in fleet.gateways]
            assert documents[0] == documents[1]
    finally:
        for engine in engines:
            await engine.stop()


async def test_a_change_whose_answer_is_lost_is_not_said_to_be_undone(tmp_path, redis, monkeypatch):
    sections = {"state": {"url": redis.url}}
    async with live(tmp_path, vllm("a"), vllm("b"), **sections) as gw:
        run = Link.run

        async def loses_the_answer(link, script, *arguments):
            answer = await run(link, script, *arguments)
            if script is _CHANGE:
                raise StateError("TimeoutError")
            return answer

        monkeypatch.setattr(Link, "run", loses_the_answer)
        status, answer = await gw.delete("/admin/instances/b")
        assert status == 503
        assert "nothing was changed, unless" in answer["error"]["message"]
        await gw.until(lambda: "b" not in gw.instances)  # it had been made


async def test_without_redis_a_replica_serves_and_changes_are_refused(tmp_path, redis):
    redis.kill()
    sections = {"state": {"url": redis.url, "timeout_ms": 100}}
    async with live(tmp_path, vllm("a"), **sections) as gw:
        assert (await gw.chat())[0] == 200
        status, answer = await gw.post("/admin/reload", {})
        assert (status, answer["error"]["code"]) == (503, "state_unavailable")
        assert "nothing was changed" in answer["error"]["message"]
        assert (await gw.delete("/admin/instances/a"))[0] == 503
        gw.fleet["defaults"] = {"policy": "price"}
        await gw.gateway.changes.reload()  # on SIGHUP: this process
        assert gw.gateway.config.defaults.policy == "price"
        _, told = await gw.get("/admin/fleet")
        assert (told["state"]["connected"], told["replicas"]) == (False, 1)
        redis.start()
        await gw.until(lambda: gw.gateway.state.health.connected)
        # It first makes sure that no other replica knows of a later change.
        async with asyncio.timeout(60):
            while (await gw.post("/admin/reload", {}))[0] != 200:  # noqa: ASYNC110 (a test may poll)
                await asyncio.sleep(0.05)
        assert gw.gateway.changes.overlay.reloads == 1
