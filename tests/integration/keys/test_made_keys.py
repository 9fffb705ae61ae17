"""Keys made while the gateway runs: over HTTP, on a real gateway."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from openai import AsyncOpenAI
from sqlalchemy.engine import make_url

from router.config import ConfigError
from router.gateway.routes import keys as routes_of_keys
from router.store.database import StoreError, answering
from router.store.keys import KeyTable
from tests.integration.gateway.live import bearer, key, live, vllm
from tests.pace import lines

ROOT = "the-admin-key"
ADMIN = {"headers": bearer(ROOT)}
KEYS = (
    key("top", makes_keys=True, models=["llama-3.1-8b"], budget_usd=1.0, policy="latency", max_priority=5),
)
LLAMA_FALLS_BACK = [
    {"name": "llama-3.1-8b", "aliases": ["small"], "fallbacks": ["qwen2.5-7b"], "quality": 0.5},
    {"name": "qwen2.5-7b", "quality": 0.6},
]


def gateway(tmp_path, *engines, keys=KEYS, url=None, **sections):
    """A gateway with an admin key and clients' keys; `url` is a database other than its own."""
    environment = {"HEADWAY_ADMIN_KEY": ROOT}
    if url is not None:
        parsed = make_url(url)
        store = {"url": parsed._replace(password=None).render_as_string()}
        if parsed.password is not None:
            environment["STORE_PASSWORD"] = parsed.password
            store["password_env"] = "STORE_PASSWORD"
        sections["store"] = store
    return live(
        tmp_path,
        *(engines or (vllm("a"), vllm("b", "qwen2.5-7b"))),
        auth={"keys": list(keys)},
        environment=environment,
        **sections,
    )


async def make(gw, name, *, by=ROOT, **settings):
    """A new key's text."""
    path = "/admin/keys" if by == ROOT else "/v1/keys"
    status, body = await gw.post(path, {"name": name} | settings, headers=bearer(by))
    assert status == 201, body
    return body["key"]


async def chats(gw, secret, **body):
    return (await gw.chat(headers=bearer(secret), **body))[0]


# --- life ---------------------------------------------------------------------------------------------
@pytest.mark.real_time
async def test_a_key_is_shown_once_works_at_once_and_is_kept_as_its_hash(tmp_path, store_url, caplog):
    caplog.set_level(logging.DEBUG)
    async with gateway(tmp_path, url=store_url) as gw:
        async with gw.http.post(
            f"{gw.url}/admin/keys", json={"name": "team-b", "budget_usd": 2.0}, headers=bearer(ROOT)
        ) as response:
            assert response.status == 201
            assert response.headers["cache-control"] == "no-store"
            made = await response.json()
        secret = made["key"]
        assert secret.startswith("hw-")
        assert len(secret) >= 3 + 43  # 32 bytes
        assert made["settings"] == {"budget_usd": 2.0}
        assert made["effective"]["budget_usd"] == 2.0
        async with AsyncOpenAI(api_key=secret, base_url=f"{gw.url}/v1", max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="auto", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
            )
            assert answer.choices[0].message.content
            assert [each.id async for each in client.models.list()] == ["llama-3.1-8b", "qwen2.5-7b"]
        _, listed = await gw.get("/admin/keys", **ADMIN)
        stored = await gw.gateway.keys.table.rows()
        found = await gw.delete("/admin/keys/team-b", headers=bearer(ROOT))
        assert found == (200, {"name": "team-b", "revoked": ["team-b"]})
        seen = await gw.delete("/admin/keys/team-b", headers=bearer(ROOT))
        assert seen == (200, {"name": "team-b", "revoked": []})
        status, _, refused = await gw.chat(headers=bearer(secret))
        assert (status, refused["error"]["code"]) == (401, "invalid_api_key")
        assert await chats(gw, "top") == 200
    for text in (json.dumps(listed), repr(stored), json.dumps(refused), caplog.text):
        assert secret not in text
        assert secret[3:] not in text
    assert stored[0].sha256 not in json.dumps(listed)


