"""Takes over from killed processes: writes the rows that they spooled, then counts the rows that they lost.

A row may have been committed just before the kill and still be in the spool: the writer process writes and counts only those
that are not there. The killed process's own writer process may live a moment longer, to write what it had received; the
takeover waits for its end.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from router.store import runs, spool
from router.store.async_engine import AsyncEngine
from router.store.commits import Run
from router.store.database import driver_errors
from router.store.writer_process import CommitError, WriterProcess

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_BATCH = 500
_PAUSE_S = 0.002  # between two batches, so that this process writes its own records
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_WRITER_POLL_S = 0.02


async def take_over(engine: AsyncEngine, process: WriterProcess, prefix: Path) -> None:
    """Process the counter files, and the spools beside them, of processes that are gone; waits for a database that is
    away. What cannot be read or removed is left for the next start."""
    for path, fd in runs.orphans(prefix):
        try:
            await _writer_ended(path)
            run_id = path.name.removeprefix(prefix.name)
            await _write_spool(process, path, run_id)
            if not spool.segments(path):
                await _answered(driver_errors(engine), partial(runs.account, engine, run_id, fd))
                runs.remove_files(path)
        finally:
            os.close(fd)


async def _write_spool(process: WriterProcess, path: Path, run_id: str) -> None:
    """Write what a killed run spooled, and remove it."""
    written = refused = 0
    for segment in spool.segments(path):
        try:
            offset = 0
            while lines := spool.read_lines(segment, offset, _BATCH):
                offset += sum(map(len, lines))
                done = await _answered((CommitError,), partial(process.commit, Run(run_id), lines))
                written, refused = written + done.new, refused + done.refused
                await asyncio.sleep(_PAUSE_S)
            if offset < segment.stat().st_size:
                refused += 1  # the line in which it was killed
            segment.unlink()
        except OSError as error:
            log.error("%s: %s; it is left for the next start", segment, error.strerror)
    if written or refused:
        log.info(
            "%d records of the killed run %s were written from its spool, %d were torn or refused",
            written,
            run_id,
            refused,
        )


async def _answered(errors: tuple[type[Exception], ...], call: Callable[[], Awaitable[_T]]) -> _T:
    """The call's result. It is repeated while it raises one of these errors of a database that is away."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except errors as error:
            log.warning("records of a killed process wait (%s)", type(error).__name__)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _writer_ended(path: Path) -> None:
    """Wait until the writer process of a killed process has ended (its lock: `router.store.writer_main`)."""
    try:
        fd = os.open(runs.writer_file(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # it was not there yet
        return
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                await asyncio.sleep(_WRITER_POLL_S)
    finally:
        os.close(fd)
