"""The admin API: the fleet changed under load, what was recorded, who may."""

from __future__ import annotations

import asyncio
import logging
from unittest.mock import MagicMock

import pytest

from router.core.profile import EngineProfile
from router.gateway.app import create_app
from tests.integration.gateway.live import MODELS, bearer, entry, events, fault, key, live, vllm


async def test_the_fleet_as_it_is(tmp_path, monkeypatch):
    async with live(tmp_path, vllm("a"), vllm("b"), instance={"a": {"max_concurrency": 7}}) as gw:
        coverage = MagicMock(return_value={"b": {"observed": 3.0}})
        monkeypatch.setattr(gw.gateway.predictor, "coverage", coverage)
        status, fleet = await gw.get("/admin/fleet")
        assert status == 200
        instance, other = fleet["instances"]
        assert (instance["name"], instance["kind"], instance["healthy"]) == ("a", "vllm", True)
        assert (instance["max_concurrency"], instance["in_flight"]) == (7, 0)
        assert instance["serves"] == {"llama-3.1-8b": "up/llama-3.1-8b"}
        assert [model["name"] for model in fleet["models"]] == ["llama-3.1-8b", "qwen2.5-7b"]
        assert (fleet["queue_depth"], fleet["draining"]) == (0, False)
        assert (instance["prediction"], other["prediction"]) == (None, {"observed": 3.0})
        assert coverage.call_count == 1  # for all instances


async def test_an_instance_is_added_and_taken_out(tmp_path):
    extra = vllm("b")
    await extra.start()
    try:
        async with live(tmp_path, vllm("a")) as gw:
            status, added = await gw.post("/admin/instances", entry(extra))
            assert (status, added["name"]) == (201, "b")
            assert (await gw.post("/admin/instances", entry(extra)))[0] == 409
            for bad in (
                {"name": "c", "kind": "vllm"},
                entry(extra, name="c", kind="steam"),
                entry(extra, name="c", url="ftp://x"),
                entry(extra, name="c", colour="red"),
                entry(extra, name="c", serves={"unknown-model": "x"}),
                entry(extra, name="c", max_concurrency=0),
                {"name": "c", "kind": "emulated", "profile": "no@thing", "serves": {"llama-3.1-8b": "x"}},
                {},
            ):
                status, answer = await gw.post("/admin/instances", bad)
                assert (status, len(answer["error"]["message"].splitlines())) == (422, 1), bad
            # Without an admin key nobody may have a secret of the environment sent to a URL of theirs.
            secret = entry(extra, name="c", api_key_env="PATH")
            assert (await gw.post("/admin/instances", secret))[0] == 401
            assert (await gw.send("POST", "/admin/instances", data=b"{"))[0] in (400, 422)
            assert set(gw.instances) == {"a", "b"}
            seen = set()
            for _ in range(4):
                _, headers, _ = await gw.chat(model="small:round_robin")
                seen.add(headers["x-headway-instance"])
            assert seen == {"a", "b"}
            status, answer = await gw.delete("/admin/instances/b?drian=true")
            assert (status, answer["error"]["message"]) == (400, "drian is not a known parameter.")
            assert set(gw.instances) == {"a", "b"}
            assert (await gw.delete("/admin/instances/b"))[0] == 200
            status, answer = await gw.delete("/admin/instances/b")
            assert (status, answer["error"]["code"]) == (404, "not_found")
            assert set(gw.instances) == {"a"}
            assert (await gw.chat(model="small:round_robin"))[1]["x-headway-instance"] == "a"
    finally:
        await extra.stop()


