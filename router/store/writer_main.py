"""The writer process: `python -m router.store.writer_main FD`, started by `router.store.writer_process`.

It commits the finished requests of one serving process, outside of that process's interpreter lock. FD is its end of a
socket pair. The first line that it reads is JSON: which database. A request is a line of JSON, `[run,
arrived, finished, dropped, count]`, and `count` lines (`router.store.entries`). Each is answered by a line of JSON; an empty
line says that the process is ready. When the socket ends it writes what it has received, and ends; no signal but SIGKILL
ends it before.

It locks a file of its own (`router.store.runs.writer_file`) for as long as it lives, so that nobody takes over the run of a
killed process while its writer process still writes.

It imports only what writing needs, so that it is small and starts fast.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from contextlib import suppress
from itertools import islice
from typing import Any

import orjson

from router.store.commits import Commits, Run
from router.store.entries import from_line
from router.store.faults import error_name, file_fault

_BUFFER_BYTES = 256 * 1024


def main(end: int) -> None:
    """Serve until the other side closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a service manager signals all processes of a service
    # On few cores the serving process goes first. Not every system supports that.
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # Files: the module `socket` would take half a MiB.
    with open(end, "rb", _BUFFER_BYTES) as requests, open(end, "wb", 0, closefd=False) as answers:
        settings = requests.readline()
        if not settings:
            return
        commits = _open(**orjson.loads(settings))
        gc.freeze()
        gc.disable()  # rows have no cycles
        with suppress(ConnectionError):  # the serving process was killed before it read an answer
            answers.write(b"\n")
            while head := requests.readline():
                run_id, arrived, finished, dropped, count = orjson.loads(head)
                lines = list(islice(requests, count))
                answer = _answer(commits, Run(run_id, arrived, finished, dropped), lines)
                with suppress(OSError):  # nobody waits for it any more
                    answers.write(orjson.dumps(answer) + b"\n")


def _open(backend: str, lock_file: str, **settings: Any) -> Commits:
    with suppress(OSError):  # its directory was moved or removed
        fd = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if backend == "postgresql":
        from router.store.postgres_commits import PostgresDatabase

        return Commits(PostgresDatabase(**settings))
    from router.store.sqlite_commits import SqliteDatabase

    return Commits(SqliteDatabase(**settings))


def _answer(commits: Commits, run: Run, lines: list[bytes]) -> dict[str, Any]:
    """`new` and `refused` rows; or the name of the `error`, with the `fault` of a file, and whether the database is
    `away`."""
    try:
        entries = [entry for entry in map(from_line, lines) if entry is not None]
        written = commits.write(run, entries)
    except commits.errors as error:
        return {"error": error_name(error), "fault": file_fault(error), "away": True}
    except Exception as error:  # noqa: BLE001 (the root of this process: a fault here must not end recording)
        return {"error": type(error).__name__, "fault": None, "away": False}
    return {"new": written.new, "refused": written.refused + len(lines) - len(entries)}


if __name__ == "__main__":
    main(int(sys.argv[1]))
