"""The serving process's side of its writer process (`router.store.writer_main`): says how to connect to the database, starts
it, sends it batches, and starts it again when it dies. A batch without an answer is sent again; the writer process writes no
row twice."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from router.background import surviving
from router.store.async_engine import AsyncEngine
from router.store.commits import Run, Written
from router.store.database import CONNECT_TIMEOUT_S, sqlite_pragmas
from router.store.runs import writer_file
from router.store.sqlite_file import SqliteFile

log = logging.getLogger(__name__)

#: The pause before it is started again doubles from the first value to the longest. After `STEADY_S` it begins anew.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
STEADY_S = 60.0
_KILL_AFTER_S = 1.0  # when it does not end by itself
_MODULES = str(Path(__file__).parents[2])
#: PostgreSQL's time for a statement; after it the connection is closed.
COMMIT_TIMEOUT_S = 15.0


def writer_settings(engine: AsyncEngine, file: SqliteFile | None, run_file: Path) -> dict[str, Any]:
    """What the writer process of an engine receives when it starts. `file` is that of a SQLite store, `run_file` the run's counter file."""
    places, given = engine.dialect.create_connect_args(engine.url)
    connect = dict(given)
    settings: dict[str, Any] = {
        "backend": engine.dialect.name,
        "lock_file": str(writer_file(run_file).absolute()),
        "connect": connect,
    }
    if file is not None:
        connect["database"] = places[0]
        return settings | {"pragmas": sqlite_pragmas(), "path": str(file.path), "identity": file.identity}
    for name in ("prepared_statement_cache_size", "prepared_statement_name_func"):  # SQLAlchemy's own
        connect.pop(name, None)
    connect |= {"timeout": CONNECT_TIMEOUT_S, "command_timeout": COMMIT_TIMEOUT_S}
    return settings


class CommitError(Exception):
    """A batch was not committed. The text names the error; `fault` is what is wrong with the SQLite file,
    if that is the reason; `away`: the same batch may be committed later."""

    def __init__(self, error: str, fault: str | None, away: bool) -> None:
        super().__init__(error)
        self.fault = fault
        self.away = away


class WriterProcess:
    """One writer process. It receives `settings` first. `restarts` counts how often it was started again, `pid` is that of
    the newest."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = orjson.dumps(settings) + b"\n"
        self.restarts = 0
        self.pid: int | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()
        self._answers: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._closing = False
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(), name="writer-process")

    async def started(self) -> None:
        """Wait until it is ready for the first time. Raises OSError if it cannot be started."""
        await self._started

    @property
    def down(self) -> bool:
        """Whether it has died and is not ready again."""
        return self._started.done() and self._writer is None

    async def commit(self, run: Run, lines: Sequence[bytes]) -> Written:
        """Commit lines. While the process does not run, this waits. Raises CommitError."""
        request = b"".join((orjson.dumps((*run, len(lines))), b"\n", *lines))
        while True:
            await self._connected.wait()
            if self._writer is None:
                continue
            answer = asyncio.get_running_loop().create_future()
            self._answers.append(answer)
            self._writer.write(request)
            with suppress(ConnectionError):  # it died before the answer
                found = await answer
                if "error" in found:
                    raise CommitError(found["error"], found["fault"], found["away"])
                return Written(found["new"], found["refused"])

    async def aclose(self, timeout_s: float) -> None:
        """Let it write what it has received, and end. After `timeout_s` it is killed."""
        self._closing = True
        self._started.cancel()
        if self._writer is not None:
            self._writer.write_eof()
            await asyncio.wait({self._keeping}, timeout=timeout_s)
        self._keeping.cancel()
        await asyncio.wait({self._keeping})

    async def _keep(self) -> None:
        """Run the process, and start it again when it dies."""
        pause_s = FIRST_PAUSE_S
        while not self._closing:
            began = time.monotonic()
            how = "not started"
            with surviving("writer-process"):
                how = await self._run()
            if self._closing:
                return
            if not self._started.done():
                self._started.set_exception(OSError(how))
                return
            if time.monotonic() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            log.error("the writer process has ended (%s): it is started again in %g s", how, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self.restarts += 1

    async def _run(self) -> str:
        """One process from its start to its end; returns how it ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = self._start(theirs)
            except OSError as error:
                ours.close()
                return error.strerror or type(error).__name__
        self.pid = process.pid
        try:
            await self._talk(ours)
        except BaseException:
            process.kill()
            raise
        finally:
            await _ended(process)
        return f"exit code {process.returncode}"

    def _start(self, end: socket.socket) -> subprocess.Popen[bytes]:
        # It gets this process's module path instead of running `site`, which costs time and memory.
        path = os.pathsep.join([_MODULES, *filter(None, sys.path)])
        return subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-P", "-S", "-m", "router.store.writer_main", str(end.fileno())],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            pass_fds=[end.fileno()],
            start_new_session=True,  # Ctrl-C must reach only the gateway
        )

    async def _talk(self, ours: socket.socket) -> None:
        """Use the connection until it ends."""
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            writer.write(self._settings)
            if await reader.readline() != b"\n":
                return
            self._writer = writer
            self._connected.set()
            if not self._started.done():
                self._started.set_result(None)
            while answer := await reader.readline():
                waiting = self._answers.popleft()
                if not waiting.done():  # a takeover that was stopped no longer waits
                    waiting.set_result(orjson.loads(answer))
        except OSError:
            pass  # it has ended
        finally:
            self._writer = None
            self._connected.clear()
            for waiting in self._answers:
                if not waiting.done():
                    waiting.set_exception(ConnectionError())
            self._answers.clear()
            writer.close()


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process that has closed its end is gone."""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_AFTER_S):
                while process.poll() is None:  # noqa: ASYNC110 (once in its life)
                    await asyncio.sleep(0.005)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