@pytest.mark.parametrize("drain", [True, False])
async def test_a_stream_under_way_survives_its_instance_being_taken_out(tmp_path, drain):
    async with live(tmp_path, vllm("a", speed=1.0), vllm("b")) as gw:
        async with gw.stream(model="small", max_tokens=80, ignore_eos=True) as response:
            name = response.headers["x-headway-instance"]
            path = f"/admin/instances/{name}" + ("?drain=true" if drain else "")
            assert (await gw.delete(path))[0] == 200
            if drain and name == "a":
                assert gw.instances[name].draining
                assert gw.instances[name].in_flight == 1
            elif not drain:
                assert name not in gw.instances
            other = "b" if name == "a" else "a"
            for _ in range(3):
                status, headers, _ = await gw.chat(model="small", max_tokens=2)
                assert (status, headers["x-headway-instance"]) == (200, other)
            got = events(await response.text())
        assert got[-1] == "[DONE]"
        assert (await gw.row(response.headers["x-request-id"]))["outcome"] == "ok"
        await gw.until(lambda: name not in gw.instances)


async def test_an_instance_that_is_added_again_still_has_its_streams(tmp_path):
    settings = {"max_concurrency": 1}
    async with live(tmp_path, vllm("a", speed=1.0), instance={"a": settings}) as gw:
        async with gw.stream(model="small", max_tokens=80, ignore_eos=True) as response:
            assert (await gw.delete("/admin/instances/a"))[0] == 200
            assert (await gw.post("/admin/instances", entry(gw.engines["a"], **settings)))[0] == 201
            waits = asyncio.create_task(gw.chat(model="small", max_tokens=2))
            await gw.until(lambda: gw.gateway.runner.scheduler.queue_depth)
            assert gw.instances["a"].in_flight == 1
            assert events(await response.text())[-1] == "[DONE]"
        assert (await waits)[0] == 200
        assert gw.instances["a"].in_flight == 0


async def test_a_drained_instance_may_be_added_again(tmp_path):
    async with live(tmp_path, vllm("a"), vllm("b")) as gw:
        for _ in range(2):
            assert (await gw.delete("/admin/instances/b?drain=true"))[0] == 200
            await gw.until(lambda: "b" not in gw.instances)
            assert (await gw.post("/admin/instances", entry(gw.engines["b"])))[0] == 201
            await gw.until(lambda: gw.instances["b"].healthy)
            assert not gw.instances["b"].draining


async def test_a_reload_that_lasts_until_the_gateway_stops_watches_nothing_again(tmp_path, monkeypatch):
    begun, released = asyncio.Event(), asyncio.Event()
    async with live(tmp_path, vllm("a")) as gw:
        prepare = gw.gateway.fleet.prepare

        async def slowly(config):
            begun.set()
            await released.wait()
            return await prepare(config)

        monkeypatch.setattr(gw.gateway.fleet, "prepare", slowly)
        reload = asyncio.create_task(gw.gateway.changes.reload())
        await begun.wait()
        asyncio.get_running_loop().call_later(30, released.set)
    await reload
    assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("monitor")]


async def test_requests_and_their_filters(tmp_path):
    async with live(tmp_path, vllm("a"), vllm("b", "qwen2.5-7b")) as gw:
        ids = []
        for body in (
            {"model": "small:price"},
            {"model": "qwen2.5-7b:latency"},
            {"model": "gpt-9"},
            {"model": "small:latency"},
        ):
            _, headers, _ = await gw.chat(**body)
            ids.append(headers["x-request-id"])
            await asyncio.sleep(0.002)  # ids are in the order of their milliseconds

        async def listed(query=""):
            status, page = await gw.get(f"/admin/requests?{query}")
            assert status == 200, page
            return [row["id"] for row in page["requests"]]

        assert await listed() == ids[::-1]
        assert await listed("outcome=ok") == [ids[3], ids[1], ids[0]]
        assert await listed("outcome=rejected_invalid") == [ids[2]]
        assert await listed("policy=price") == [ids[0]]
        assert await listed("model=llama-3.1-8b") == [ids[3], ids[0]]
        assert await listed("instance=b&outcome=ok") == [ids[1]]
        assert await listed("key=nobody") == []
        assert await listed("since=99999999999") == []
        first = (await gw.get("/admin/requests?limit=3"))[1]
        second = (await gw.get(f"/admin/requests?limit=3&cursor={first['next_cursor']}"))[1]
        assert [row["id"] for row in first["requests"] + second["requests"]] == ids[::-1]
        assert second["next_cursor"] is None
        for bad in ("limit=0", "limit=x", "outcome=nonsense", "since=nan", "cursor=garbage", "insatnce=a"):
            status, answer = await gw.get(f"/admin/requests?{bad}")
            assert (status, answer["error"]["param"]) == (400, bad.partition("=")[0])
        assert len((await gw.get("/admin/requests"))[1]["requests"]) == 4  # admin calls write no row


