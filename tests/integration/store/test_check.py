"""`headway check` over a real database and a real Redis: what refuses is an error, what does not answer is told."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
import redis
import yaml
from sqlalchemy.engine import make_url

from router.store.queries import Store
from tests.commands import Headway
from tests.servers.redis import RedisServer

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path, headway: Headway) -> Check:
    """Checks a file of these sections; over a new SQLite file if none says otherwise. The exit code, and all that is printed."""

    def run(*arguments: str, **sections: object) -> tuple[int, str]:
        file = tmp_path / "fleet.yaml"
        given = {"models": [{"name": "m"}], "store": sqlite(tmp_path / "a.db")} | sections
        file.write_text(yaml.safe_dump(given), encoding="utf-8")
        done = headway("check", "--config", file, *arguments)
        return done.code, done.out + done.err

    return run


def sqlite(path: Path) -> dict[str, str]:
    return {"url": f"sqlite+aiosqlite:///{path}"}


def test_a_good_file_over_a_good_database(tmp_path: Path, check: Check) -> None:
    async def make() -> None:
        await (await Store.open(f"sqlite:///{tmp_path / 'a.db'}")).close()

    asyncio.run(make())
    code, told = check(store=sqlite(tmp_path / "a.db"))
    assert code == 0
    assert "store" not in told
    assert check(store=sqlite(tmp_path / "not-yet.db"))[0] == 0


def test_a_database_file_that_a_start_cannot_use_is_an_error(tmp_path: Path, check: Check) -> None:
    (tmp_path / "text.db").write_text("this is no database, but long enough to be taken for one" * 50)
    (tmp_path / "folder.db").mkdir()
    with closing(sqlite3.connect(tmp_path / "newer.db")) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    connection.close()
    for name, reason in (
        ("text.db", "not a database"),
        ("folder.db", "is not a file"),
        ("newer.db", "9999"),
        ("no/such/folder/x.db", "in a directory that does not exist"),
    ):
        code, told = check(store=sqlite(tmp_path / name))
        assert code == 2, name
        assert "store.url: " in told
        assert reason in told


def test_postgres_that_refuses_is_an_error_and_one_that_is_away_is_told(
    postgres_url: str, tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = make_url(postgres_url)
    monkeypatch.setenv("RIGHT", str(parsed.password))
    monkeypatch.setenv("WRONG", "swordfish")
    bare = parsed._replace(password=None)
    store = {"url": bare.render_as_string(), "password_env": "RIGHT"}
    code, told = check(store=store)
    assert (code, "does not answer" in told) == (0, False)
    code, told = check(store=store | {"password_env": "WRONG"})
    assert code == 2
    assert "password authentication failed" in told
    assert "swordfish" not in told
    code, told = check(store=store | {"url": bare.set(database="nobody").render_as_string()})
    assert code == 2
    assert 'database "nobody" does not exist' in told
    away = {"url": "postgresql+asyncpg://headway@127.0.0.1:1/x"}
    code, told = check(store=away)
    assert code == 0
    assert "does not answer here" in told
    assert "ok, with warnings" in told


def test_a_postgres_that_cannot_be_written_is_an_error(
    postgres_url: str, tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(postgres_url)

    async def execute(*statements: str) -> None:
        connection = await asyncpg.connect(url.set(drivername="postgresql").render_as_string(False))
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    async def tables() -> None:
        await (await Store.open(postgres_url)).close()

    def told(user: str, password: str) -> str:
        monkeypatch.setenv("PASSWORD", password)
        named = url.set(username=user)._replace(password=None).render_as_string()
        code, text = check(store={"url": named, "password_env": "PASSWORD"})
        assert code == 2
        return text

    reader = f"reader_{url.database}"
    asyncio.run(execute(f"CREATE ROLE {reader} LOGIN PASSWORD 'swordfish'"))
    # No tables yet, and none can be made.
    assert "permission denied for schema public" in told(reader, "swordfish")
    asyncio.run(tables())
    asyncio.run(execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}"))
    assert "permission denied for table" in told(reader, "swordfish")
    asyncio.run(execute(f"GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {reader}"))
    assert "permission denied for table" in told(reader, "swordfish")  # rows are deleted too
    asyncio.run(execute(f"ALTER DATABASE {url.database} SET default_transaction_read_only = on"))
    assert "read-only transaction" in told(str(url.username), str(url.password))


def test_a_redis_that_cannot_be_written_is_told(tmp_path: Path, check: Check) -> None:
    with RedisServer(tmp_path) as server, redis.Redis(port=server.port) as client:

        def told() -> str:
            code, text = check(state={"url": f"redis://127.0.0.1:{server.port}"})
            assert code == 0
            return text

        assert "shared state" not in told()
        client.config_set("maxmemory", 1)
        assert "warning: the shared state does not answer here (it is out of memory)" in told()
        client.config_set("maxmemory", 0)
        client.config_set("min-replicas-to-write", 1)
        assert "warning: the shared state does not answer here (NOREPLICAS)" in told()
        client.replicaof("127.0.0.1", 1)
        assert "warning: the shared state does not answer here (it is a read-only replica)" in told()


def test_a_redis_that_may_drop_keys_is_told(tmp_path: Path, check: Check) -> None:
    with (
        RedisServer(tmp_path, "--maxmemory-policy", "allkeys-lru") as server,
        redis.Redis(port=server.port) as client,
    ):
        for memory, commands, warned in (
            (0, "+info", False),
            ("1gb", "+info", True),
            ("1gb", "-info", False),
        ):
            client.config_set("maxmemory", memory)
            client.acl_setuser("default", enabled=True, commands=[commands])
            code, told = check(state={"url": server.url})
            assert code == 0
            assert ("drops keys when its memory is full" in told) is warned
            assert "does not answer" not in told


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--cluster-enabled", "yes"), "it is a node of a Redis Cluster without the fleet's keys"),
        (("--rename-command", "EVALSHA", ""), "it does not run scripts"),
    ],
)
def test_a_redis_that_cannot_be_used_is_an_error(
    tmp_path: Path, check: Check, options: tuple[str, ...], reason: str
) -> None:
    with RedisServer(tmp_path, *options) as server:
        code, told = check(state={"url": server.url})
        assert code == 2
        assert f"state.url: the shared state refuses: {reason}" in told


def test_a_wrong_redis_password_is_an_error(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGHT", "swordfish-right")
    monkeypatch.setenv("WRONG", "swordfish-wrong")
    with RedisServer(tmp_path, "--requirepass", "swordfish-right") as server:
        url = f"redis://127.0.0.1:{server.port}"
        code, told = check("--json", state={"url": url, "password_env": "RIGHT"})
        assert (code, "shared state" in told) == (0, False)
        assert json.loads(told)["ok"] is True
        for state in ({"url": url, "password_env": "WRONG"}, {"url": url}):
            code, told = check(state=state)
            assert code == 2
            assert "state.url: the shared state refuses: the user or the password is not accepted" in told
            assert "swordfish" not in told


@pytest.mark.parametrize(
    "sections",
    [
        {"auth": {"admin_key_env": "NOT_SET"}},
        {"store": {"url": "postgresql+asyncpg://127.0.0.1:1/x", "password_env": "NOT_SET"}},
        {"state": {"url": "redis://127.0.0.1:1", "password_env": "NOT_SET"}},
    ],
)
def test_a_secret_of_the_gateway_that_is_not_set_is_an_error(
    tmp_path: Path,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    sections: dict[str, dict[str, str]],
) -> None:
    for value, fault in ((None, "not set"), ("", "not set"), ("a\udcff", "not UTF-8 text")):
        monkeypatch.delenv("NOT_SET", raising=False)
        if value is not None:
            monkeypatch.setenv("NOT_SET", value)
        code, told = check(**sections)
        assert code == 2
        assert re.search(
            rf"fleet\.yaml:\d+: \w+\.(admin_key|password)_env: the environment variable NOT_SET is {fault}",
            told,
        )


def test_what_a_start_does_without_is_a_warning_before_the_last_line(tmp_path: Path, check: Check) -> None:
    gone = str(tmp_path / "gone")
    code, told = check(predictors={"directory": gone}, ui={"reports": gone})
    assert code == 0
    *before, last = told.splitlines()
    assert last.endswith("ok, with warnings")
    assert f"warning: predictors.directory {gone} does not exist: the shipped predictors are used" in before
    assert f"warning: ui.reports {gone} is not a directory here: the page shows no comparison" in before


def test_a_file_that_a_start_cannot_write_is_an_error(tmp_path: Path, check: Check) -> None:
    (tmp_path / "file").touch()
    store, inside = sqlite(tmp_path / "a.db"), str(tmp_path / "file" / "x")
    for log in (inside, str(tmp_path), str(tmp_path / "no" / "log")):
        code, told = check(observability={"decision_log": log})
        assert (code, f"observability.decision_log: cannot write {log}" in told) == (2, True)
    code, told = check(store={**store, "spool_directory": inside}, auth={"admin_key_env": "NOT_SET"})
    assert (code, f"store.spool_directory: cannot write in {inside}" in told) == (2, True)
    assert "auth.admin_key_env: the environment variable NOT_SET is not set" in told
    for name, sections in (  # nobody can make a file in /proc, not even root
        ("store.spool_directory", {"store": {**store, "spool_directory": "/proc/headway"}}),
        ("store.url", {"store": sqlite(Path("/proc/headway.db"))}),
        ("observability.decision_log", {"store": store, "observability": {"decision_log": "/proc/headway"}}),
    ):
        code, told = check(**sections)
        assert (code, name in told, "write" in told or "written" in told) == (2, True, True), told
    good = {"store": {**store, "spool_directory": str(tmp_path / "a" / "b")}}
    assert check(**good, observability={"decision_log": str(tmp_path / "log")})[0] == 0
    assert not (tmp_path / "log").exists()


def test_a_full_disk_is_an_error(tmp_path: Path, headway: Headway) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump({"models": [{"name": "m"}], "store": sqlite(tmp_path / "a.db")}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # files can be made, but not written
    try:
        told = headway.err("check", "--config", file, code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "store.url: " in told
    assert "cannot be written" in told


def test_postgres_needs_a_working_directory_for_its_counter_file(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/proc")
    code, told = check(store={"url": "postgresql+asyncpg://u@127.0.0.1:1/db"})
    assert (code, "store.spool_directory: cannot write in /proc" in told) == (2, True)


POOL = {"kind": "vllm", "serves": {"llama-3.1-8b": "m"}, "hardware": "l4"}


@pytest.mark.parametrize(
    ("missing", "told", "sections"),
    [
        (
            "opentelemetry",
            "observability.traces.enabled: needs opentelemetry.exporter: pip install '.[otel]'",
            {"observability": {"traces": {"enabled": True}}},
        ),
        (
            "kubernetes",
            "scaling.actuator: needs kubernetes.aio: pip install '.[kubernetes]'",
            {
                "models": [{"name": "llama-3.1-8b"}],
                "discovery": [{"kubernetes": {"selector": "a=b"}, "instance": POOL}],
                "scaling": {
                    "actuator": "kubernetes",
                    "pools": [{"name": "p", "deployment": "d", "instance": POOL}],
                },
            },
        ),
        (
            "redis",
            "state.url: the shared state refuses: a shared state needs the Redis client: pip install '.[redis]'",
            {"state": {"url": "redis://127.0.0.1:1/0"}},
        ),
        (
            "tokenizers",
            "instance a: needs tokenizers: pip install '.[tokenizers]'",
            {
                "instances": [
                    {
                        "name": "a",
                        "kind": "vllm",
                        "url": "http://127.0.0.1:1",
                        "serves": {"m": "m"},
                        "tokenizer": __file__,
                    }
                ]
            },
        ),
    ],
)
def test_a_missing_extra_is_told(
    tmp_path: Path,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    told: str,
    sections: dict[str, object],
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "router.scaling.deployments", raising=False)
    code, shown = check(**sections)
    assert told in shown
    assert code == (0 if missing == "tokenizers" else 2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ca_file": "BAD"}, "cannot use ca_file BAD"),
        ({"tokenizer": "BAD"}, "BAD cannot be read as a tokenizer"),
        ({"api_key_env": "BAD_KEY"}, "a header holds a line break"),
        ({"ca_file": "GONE"}, "ca_file GONE is not a file here"),
        ({"headers_env": {"x": "NOT_SET"}}, "headers_env.x: environment variable NOT_SET is not set"),
    ],
)
def test_what_an_engine_cannot_use_is_told(
    tmp_path: Path,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    told: str,
) -> None:
    (tmp_path / "BAD").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("BAD_KEY", "sk-1\n")
    engine = {"kind": "vllm", "serves": {"m": "m"}, "hardware": "l4", **settings}
    code, shown = check(
        store=sqlite(tmp_path / "a.db"),
        instances=[{"name": "a", "url": "https://127.0.0.1:1", **engine}],
        discovery=[{"kubernetes": {"selector": "a=b", "scheme": "https"}, "instance": engine}],
    )
    assert code == 0
    assert f"warning: instance a: {told}" in shown
    assert f"warning: discovery[0]: {told}" in shown
    assert "warning: discovery[0]: kubernetes.server is not set" in shown


@pytest.mark.parametrize(("model", "warned"), [("m", False), ("alias", False), ("other", True)])
def test_a_judge_whose_key_may_not_use_its_model(
    tmp_path: Path, check: Check, model: str, warned: bool
) -> None:
    code, shown = check(
        store=sqlite(tmp_path / "a.db"),
        models=[{"name": "m", "aliases": ["alias"]}, {"name": "other"}],
        auth={"keys": [{"name": "k", "sha256": "0" * 64, "models": ["m"]}]},
        judge={"model": model, "key": "k"},
        second_look={"model": model, "key": "k"},
    )
    assert code == 0
    for section in ("judge", "second_look"):
        told = f"warning: {section}: its key k may not use the model {model}, so nothing is judged"
        assert (told in shown) is warned


def test_an_error_of_a_start_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headway: Headway
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    file = tmp_path / "fleet.yaml"
    file.write_text(
        f"models: [{{name: m}}]\nstore:\n  retain_days: 1\n  url: sqlite+aiosqlite:///{tmp_path}/no/a.db\n"
    )

    def refused(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "router.cli", *command, "--config", str(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        return done.stderr

    for told in (headway.err("check", "--config", file, code=2), refused("serve", "--port", "0")):
        assert told.startswith(f"headway: {file}:4: store.url: ")
        assert f"{tmp_path}/no/a.db" in told
    file.write_text(
        f"store: {{url: 'sqlite+aiosqlite:///{tmp_path}/a.db'}}\nmodels: [{{name: m}}]\ninstances:\n"
        "  - {name: a, kind: vllm, url: 'http://127.0.0.1:1', serves: {m: m}}\n"
        "  - {name: b, kind: vllm, url: 'http://127.0.0.1:1', serves: {m: m}, api_key_env: NOT_SET}\n"
    )
    assert refused("serve", "--port", "0").splitlines()[-1] == (
        f"headway: {file}:5: instances[1].api_key_env: the environment variable NOT_SET is not set"
    )


def test_a_redis_that_is_away_is_told(tmp_path: Path, check: Check) -> None:
    state = {"url": "redis://127.0.0.1:1"}
    code, told = check(state=state)
    assert code == 0
    assert "warning: the shared state does not answer here (Connection refused)" in told
