"""Which database a command reads: the same arguments for all that read records."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from router.cli import main
from router.config import ConfigError
from router.store.queries import Store
from router.store_arguments import add_store_arguments, store_of
from tests.commands import Headway

COMMANDS = (("db", "version"), ("explain", "req_1"), ("export", "--format", "csv", "--out", "-"), ("spend",))


def parsed(*words: str, default: str | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_store_arguments(parser, "--url", default=default)
    return parser.parse_args(words)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_takes_a_url(tmp_path: Path, command: tuple[str, ...], headway: Headway) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'records.db'}"
    assert f"no database at {tmp_path / 'records.db'}" in headway.refusal(*command, "--store", url)
    asyncio.run(_made(url))
    assert "no database" not in headway.err(
        *command, "--store", url, code=2 if command[0] == "explain" else 0
    )
    assert "--password-env needs --store" in headway.refusal(
        *command, "--password-env", "PW", *(("--config", "x") * (command[0] != "explain"))
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_what_only_reads_changes_no_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "empty.db").touch()
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE another_programs (name TEXT)")
    for name in ("empty.db", "other.db"):
        path = tmp_path / name
        before = path.read_bytes()
        assert main([*command, "--store", f"sqlite+aiosqlite:///{path}"]) == (0 if command[0] == "db" else 2)
        assert path.read_bytes() == before


async def _made(url: str) -> None:
    await (await Store.open(url)).close()


def test_the_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--store", "postgresql://user@h/db", "--password-env", "PW")
    with pytest.raises(ConfigError, match="--password-env: the environment variable PW is not set"):
        store_of(parsed(*words))
    monkeypatch.setenv("PW", "a\udcff")  # as Python reads a byte that is not UTF-8
    with pytest.raises(ConfigError, match="the environment variable PW is not UTF-8 text"):
        store_of(parsed(*words))
    monkeypatch.setenv("PW", "a/b@c")
    assert store_of(parsed(*words)) == "postgresql+asyncpg://user:a%2Fb%40c@h/db"
    assert store_of(parsed("--url", *words[1:])) == store_of(parsed(*words))


def test_a_fleet_file_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "models: [{name: m}]\nstore: {url: 'postgresql+asyncpg://user@h/db', password_env: PW}\n"
    )
    with pytest.raises(ConfigError, match="environment variable PW is not set"):
        store_of(parsed("--config", str(fleet)))
    monkeypatch.setenv("PW", "secret")
    assert store_of(parsed("--config", str(fleet))) == "postgresql+asyncpg://user:secret@h/db"


def test_one_place_is_named_or_there_is_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--config", "fleet.yaml", "--store", "sqlite://")):
        with pytest.raises(SystemExit):
            parsed(*words)
    assert "one of the arguments --config --store/--url is required" in capsys.readouterr().err
    assert store_of(parsed(default="the usual one"), "sqlite:///usual.db") == "sqlite:///usual.db"