async def test_a_request_explained(tmp_path):
    engines = (vllm("a"), vllm("b"), vllm("c", "qwen2.5-7b"), vllm("d", "qwen2.5-7b"))
    async with live(
        tmp_path, *engines, instance={"d": {"max_concurrency": 1}}, probes={"interval_s": 5, "eject_after": 9}
    ) as gw:
        gw.instances["b"].draining = True
        for name in "acd":
            gw.engines[name].arm(fault("status"))
        gw.engines["d"].faults.clear()
        _, headers, _ = await gw.chat(model="auto", routing={"policy": "round_robin", "min_quality": 0.55})
        for _ in range(3):
            _, headers, _answer = await gw.chat(
                model="auto", routing={"policy": "round_robin", "min_quality": 0.55}
            )
        status, told = await gw.get(f"/admin/requests/{headers['x-request-id']}")
        assert status == 200
        assert {candidate["instance"] for candidate in told["candidates"]} == set("abcd")
        by_name = {candidate["instance"]: candidate for candidate in told["candidates"]}
        assert sum(candidate["chosen"] for candidate in by_name.values()) == 1
        assert by_name["a"]["reason"] == by_name["b"]["reason"] == "quality below 0.55"
        assert all(candidate["chosen"] or candidate["reason"] for candidate in by_name.values())
        _, page = await gw.get("/admin/requests?instance=d")
        retried = [row["id"] for row in page["requests"] if row["attempts"] == 2]
        for request_id in retried:
            _, told = await gw.get(f"/admin/requests/{request_id}")
            assert [attempt["ended_how"] for attempt in told["attempts"]] == ["failed", "ok"]
            assert len(told["decisions"]) == 2
            (tried,) = [c for c in told["candidates"] if c["instance"] == "c"]
            assert tried["reason"] == "already tried"
        assert (await gw.get("/admin/requests/req_none"))[0] == 404


async def test_reload(tmp_path):
    async with live(tmp_path, vllm("a", speed=1.0)) as gw:
        async with gw.stream(model="small", max_tokens=60, ignore_eos=True) as response:
            good = gw.fleet["models"]
            gw.fleet["models"] = [MODELS[0] | {"price": "cheap"}]
            status, answer = await gw.post("/admin/reload", {})
            assert status == 422
            assert "price" in answer["error"]["message"]
            assert (await gw.get("/v1/models"))[1]["data"][0]["id"] == "llama-3.1-8b"  # the old one stays
            gw.fleet["models"] = [*good, {"name": "new", "aliases": ["fresh"]}]
            gw.fleet["instances"][0]["serves"]["new"] = "up/llama-3.1-8b"
            gw.fleet["defaults"] = {"policy": "price"}
            gw.fleet["auth"] = {"keys": [key("sesame")]}
            assert (await gw.post("/admin/reload", {}))[0] == 200
            assert (await gw.chat())[0] == 401
            status, _headers, answer = await gw.chat(model="fresh", headers=bearer("sesame"))
            assert (status, answer["model"], answer["headway"]["policy"]) == (200, "new", "price")
            assert events(await response.text())[-1] == "[DONE]"
        assert (await gw.row(response.headers["x-request-id"]))["outcome"] == "ok"
        assert gw.instances["a"].in_flight == 0


