"""`headway keys` and `headway spend`, on the database of a running gateway or of none."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import Done
from tests.integration.gateway.live import MODELS, bearer, key, live, vllm

pytestmark = pytest.mark.real_time


def process(*arguments: str) -> Done:
    """The command as a process of its own."""
    command = [sys.executable, "-m", "router.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def fleet_file(directory: Path, **sections: Any) -> str:
    """A fleet file beside the database that `live` uses there."""
    path = directory / "fleet.yaml"
    fleet = {"store": {"url": f"sqlite+aiosqlite:///{directory / 'headway.db'}"}, "models": MODELS} | sections
    path.write_text(yaml.safe_dump(fleet), encoding="utf-8")
    return str(path)


def made(done: Done) -> str:
    """A new key, as a script would take it."""
    assert done.code == 0, done.err
    assert re.fullmatch(r"hw-[A-Za-z0-9_-]{43}\n", done.out)
    assert done.out.strip() not in done.err
    return done.out.strip()


def listed(done: Done) -> dict[str, dict[str, Any]]:
    """What `keys list --json` told, by name."""
    assert done.code == 0, done.err
    return {each["name"]: each for each in json.loads(done.out)["keys"]}


async def test_a_running_gateway_follows_the_command(tmp_path, headway):
    config = fleet_file(tmp_path)

    async def beside(*arguments: str) -> Done:
        return await asyncio.to_thread(headway, *arguments)

    async with live(tmp_path, vllm("a"), vllm("b", "qwen2.5-7b")) as gw:
        assert (await gw.chat())[0] == 200
        done = await asyncio.to_thread(
            process,
            "keys",
            "create",
            "--config",
            config,
            *("--name", "team-a", "--makes-keys", "--models", "small"),
        )
        assert "the gateways were open to everyone until now" in done.err
        first = made(done)
        await gw.until(lambda: not gw.gateway.rules.keys.open)
        assert (await gw.chat())[0] == 401
        below = made(
            await beside(
                "keys",
                "create",
                "--config",
                config,
                "--name",
                "bot",
                "--maker",
                "team-a",
                "--budget-usd",
                "1",
            )
        )
        await gw.until(lambda: "bot" in gw.gateway.rules.working)
        for secret in (first, below, below):
            assert (await gw.chat(headers=bearer(secret)))[0] == 200
        assert (await gw.chat(headers=bearer(below), model="qwen2.5-7b"))[0] == 404
        rows = await gw.rows()
        spent = {
            name: sum(r["cost_usd"] or 0.0 for r in rows if r["key_name"] == name)
            for name in ("team-a", "bot")
        }
        told = listed(await beside("keys", "list", "--config", config, "--json"))
        assert told["bot"]["spent_total_usd"] == pytest.approx(spent["bot"])
        assert told["team-a"]["spent_today_usd"] == pytest.approx(spent["bot"] + spent["team-a"])
        done = await beside("keys", "revoke", "--config", config, "team-a")
        assert (done.code, done.out) == (0, "bot\nteam-a\n")
        assert done.err.startswith("Keys below it, revoked with it: bot.\n")
        assert "No key is left" in done.err
        await gw.until(lambda: not gw.gateway.rules.working)
        for secret in (first, below):
            assert (await gw.chat(headers=bearer(secret)))[0] == 401
        assert (await gw.chat())[0] == 401
        # What was spent is still told, and adds up to the rows.
        rows = await gw.rows()
        report = json.loads((await beside("spend", "--config", config, "--by", "key,model", "--json")).out)
        by_key: dict[str, float] = {}
        for row in report["rows"]:
            by_key[row["key"]] = by_key.get(row["key"], 0.0) + row["cost_usd"]
        assert by_key["bot"] == pytest.approx(spent["bot"])
        assert report["total"]["requests"] == len(rows)
        assert report["total"]["cost_usd"] == pytest.approx(sum(row["cost_usd"] or 0.0 for row in rows))
        assert report["total"]["output_tokens"] == sum(row["output_tokens"] or 0 for row in rows)


def test_spend_as_a_table_and_for_a_spreadsheet(tmp_path, headway):
    config = fleet_file(tmp_path)

    async def spend() -> float:
        async with live(tmp_path, vllm("a"), auth={"keys": [key("team-a"), key("team-b")]}) as gw:
            for secret in ("team-a", "team-b", "team-b"):
                await gw.chat(headers=bearer(secret), max_tokens=8)
            return sum(row["cost_usd"] for row in await gw.rows())

    cost_usd = asyncio.run(spend())
    done = headway("spend", "--config", config, "--by", "day,key", "--since", "7d")
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0][:2] == ["day", "key"]
    assert [line[1:3] for line in lines[1:3]] == [["team-a", "1"], ["team-b", "2"]]
    assert lines[-1][:2] == ["total", "3"]
    assert float(lines[-1][-1]) == pytest.approx(cost_usd, abs=1e-6)
    done = headway("spend", "--config", config, "--by", "key,policy", "--csv", "--key", "team-b")
    found = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["key"], row["policy"], row["requests"]) for row in found] == [("team-b", "latency", "2")]
    done = headway("spend", "--config", config, "--until", "2020-01-01", "--json")
    assert json.loads(done.out)["total"] == {
        "requests": 0, "prompt_tokens": 0, "output_tokens": 0, "cost_usd": 0
    }  # fmt: skip
    for arguments, told in (
        (("--by", "colour"), "unknown dimension 'colour'"),
        (("--since", "last week"), "'last week' is not a day"),
        (("--until", "2026-02-30"), "'2026-02-30' is not a day"),
        (
            ("--since", "2026-02-02", "--until", "2026-02-01"),
            "since (2026-02-02) is after until (2026-02-01)",
        ),
    ):
        done = headway("spend", "--config", config, *arguments)
        assert (done.code, done.out) == (2, "")
        assert told in done.err


def test_keys_are_made_before_any_gateway_runs(tmp_path, headway):
    config = fleet_file(tmp_path, auth={"keys": [key("team-a", budget_usd=1.0, makes_keys=True)]})
    done = headway("keys", "list", "--config", config)
    assert (done.code, done.out) == (2, "")
    assert "no database at" in done.err
    done = headway(
        *("keys", "create", "--config", config, "--name", "bot"),
        *("--maker", "team-a", "--policy", "cost", "--locked", "--models", "small", "--max-priority", "-1"),
        *("--min-quality", "0.5", "--quality", "0.55", "--attainment", "0.9", "--budget-usd-per-day", "0.25"),
        *("--requests-per-minute", "60", "--tokens-per-minute", "6000", "--max-concurrency", "4"),
        *("--max-cost-usd", "0.01"),
    )
    secret = made(done)
    told = listed(headway("keys", "list", "--config", config, "--json"))
    assert told["bot"] | {"created_at": None} == {
        "name": "bot",
        "state": "works",
        "source": "table",
        "maker": "team-a",
        "created_at": None,
        "revoked_at": None,
        "spent_today_usd": 0,
        "spent_total_usd": 0,
        "policy": "cost",
        "locked": True,
        "models": ["llama-3.1-8b"],
        "max_priority": -1,
        "min_quality": 0.5,
        "quality": 0.55,
        "attainment": 0.9,
        "budget_usd_per_day": 0.25,
        "budget_usd": 1.0,  # its maker's
        "requests_per_minute": 60,
        "tokens_per_minute": 6000,
        "max_concurrency": 4,
        "max_cost_usd": 0.01,
        "makes_keys": False,
    }
    table = headway("keys", "list", "--config", config).out
    assert "locked to cost; models llama-3.1-8b" in table
    assert "team-a" in table
    assert secret not in table
    with closing(sqlite3.connect(tmp_path / "headway.db")) as database:
        assert secret not in "\n".join(database.iterdump())


def test_a_database_that_is_made_is_named_and_one_that_is_gone_is_not_made_again(
    tmp_path, headway, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    config = fleet_file(tmp_path, store={"url": "sqlite+aiosqlite:///headway.db"})
    database = tmp_path / "headway.db"
    for action in (("keys", "list"), ("keys", "revoke", "x"), ("spend",), ("db", "version")):
        done = headway(*action, "--config", config)
        assert (done.code, done.out) == (2, "")
        assert f"no database at {database}" in done.err
    done = headway("keys", "create", "--config", config, "--name", "first")
    made(done)
    assert f"A new database was created, {database}: only gateways with this file accept the key." in done.err
    assert "two seconds" not in done.err
    done = headway("keys", "create", "--config", config, "--name", "second")
    assert f"Gateways with this database, {database}, accept it within two seconds." in done.err
    database.unlink()
    for left in ("headway.db-keyed", "headway.db-run-0001"):
        (tmp_path / left).touch()
        done = headway("keys", "create", "--config", config, "--name", "third")
        assert (done.code, done.out) == (2, "")
        assert f"no database at {database}, but a gateway had one there ({left} still exists)" in done.err
        assert not database.exists()
        (tmp_path / left).unlink()


def test_what_is_wrong_is_one_clear_line(tmp_path, headway):
    config = fleet_file(tmp_path, auth={"keys": [key("team-a", budget_usd=1.0)]})
    made(headway("keys", "create", "--config", config, "--name", "bot", "--maker", "team-a"))
    for arguments, told in (
        (("create", "--name", "bot"), "name: the name 'bot' is taken"),
        (("create", "--name", "team-a"), "name: the name 'team-a' is taken"),
        (("create", "--name", "a b"), "name: "),
        (
            ("create", "--name", "x", "--maker", "team-a", "--budget-usd", "2"),
            "budget_usd: 2 is more than the 1",
        ),
        (("create", "--name", "x", "--maker", "nobody"), "maker: there is no key 'nobody'"),
        (("create", "--name", "x", "--budget-usd", "nan"), "budget_usd: "),
        (("revoke", "nobody"), "there is no key 'nobody'"),
        (("revoke", "team-a"), "team-a is in the fleet file: remove it there and reload"),
    ):
        action, *rest = arguments
        done = headway("keys", action, "--config", config, *rest)
        assert (done.code, done.out) == (2, ""), arguments
        assert done.err.startswith("headway keys: "), arguments
        assert told in done.err
        assert len(done.err.splitlines()) == 1
    assert set(listed(headway("keys", "list", "--config", config, "--json"))) == {"team-a", "bot"}


def test_who_may_ask_is_told_as_it_is(tmp_path, headway):
    """By `check`, and by the command that makes the first key."""
    database, mark = tmp_path / "headway.db", tmp_path / "headway.db-keyed"

    def check(**sections: Any) -> str:
        return " ".join(headway("check", "--config", fleet_file(tmp_path, **sections)).out.split())

    assert "there are no keys: anyone who reaches the gateway may use it" in check()
    told = check(auth={"required": True})
    assert "if the database has none either, every request is refused" in told
    assert "anyone" not in told
    mark.touch()
    told = check()
    assert "if it has none now, every request is refused" in told
    assert "anyone" not in told
    mark.unlink()
    assert "anyone" not in check(auth={"keys": [key("team-a")]})
    assert headway("db", "upgrade", "--config", fleet_file(tmp_path)).code == 0
    done = headway("keys", "create", "--config", fleet_file(tmp_path, auth={"required": True}), "--name", "a")
    assert "the gateways refused every request until now" in done.err
    told = check()
    assert "anyone" not in told
    assert "refused" not in told
    database.unlink()
    assert headway("db", "upgrade", "--config", fleet_file(tmp_path)).code == 0
    mark.touch()
    done = headway("keys", "create", "--config", fleet_file(tmp_path), "--name", "a")
    assert "the gateways refused every request until now" in done.err


def test_check_warns_of_a_key_that_is_in_the_file_and_in_the_table(tmp_path, headway):
    config = fleet_file(tmp_path)
    made(headway("keys", "create", "--config", config, "--name", "team-a"))
    assert "team-a" not in headway("check", "--config", config).out
    config = fleet_file(tmp_path, auth={"keys": [key("team-a")]})
    told = headway("check", "--config", config).out
    assert "warning: key team-a is in the fleet file and in the table" in told
    done = headway("keys", "create", "--config", config, "--name", "other")
    assert "warning: key team-a is in the fleet file" in done.err