@pytest.mark.real_time
async def test_keys_and_what_they_spent_outlive_the_gateway(tmp_path, store_url):
    async with gateway(tmp_path, url=store_url) as gw:
        secret = await make(gw, "team-b", models=["qwen2.5-7b"])
        gone = await make(gw, "gone", by="top")
        assert await chats(gw, gone) == 200
        await gw.delete("/admin/keys/gone", headers=bearer(ROOT))
        spent_usd = sum(row["cost_usd"] or 0.0 for row in await gw.rows())
    async with gateway(tmp_path, url=store_url) as gw:
        assert await chats(gw, secret) == 200
        assert await chats(gw, secret, model="llama-3.1-8b") == 404
        assert await chats(gw, gone) == 401
        # What a dead key spent still counts for the one that made it.
        own = (await gw.get("/v1/keys/self", headers=bearer("top")))[1]
        assert own["spent_usd"] == {"today": pytest.approx(spent_usd), "total": pytest.approx(spent_usd)}
        assert own["left_usd"]["total"] == pytest.approx(1.0 - spent_usd)
        assert spent_usd > 0


async def test_the_first_key_closes_an_open_gateway_for_good(tmp_path):
    async with gateway(tmp_path, keys=[]) as gw:
        assert (await gw.chat())[0] == 200
        for path in ("/v1/keys", "/v1/keys/self", "/v1/spend"):
            assert (await gw.get(path))[0] == 404
        assert (await gw.post("/v1/keys", {"name": "mine"}))[0] == 404
        status, made = await gw.post("/admin/keys", {"name": "first"}, **ADMIN)
        assert status == 201
        assert "from now on every request needs a key" in made["note"]
        assert (await gw.chat())[0] == 401
        status, second = await gw.post("/admin/keys", {"name": "second"}, **ADMIN)
        assert "note" not in second
        for name in ("first", "second"):
            await gw.delete(f"/admin/keys/{name}", headers=bearer(ROOT))
        assert (await gw.chat())[0] == 401  # no key is left, and nobody is let in


async def test_without_the_admin_key_nobody_gets_at_the_keys(tmp_path):
    async with gateway(tmp_path) as gw:
        for headers in ({}, bearer("top"), bearer("wrong")):
            assert (await gw.get("/admin/keys", headers=headers))[0] == 401
            assert (await gw.get("/admin/spend", headers=headers))[0] == 401
            assert (await gw.post("/admin/keys", {"name": "x"}, headers=headers))[0] == 401
        assert (await gw.delete("/admin/keys/top", headers=bearer("top")))[0] == 401
        assert await chats(gw, ROOT) == 401
        assert (await gw.get("/v1/keys/self", headers=bearer(ROOT)))[0] == 401


async def test_the_admin_key_is_no_clients_key(tmp_path):
    with pytest.raises(ConfigError, match="has the value of the admin key"):
        async with gateway(tmp_path, keys=[key(ROOT, name="client")]):
            pass
    async with gateway(tmp_path) as gw:
        secret = await make(gw, "team-b")
        gw.fleet["auth"]["keys"].append(key(ROOT, name="client"))
        status, told = await gw.post("/admin/reload", {}, **ADMIN)
        assert status == 422
        assert ROOT not in json.dumps(told)
    with pytest.raises(ConfigError, match="admin key has the value of the key team-b"):
        async with live(tmp_path, auth={"keys": [*KEYS]}, environment={"HEADWAY_ADMIN_KEY": secret}):
            pass


# --- keys that make keys ------------------------------------------------------------------------------
async def test_a_holder_makes_sees_and_revokes_its_own_and_nothing_else(tmp_path):
    async with gateway(tmp_path, keys=[*KEYS, key("other", makes_keys=True)]) as gw:
        mine = await make(gw, "mine", by="top", makes_keys=True, budget_usd=0.5, max_priority=3)
        below = await make(gw, "below", by=mine, max_priority=1)
        theirs = await make(gw, "theirs", by="other")
        _, listed = await gw.get("/v1/keys", headers=bearer("top"))
        found = [(each["name"], each["maker"]) for each in listed["keys"]]
        assert found == [("mine", "top"), ("below", "mine")]
        assert listed["keys"][1]["effective"]["budget_usd"] == 0.5
        assert listed["keys"][1]["effective"]["models"] == ["llama-3.1-8b"]
        assert (await gw.get("/v1/keys", headers=bearer(theirs)))[1] == {"keys": []}
        status, own = await gw.get("/v1/keys/self", headers=bearer(below))
        assert status == 200
        assert (own["name"], own["budget_usd"], own["max_priority"]) == ("below", 0.5, 1)
        assert "mine" not in json.dumps(own)  # nor any other key's name
        # Of others' keys and of none it hears the same.
        unknown = (await gw.delete("/v1/keys/nobody", headers=bearer("top")))[1]
        for name in ("theirs", "other", "top", "nobody"):
            assert await gw.delete(f"/v1/keys/{name}", headers=bearer("top")) == (404, unknown)
            if name != "top":
                status, told = await gw.get(f"/v1/spend?key={name}", headers=bearer("top"))
                assert (status, told) == (404, unknown)
        status, told = await gw.post("/v1/keys", {"name": "x"}, headers=bearer(below))
        assert (status, told["error"]["code"]) == (403, "permission_denied")
        seen = await gw.delete("/v1/keys/mine", headers=bearer("top"))
        assert seen == (200, {"name": "mine", "revoked": ["below", "mine"]})
        assert [await chats(gw, secret) for secret in (mine, below, theirs, "top")] == [401, 401, 200, 200]