async def test_a_reload_tells_what_changed_and_what_needs_a_restart(tmp_path, caplog):
    caplog.set_level(logging.INFO, "headway")
    async with live(tmp_path, vllm("a"), vllm("b")) as gw:

        async def reload() -> tuple[list[str], str]:
            caplog.clear()
            status, answer = await gw.post("/admin/reload", {}, headers=bearer("sesame"))
            assert status == 200
            (line,) = [each for each in caplog.messages if each.startswith("the fleet file is applied")]
            return answer["needs_restart"], line

        assert await reload() == ([], "the fleet file is applied (nothing has changed)")
        gw.fleet["models"] = [*gw.fleet["models"], {"name": "new"}]
        gw.fleet["instances"] = [gw.fleet["instances"][0] | {"max_concurrency": 3}]
        gw.fleet["defaults"] = {"policy": "price"}
        gw.fleet["server"] = {"port": 1, "max_connections": 50}
        gw.fleet["store"] = gw.fleet["store"] | {"retain_days": 3.0, "when_full": "refuse"}
        pool = {"hardware": "l4", "kind": "vllm", "serves": {"llama-3.1-8b": "up/llama-3.1-8b"}}
        gw.fleet["scaling"] = {"pools": [{"name": "l4", "instance": pool}]}  # there was none at the start
        late = ["server.port", "store.retain_days", "scaling.pools"]
        assert await reload() == (
            late,
            "the fleet file is applied (models: 1 added; instances: 1 removed, 1 changed; changed in server, store, "
            "defaults, scaling); only a restart applies server.port, store.retain_days, scaling.pools",
        )
        assert (await reload())[0] == late  # still


async def test_many_reloads_lose_no_request(tmp_path):
    async with live(tmp_path, vllm("a"), vllm("b")) as gw:

        async def ask():
            return [(await gw.chat(model="small", stream=False, max_tokens=20))[0] for _ in range(8)]

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for number in range(6):
            gw.fleet["instances"][0]["max_concurrency"] = 10 + number
            gw.fleet["limits"] = {"max_queue": 100 + number}
            assert (await gw.post("/admin/reload", {}))[0] == 200
            await asyncio.sleep(0.02)
        statuses = [status for part in await asyncio.gather(*asking) for status in part]
        assert statuses == [200] * 32
        assert all(instance.in_flight == 0 for instance in gw.instances.values())


async def test_scaling(tmp_path):
    async with live(tmp_path, vllm("a", speed=1.0), instance={"a": {"max_concurrency": 2}}) as gw:
        status, wanted = await gw.get("/admin/scaling")
        assert status == 200
        by_model = {each["model"]: each for each in wanted["models"]}
        assert (by_model["llama-3.1-8b"]["replicas"], by_model["llama-3.1-8b"]["desired_replicas"]) == (1, 1)
        assert (by_model["qwen2.5-7b"]["replicas"], by_model["qwen2.5-7b"]["desired_replicas"]) == (0, None)
        async with gw.stream(model="small"), gw.stream(model="small"):
            waiting = [asyncio.create_task(gw.chat(model="small", max_tokens=1)) for _ in range(3)]
            await gw.until(lambda: gw.gateway.runner.scheduler.queue_depth == 3)
            _, wanted = await gw.get("/admin/scaling")
            by_model = {each["model"]: each for each in wanted["models"]}
            assert by_model["llama-3.1-8b"]["queued"] == 3
            assert by_model["llama-3.1-8b"]["desired_replicas"] == 4  # 5 / (0.7 x 2)
        await asyncio.gather(*waiting)


