"""A running gateway whose database file goes away and comes back."""

from __future__ import annotations

import sqlite3

from tests.integration.gateway.live import bearer, live, vllm

ADMIN = {"headers": bearer("root")}


async def test_readiness_says_that_the_file_is_lost_and_keys_are_refused_until_it_is_back(tmp_path):
    auth = {"admin_key_env": "HEADWAY_ADMIN_KEY"}
    async with live(tmp_path, vllm("a"), auth=auth, environment={"HEADWAY_ADMIN_KEY": "root"}) as gw:
        path = tmp_path / "headway.db"
        path.rename(tmp_path / "aside.db")
        found = await gw.get("/readyz")
        assert found == (503, {"status": "store fault", "reason": "the database's file was moved or removed"})
        status, headers, _ = await gw.chat(model="small")
        assert status == 200  # serving goes on
        status, refused = await gw.post("/admin/keys", {"name": "team-b"}, **ADMIN)
        assert (status, refused["error"]["code"]) == (503, "store_unavailable")
        assert "moved or removed" in refused["error"]["message"]
        assert "key" not in refused
        for path_of_callers in ("/v1/routing/req_1", "/v1/routing/a%2500"):
            status, refused = await gw.get(path_of_callers)
            assert (status, refused["error"]["message"]) == (503, "The database does not answer.")
        assert not path.exists()
        await gw.until(lambda: gw.gateway.store.counts().spooled == 1)
        assert "headway_store_file_losses_total 1.0" in await gw.metrics()

        (tmp_path / "aside.db").rename(path)
        await gw.until(lambda: gw.gateway.store.counts().pending == 0)
        assert await gw.get("/readyz") == (200, {"status": "ready"})
        assert (await gw.row(headers["x-request-id"]))["outcome"] == "ok"
        assert (await gw.post("/admin/keys", {"name": "team-b"}, **ADMIN))[0] == 201


async def test_a_database_that_is_away_for_a_while_is_told_and_no_reason_to_stop(tmp_path, monkeypatch):
    monkeypatch.setattr("router.store.database.BUSY_TIMEOUT_MS", 20)
    async with live(tmp_path, vllm("a")) as gw:
        other = sqlite3.connect(tmp_path / "headway.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert (await gw.chat(model="small"))[0] == 200
        await gw.until(lambda: gw.gateway.store.away)
        told = {"status": "ready", "store": "does not answer; records wait"}
        assert await gw.get("/readyz") == (200, told)
        other.close()
        await gw.until(lambda: not gw.gateway.store.away)
        assert await gw.get("/readyz") == (200, {"status": "ready"})