async def test_holders_change_keys_at_a_bounded_rate(tmp_path, monkeypatch):
    """Every gateway reads all keys after each change; those below one operator's key share the rate."""
    monkeypatch.setattr("router.gateway.routes.keys._CHANGES_AT_ONCE", 3)
    monkeypatch.setattr("router.gateway.routes.keys._CHANGES_PER_S", 1e-3)
    async with gateway(tmp_path, keys=[*KEYS, key("other", makes_keys=True)]) as gw:
        mine = await make(gw, "mine", by="top", makes_keys=True)
        await make(gw, "below", by=mine)
        assert (await gw.delete("/v1/keys/below", headers=bearer("top")))[0] == 200
        for holder in ("top", mine):
            status, told = await gw.post("/v1/keys", {"name": "more"}, headers=bearer(holder))
            assert (status, told["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (await gw.delete("/v1/keys/mine", headers=bearer("top")))[0] == 429
        await make(gw, "theirs", by="other")
        await make(gw, "operators")


async def test_to_tell_of_many_keys_does_not_hold_the_event_loop(tmp_path):
    async with gateway(tmp_path) as gw:
        await make(gw, "k0", by="top", makes_keys=True)
        rows = [  # the first six stand one below the other, the rest below them
            (
                f"k{number}",
                f"{number:064x}",
                f"k{min(number, 6) - 1}",
                '{"makes_keys": true}',
                1.0,
                time.time(),
            )
            for number in range(1, 500)
        ]
        with closing(sqlite3.connect(tmp_path / "headway.db")) as database, database:
            database.executemany(
                "INSERT INTO keys (name, sha256, maker, settings, created_at, changed_at) VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
        await gw.gateway.keys.refresh()

        async def watch(counted):
            nonlocal longest
            while True:
                before = counted.run
                await asyncio.sleep(0)
                longest = max(longest, counted.run - before)

        for path, secret in (("/v1/keys", "top"), ("/admin/keys", ROOT)):
            longest = 0
            with lines() as counted:
                watching = asyncio.create_task(watch(counted))
                async with gw.http.get(gw.url + path, headers=bearer(secret)) as response:
                    text = await response.read()
                watching.cancel()
            assert len(json.loads(text)["keys"]) >= 500
            assert longest < 80_000 < counted.run / 5


async def test_what_goes_beyond_the_maker_is_refused_in_a_sentence(tmp_path):
    async with gateway(tmp_path) as gw:
        for settings, told in (
            ({"budget_usd": 1.5}, "budget_usd: 1.5 is more than the 1 that holds for top."),
            ({"max_priority": 6}, "max_priority: 6 is more than the 5 that holds for top."),
            ({"models": ["qwen2.5-7b"]}, "models: the model 'qwen2.5-7b' does not exist."),
            ({"models": ["nowhere"]}, "models: the model 'nowhere' does not exist."),
            ({"policy": "nothing"}, "policy: there is no such policy"),
            ({"sha256": "0" * 64}, "unknown setting 'sha256'"),
            ({"maker": "other"}, "unknown setting 'maker'"),
        ):
            status, body = await gw.post("/v1/keys", {"name": "new"} | settings, headers=bearer("top"))
            assert (status, body["error"]["code"]) == (422, "invalid_key")
            assert body["error"]["message"].startswith(told)
        for name in ("", "a b", None, 7, "top"):
            status, body = await gw.post("/v1/keys", {"name": name}, headers=bearer("top"))
            assert (status, body["error"]["param"]) == (409 if name == "top" else 422, "name")
        status, body = await gw.post("/admin/keys", {"name": "new", "maker": "nobody"}, **ADMIN)
        assert (status, body["error"]["param"]) == (422, "maker")
        assert await gw.gateway.keys.table.rows() == ()


async def test_what_the_file_says_later_holds_for_all_below(tmp_path):
    async with gateway(tmp_path) as gw:
        made = await make(gw, "made", by="top")
        assert (await gw.get("/v1/keys/self", headers=bearer(made)))[1]["left_usd"]["total"] == 1.0
        gw.fleet["auth"]["keys"] = [key("top", requests_per_minute=1, models=["qwen2.5-7b"])]
        assert (await gw.post("/admin/reload", {}, **ADMIN))[0] == 200
        own = (await gw.get("/v1/keys/self", headers=bearer(made)))[1]
        assert (own["requests_per_minute"], own["models"], own["budget_usd"]) == (1, ["qwen2.5-7b"], None)
        assert await chats(gw, made) == 200
        assert await chats(gw, made) == 429
        assert await chats(gw, "top") == 429  # what it made took its one request
        gw.fleet["auth"]["keys"] = [key("else")]
        assert (await gw.post("/admin/reload", {}, **ADMIN))[0] == 200
        assert await chats(gw, made) == 401  # its maker is gone


async def test_the_files_key_wins_over_the_tables(tmp_path, caplog):
    async with gateway(tmp_path) as gw:
        secret = await make(gw, "team-b")
        gw.fleet["auth"]["keys"] = [*KEYS, key("team-b", max_cost_usd=0.5)]
        assert (await gw.post("/admin/reload", {}, **ADMIN))[0] == 200
        assert "key team-b is in the fleet file and in the table" in caplog.text
        assert await chats(gw, secret) == 401
        assert await chats(gw, "team-b") == 200
        status, told = await gw.delete("/admin/keys/team-b", headers=bearer(ROOT))
        assert (status, told["error"]["code"]) == (409, "in_fleet_file")


# --- a key's models -----------------------------------------------------------------------------------
async def test_for_a_key_with_models_there_are_no_others(tmp_path):
    async with gateway(tmp_path, keys=[key("root")], models=LLAMA_FALLS_BACK) as gw:
        secret = await make(gw, "some", models=["small"])
        headers = bearer(secret)
        assert [m["id"] for m in (await gw.get("/v1/models", headers=headers))[1]["data"]] == ["llama-3.1-8b"]
        assert (await gw.get("/v1/models/small", headers=headers))[0] == 200
        assert (await gw.get("/v1/models/qwen2.5-7b", headers=headers))[0] == 404
        for path in ("/api/tags", "/api/ps"):
            listed = (await gw.get(path, headers=headers))[1]["models"]
            assert [model["name"] for model in listed] == ["llama-3.1-8b:latest"]
        assert (await gw.post("/api/show", {"model": "small"}, headers=headers))[0] == 200
        assert (await gw.post("/api/show", {"model": "qwen2.5-7b"}, headers=headers))[0] == 404
        status, _, told = await gw.chat(headers=headers, model="qwen2.5-7b")
        unknown = (await gw.chat(headers=headers, model="nowhere"))[2]
        assert (status, told["error"]["code"]) == (404, "model_not_found")
        assert json.dumps(told).replace("qwen2.5-7b", "nowhere") == json.dumps(unknown)
        for body in ({"model": "auto"}, {"model": "small"}):
            assert (await gw.chat(headers=headers, **body))[1]["x-headway-model"] == "llama-3.1-8b"
        # Its model's engine dies: the fallback is none of its models. Another key gets it.
        await gw.engines["a"].stop()
        await gw.until(lambda: not gw.instances["a"].healthy)
        assert (await gw.chat(headers=headers, model="small"))[0] == 503
        assert (await gw.chat(headers=bearer("root"), model="small"))[1]["x-headway-model"] == "qwen2.5-7b"
        # Its model leaves the fleet.
        gw.fleet["models"] = [LLAMA_FALLS_BACK[1]]
        gw.fleet["instances"] = [each for each in gw.fleet["instances"] if each["name"] == "b"]
        assert (await gw.post("/admin/reload", {}, **ADMIN))[0] == 200
        status, _, told = await gw.chat(headers=headers)
        assert (status, told["error"]["code"]) == (404, "model_not_found")
        assert "none of the models that this key may use" in told["error"]["message"]
        assert (await gw.get("/v1/models", headers=headers))[1]["data"] == []


# --- money --------------------------------------------------------------------------------------------
async def test_what_is_spent_is_told_to_whom_it_concerns(tmp_path, monkeypatch):
    async with gateway(tmp_path, keys=[*KEYS, key("other")]) as gw:
        made = await make(gw, "made", by="top", budget_usd_per_day=0.25)
        for secret in ("top", made, made, "other"):
            assert await chats(gw, secret, max_tokens=16) == 200
        await gw.until(lambda: gw.gateway.state.spent_usd("other", "total"))
        rows = await gw.rows()
        spent = {
            name: sum(row["cost_usd"] for row in rows if row["key_name"] == name) for name in ("top", "made")
        }
        _, own = await gw.get("/v1/keys/self", headers=bearer(made))
        assert own["spent_usd"]["today"] == own["spent_usd"]["total"] == pytest.approx(spent["made"])
        assert own["left_usd"]["today"] == pytest.approx(0.25 - spent["made"])
        both = spent["top"] + spent["made"]
        assert own["left_usd"]["total"] == pytest.approx(1.0 - both)  # its maker's budget
        _, own = await gw.get("/v1/keys/self", headers=bearer("top"))
        assert own["spent_usd"]["total"] == pytest.approx(both)
        assert own["left_usd"] == {"today": None, "total": pytest.approx(1.0 - both)}
        _, report = await gw.get("/v1/spend?by=key", headers=bearer("top"))
        assert [(row["key"], row["requests"]) for row in report["rows"]] == [("made", 2), ("top", 1)]
        assert report["total"]["cost_usd"] == pytest.approx(both)
        _, report = await gw.get("/v1/spend?by=model&key=made", headers=bearer("top"))
        assert [row["model"] for row in report["rows"]] == ["llama-3.1-8b"]
        assert report["total"]["cost_usd"] == pytest.approx(spent["made"])
        _, report = await gw.get("/admin/spend?by=policy,key&since=7d&until=today", **ADMIN)
        assert {row["key"] for row in report["rows"]} == {"made", "other", "top"}
        assert report["total"]["requests"] == 4
        assert report["total"]["cost_usd"] == pytest.approx(sum(row["cost_usd"] for row in rows))
        assert (await gw.get("/admin/spend?until=2020-01-01", **ADMIN))[1]["rows"] == []
        bad = ("by=colour", "by"), ("since=soon", "since"), ("until=2020-13-01", "until"), ("kye=made", "kye")
        for query, param in bad:
            status, told = await gw.get(f"/v1/spend?{query}", headers=bearer("top"))
            assert (status, told["error"]["param"]) == (400, param)
        for path, caller in (("/v1/spend", {"headers": bearer("top")}), ("/admin/spend", ADMIN)):
            status, told = await gw.get(f"{path}?since=2026-11-23&until=2026-11-22", **caller)
            assert (status, told["error"]["param"]) == (400, "since")
            assert told["error"]["message"] == "since (2026-11-23) is after until (2026-11-22)."
            assert (await gw.get(f"{path}?since=2026-11-22&until=2026-11-22", **caller))[0] == 200
        monkeypatch.setattr(routes_of_keys, "MAX_REPORT_ROWS", 2)
        assert (await gw.get("/v1/spend?by=key", headers=bearer("top")))[0] == 200
        status, told = await gw.get("/admin/spend?by=key", **ADMIN)
        assert (status, told["error"]["message"]) == (
            400,
            "the report has more than 2 rows: give fewer days or dimensions.",
        )


# --- several gateways ---------------------------------------------------------------------------------
@pytest.mark.real_time
async def test_all_gateways_of_one_database_know(tmp_path, store_url):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with (
        gateway(tmp_path / "one", url=store_url) as one,
        gateway(tmp_path / "two", url=store_url) as two,
    ):
        secret = await make(one, "team-b")
        assert await chats(one, secret) == 200
        await two.until(lambda: two.gateway.rules.tenants.get("team-b") is not None)
        assert await chats(two, secret) == 200
        await two.delete("/admin/keys/team-b", headers=bearer(ROOT))
        await one.until(lambda: not one.gateway.rules.tenants.alive("team-b"))
        assert await chats(one, secret) == 401


async def test_while_the_database_is_away_the_known_keys_go_on(tmp_path, monkeypatch, caplog):
    async with gateway(tmp_path) as gw:
        secret = await make(gw, "team-b")
        table = gw.gateway.keys.table
        asked = []

        async def away(self):
            asked.append(self)
            with answering(table._engine):
                raise OSError("hw-not-told")

        with monkeypatch.context() as patch:
            patch.setattr(KeyTable, "version", away)
            await gw.until(lambda: len(asked) > 1)
            assert await chats(gw, secret) == 200
            status, told = await gw.post("/admin/keys", {"name": "kept"}, **ADMIN)
            assert (status, told["name"]) == (201, "kept")  # it is made: this must not be told as a failure
        assert caplog.text.count("the keys cannot be read: ") == 1
        assert "hw-not-told" not in caplog.text
        await gw.until(lambda: gw.gateway.rules.tenants.get("kept") is not None)
        assert await chats(gw, told["key"]) == 200
        assert urlsplit(gw.url).port


async def test_a_revoked_key_ends_even_if_the_database_leaves_then(tmp_path, monkeypatch):
    async def away(*_):
        raise StoreError("the store does not answer")

    async with gateway(tmp_path) as gw:
        secret = await make(gw, "team-b", makes_keys=True)
        below = await make(gw, "team-c", by=secret)
        assert await chats(gw, below) == 200
        monkeypatch.setattr(KeyTable, "version", away)
        status, told = await gw.delete("/admin/keys/team-b", headers=bearer(ROOT))
        assert (status, told["revoked"]) == (200, ["team-b", "team-c"])
        assert [await chats(gw, each) for each in (secret, below)] == [401, 401]


async def test_a_made_key_has_targets_and_metrics_of_its_own(tmp_path):
    async with gateway(tmp_path, keys=[key("root", attainment=0.8)]) as gw:
        secret = await make(gw, "made", maker="root", quality=0.55)
        assert gw.gateway.fleet.targets["made"].quality == 0.55
        assert gw.gateway.fleet.targets["made"].attainment == 0.8
        assert await chats(gw, secret) == 200
        assert 'key="made"' in await gw.metrics()
        gw.fleet["auth"]["keys"] = [key("root", attainment=0.7)]
        assert (await gw.post("/admin/reload", {}, **ADMIN))[0] == 200
        assert gw.gateway.fleet.targets["made"].quality == 0.55
        assert gw.gateway.fleet.targets["made"].attainment == 0.7


async def test_where_keys_are_required_a_lost_database_opens_nothing(tmp_path, caplog):
    auth = {"required": True}
    environment = {"HEADWAY_ADMIN_KEY": ROOT}
    (tmp_path / "first").mkdir()
    async with live(tmp_path / "first", vllm("a"), auth=auth, environment=environment) as gw:
        assert (await gw.chat())[0] == 401
        made = await make(gw, "team-a")
        assert (await gw.chat(headers=bearer(made)))[0] == 200
    (tmp_path / "second").mkdir()  # as with another working directory
    caplog.clear()
    async with live(tmp_path / "second", vllm("a"), auth=auth, environment=environment) as gw:
        assert (await gw.chat())[0] == 401
        assert (await gw.chat(headers=bearer(made)))[0] == 401
        assert "every request is refused until one is made" in caplog.text


async def test_without_an_admin_key_the_first_key_is_not_made_over_http(tmp_path, caplog):
    """The log says once and truly who may use /admin."""
    caplog.set_level(logging.INFO)
    async with live(tmp_path, vllm("a")) as gw:
        assert "there is no admin key: /admin answers programs on this machine only" in caplog.text
        assert (await gw.get("/admin/fleet"))[0] == 200
        assert (await gw.post("/admin/keys", {"name": "mine"}))[0] == 401
        assert (await gw.chat())[0] == 200  # nobody has locked the owner out
    caplog.clear()
    async with live(tmp_path, vllm("a"), server={"host": "0.0.0.0", "port": 0}):
        assert "/admin answers nobody" in caplog.text
        assert caplog.text.count("/admin") == 1


@pytest.mark.parametrize("environment", [{}, {"ROOT": ""}, {"HEADWAY_ADMIN_KEY": ROOT}])
async def test_an_admin_key_that_is_named_and_not_set_stops_the_start(tmp_path, environment):
    with pytest.raises(ConfigError, match=r"^auth\.admin_key_env: the environment variable ROOT is not set$"):
        async with live(tmp_path, vllm("a"), auth={"admin_key_env": "ROOT"}, environment=environment):
            pass


async def test_the_first_key_is_logged_once(tmp_path, caplog):
    environment = {"HEADWAY_ADMIN_KEY": ROOT}
    async with live(tmp_path, vllm("a"), environment=environment) as gw:
        assert "closes" not in caplog.text
        await make(gw, "team-a")
        await make(gw, "team-b")
        assert (
            caplog.text.count("the first key closes the gateway: every request needs a key from now on") == 1
        )
    caplog.clear()
    async with live(tmp_path, vllm("a"), environment=environment):
        assert "closes" not in caplog.text


# --- a gateway that was closed stays closed -----------------------------------------------------------------
async def run_sql(path, *statements):
    """Change a gateway's SQLite file behind its back, as a restore or another program would."""

    def change():
        with closing(sqlite3.connect(path, timeout=10)) as database, database:
            for statement in statements:
                database.execute(statement)

    await asyncio.to_thread(change)


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM keys",
        "UPDATE keys SET settings = 'no JSON', changed_at = changed_at + 1",
        "UPDATE keys SET revoked_at = 1.0, changed_at = changed_at + 1",
        "UPDATE keys SET maker = 'nobody', changed_at = changed_at + 1",
    ],
)
async def test_a_closed_gateway_stays_closed_whatever_becomes_of_the_table(tmp_path, lost):
    async with gateway(tmp_path, keys=[]) as gw:
        secret = await make(gw, "team-a")
        assert await chats(gw, secret) == 200
        await run_sql(tmp_path / "headway.db", lost)
        await gw.gateway.keys.refresh()
        assert (await gw.chat())[0] == 401
        assert await chats(gw, secret) == 401
        assert (await gw.get("/v1/models"))[0] == 401
        gw.fleet["defaults"] = {"policy": "price"}
        assert (await gw.post("/admin/reload", {}, **ADMIN))[0] == 200
        assert (await gw.chat())[0] == 401
        assert await chats(gw, await make(gw, "team-b")) == 200  # and it can be mended


async def test_keys_that_leave_the_fleet_file_open_nothing(tmp_path):
    async with gateway(tmp_path) as gw:
        gw.fleet["auth"] = {"keys": []}
        assert (await gw.post("/admin/reload", {}, **ADMIN))[0] == 200
        assert (await gw.chat())[0] == 401


@pytest.mark.parametrize("database", ["emptied", "removed"])
async def test_a_restart_over_a_table_that_lost_its_keys_opens_nothing(tmp_path, caplog, database):
    path = tmp_path / "headway.db"
    async with gateway(tmp_path, keys=[]) as gw:
        assert (await gw.chat())[0] == 200
        await make(gw, "team-a")
    if database == "removed":
        path.unlink()
    else:
        await run_sql(path, "DELETE FROM keys")
    caplog.clear()
    async with gateway(tmp_path, keys=[]) as gw:
        assert (await gw.chat())[0] == 401
        assert "had keys and has none now" in caplog.text
        assert (await gw.post("/admin/reload", {}, **ADMIN))[0] == 200
        assert (await gw.chat())[0] == 401
        assert await chats(gw, await make(gw, "team-b")) == 200
    (tmp_path / "headway.db-keyed").unlink()  # as the log says
    await run_sql(path, "DELETE FROM keys")
    async with gateway(tmp_path, keys=[]) as gw:
        assert (await gw.chat())[0] == 200


async def test_a_restored_table_gives_no_revoked_key_back(tmp_path):
    async with gateway(tmp_path, keys=[]) as gw:
        secret = await make(gw, "team-a")
        await gw.delete("/admin/keys/team-a", headers=bearer(ROOT))
        assert await chats(gw, secret) == 401
        await run_sql(
            tmp_path / "headway.db", "UPDATE keys SET revoked_at = NULL, changed_at = changed_at + 1"
        )
        await gw.gateway.keys.refresh()
        assert await chats(gw, secret) == 401


async def test_with_keys_and_no_admin_key_admin_answers_nobody(tmp_path, caplog):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("a-client")]}) as gw:
        assert "there is no admin key: /admin answers nobody until there is one" in caplog.text
        assert caplog.text.count("/admin") == 1
        for headers in ({}, bearer("a-client")):
            status, told = await gw.get("/admin/fleet", headers=headers)
            assert (status, "HEADWAY_ADMIN_KEY" in told["error"]["message"]) == (401, True)
        assert (await gw.get("/ui/about.json"))[1]["admin_key_needed"] is True