async def test_the_plan_of_a_batch(tmp_path):
    async with live(tmp_path, vllm("a"), vllm("b")) as gw:
        for name, per_token_s in (("a", 1e-3), ("b", 2e-4)):
            profile = EngineProfile("p", 0.0, 0.0, per_token_s, 0.0, 0.0, 1_000_000)
            gw.gateway.runner.scheduler.instances[name].profiles["llama-3.1-8b"] = profile
        status, plan = await gw.post("/admin/plan/batch", {"prompts": [{"tokens": 500}, {"tokens": 5000}]})
        assert (status, [each["instance"] for each in plan["prompts"]]) == (200, ["a", "b"])
        assert max(each["ends_s"] for each in plan["instances"]) == plan["makespan_s"] >= plan["bound_s"] > 0
        status, answer = await gw.post("/admin/plan/batch", {"prompts": [{"tokens": 500, "model": "none"}]})
        assert (status, answer["error"]["param"]) == (400, "prompts.0")
        for bad in ({}, {"prompts": []}, {"prompts": [{"tokens": 0}]}, {"prompts": [{"tokens": "9"}]}):
            status, answer = await gw.post("/admin/plan/batch", bad)
            assert (status, bool(answer["error"]["message"])) == (400, True), bad


async def test_the_admin_key(tmp_path):
    auth = {"admin_key_env": "ADMIN", "keys": [key("sesame")]}
    async with live(tmp_path, vllm("a"), auth=auth, environment={"ADMIN": "open up"}) as gw:
        paths = (await gw.get("/openapi.json"))[1]["paths"]
        routes = [(method, path) for path in paths if path.startswith("/admin/") for method in paths[path]]
        assert len(routes) > 12
        for method, path in routes:
            for headers in (None, bearer("sesame"), bearer("wrong")):
                status, answer = await gw.send(method, path, headers=headers)
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key"), path
        assert (await gw.get("/admin/fleet", headers=bearer("open up")))[0] == 200
        assert (await gw.chat(headers=bearer("open up")))[0] == 401  # it is no client key


async def test_without_an_admin_key_only_this_machine_may(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        assert (await gw.get("/admin/fleet"))[0] == 200
        app = create_app(gw.gateway)

        async def status_from(client):
            sent = []

            async def send(message):
                sent.append(message)

            async def receive():
                return {"type": "http.request", "body": b"", "more_body": False}

            scope = {
                "type": "http", "method": "GET", "path": "/admin/fleet", "raw_path": b"/admin/fleet",
                "query_string": b"", "headers": [], "client": client, "http_version": "1.1",
                "scheme": "http", "server": ("127.0.0.1", 1), "root_path": "",
            }  # fmt: skip
            await app(scope, receive, send)
            return sent[0]["status"]

        assert await status_from(("127.0.0.1", 1)) == 200
        assert await status_from(("::1", 1)) == 200
        assert await status_from(("10.0.0.7", 1)) == 401
        assert await status_from(("localhost.evil", 1)) == 401
        assert await status_from(None) == 401


async def test_an_added_instance_gets_no_variable_that_the_fleet_file_does_not_name(tmp_path):
    environment = {"HEADWAY_ADMIN_KEY": "root", "DATABASE_URL": "secret", "ENGINE_KEY": "for engines"}
    extra = vllm("b")
    await extra.start()
    try:
        async with live(
            tmp_path, vllm("a"), environment=environment, auth={"engine_env": ["ENGINE_KEY"]}
        ) as gw:
            for member in ({"api_key_env": "DATABASE_URL"}, {"headers_env": {"x-a": "HEADWAY_ADMIN_KEY"}}):
                status, told = await gw.post(
                    "/admin/instances", entry(extra, name="c", **member), headers=bearer("root")
                )
                assert (status, told["error"]["code"]) == (422, "invalid_fleet")
                assert "secret" not in str(told)
            named = entry(extra, name="c", api_key_env="ENGINE_KEY")
            assert (await gw.post("/admin/instances", named, headers=bearer("root")))[0] == 201
    finally:
        await extra.stop()
