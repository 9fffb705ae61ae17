"""Counts the rows that a killed process lost.

Each process counts arrived and finished requests in a small memory-mapped file. The pages belong to the kernel's cache, so
the counts survive a SIGKILL. The table `runs` has the number of committed rows, updated in the same transaction as the
rows. A process locks its file while it lives. The next process to start finds files without an owner, writes their spools
(`router.store.takeover`), writes the difference into `runs`, and removes the files. A clean close does the same; then the
difference is zero.
"""

from __future__ import annotations

import fcntl
import glob
import logging
import mmap
import os
import secrets
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from sqlalchemy import func, insert, select, update
from sqlalchemy.engine import URL

from router.store import spool, tables
from router.store.async_engine import AsyncConnection, AsyncEngine
from router.store.database import StoreError, public_url, sqlite_path

log = logging.getLogger(__name__)

_MAGIC = 0x3173746E75635748
_SLOTS = 8
_SIZE_BYTES = _SLOTS * 8
_AT_ARRIVED, _AT_FINISHED, _AT_DROPPED = 1, 2, 3
_WRITER_SUFFIX = ".writer"


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows lost by all killed runs: `finished` requests whose row was not committed, and requests `in_flight` that never
    finished."""

    finished: int = 0
    in_flight: int = 0


class Counts:
    """The counters of this process. `slots` is written on the hot path: an 8-byte store, no call."""

    def __init__(self, run_id: str, path: Path) -> None:
        """Create the file."""
        self.run_id = run_id
        self.path = path
        # Locked before it has its name: otherwise another process could take it for the file of a killed process.
        unnamed = path.with_name(f".{path.name}.new")
        self._fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            # Now, as an error: a later write into a page for which the disk has no room is a SIGBUS.
            os.write(self._fd, bytes(_SIZE_BYTES))
            self._map = mmap.mmap(self._fd, _SIZE_BYTES)
            os.rename(unnamed, path)
        except OSError:
            os.close(self._fd)
            with suppress(OSError):
                unnamed.unlink()
            raise
        self.slots = memoryview(self._map).cast("Q")
        self.slots[0] = _MAGIC

    @property
    def arrived(self) -> int:
        return self.slots[_AT_ARRIVED]

    @property
    def finished(self) -> int:
        return self.slots[_AT_FINISHED]

    @property
    def dropped(self) -> int:
        return self.slots[_AT_DROPPED]

    def close(self, *, remove: bool) -> None:
        """Close the file. It stays if its run could not be accounted for."""
        if remove:
            remove_files(self.path)
        self.slots.release()
        self._map.close()
        os.close(self._fd)


def new_run_id(now: float) -> str:
    """A time-ordered id for a run that began `now` (seconds since the epoch)."""
    return f"{int(now * 1e6):016x}{secrets.token_hex(4)}"


def file_prefix(url: URL, directory: Path | None) -> Path:
    """The path that begins the names of counter files and of the spool: in `directory`, else beside a SQLite file, else in
    the working directory."""
    path = sqlite_path(url)
    if directory is None and path is not None:
        return path.with_name(f"{path.name}-run-")
    # The hosts of a query may come in another order at the next start.
    place = public_url(url.set(query={})) if path is None else f"{url.drivername}:///{path.absolute()}"
    digest = zlib.crc32(place.encode())
    return (directory or Path.cwd()) / f"headway-{digest:08x}-run-"


def keyed_path(prefix: Path) -> Path:
    """The file that says that the database had keys, beside the files of `file_prefix`."""
    return prefix.with_name(prefix.name.removesuffix("run-") + "keyed")


def traces_of_gateway(url: URL, directory: Path | None = None) -> list[Path]:
    """The files that gateways left beside a SQLite file, which prove that the database existed: its keys, counts of runs."""
    prefix = file_prefix(url, directory)
    if not prefix.parent.is_dir():
        return []
    keyed = keyed_path(prefix)
    return sorted(
        each for each in prefix.parent.iterdir() if each == keyed or each.name.startswith(prefix.name)
    )


def writer_file(path: Path) -> Path:
    """The file beside a counter file that the run's writer process locks. Not the counter file itself: on macOS, the BSDs and
    network file systems, flock's locks and POSIX's exclude each other, and one file then takes one lock."""
    return path.with_name(path.name + _WRITER_SUFFIX)


def remove_files(path: Path) -> None:
    """Remove the counter file of a run that is accounted for. If it stays, the next start finds that it is."""
    for each in (writer_file(path), path):
        with suppress(OSError):
            each.unlink()


def takes_files(directory: Path) -> bool:
    """Whether a file can be made in a directory, and written; none stays. Permissions are no answer: root has all of them,
    also where nothing can be written."""
    try:
        with TemporaryFile(dir=directory) as file:
            file.write(bytes(_SIZE_BYTES))
        return True
    except OSError:
        return False


def create_counts(prefix: Path, run_id: str) -> Counts:
    """The counter file of a new run, and its directory if it is missing. Raises StoreError if it cannot be made."""
    try:
        if not prefix.parent.exists():
            prefix.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Counts(run_id, prefix.with_name(prefix.name + run_id))
    except OSError as error:
        raise StoreError(
            f"cannot create the store's counter file in {prefix.parent}: {error.strerror}"
        ) from None


async def begin(engine: AsyncEngine, run_id: str, now: float) -> None:
    """Write the row of a run that starts."""
    async with engine.begin() as connection:
        await connection.execute(insert(tables.runs).values(id=run_id, started_at=now))


def orphans(prefix: Path) -> Iterator[tuple[Path, int]]:
    """Counter files whose owner is gone, each with the file descriptor by which we locked it."""
    for path in sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}*")):
        if path.suffix in (spool.SUFFIX, _WRITER_SUFFIX):
            continue
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # another took it
            continue
        except OSError as error:
            log.warning("counter file %s: %s", path, error.strerror)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its process lives
            os.close(fd)
            continue
        if not path.exists():  # removed between our opening and our locking
            os.close(fd)
            continue
        yield path, fd


async def account(engine: AsyncEngine, run_id: str, fd: int) -> None:
    """Write the lost rows of a dead run into `runs`, from its counter file."""
    content = os.pread(fd, _SIZE_BYTES, 0)
    if len(content) < _SIZE_BYTES:
        return
    slots = memoryview(content).cast("Q")
    if slots[0] != _MAGIC:
        return
    runs = tables.runs
    async with engine.begin() as connection:
        row = (await connection.execute(select(runs).where(runs.c.id == run_id))).first()
        if row is None or row.clean is not None:
            return
        lost = await end(connection, run_id, slots, row.recorded, None)
    if lost.finished or lost.in_flight:
        log.warning(
            "the run %s was killed: %d finished requests were not recorded, %d were in flight",
            run_id,
            lost.finished,
            lost.in_flight,
        )


async def end(
    connection: AsyncConnection, run_id: str, slots: Sequence[int], recorded: int, ended_at: float | None
) -> Lost:
    """Close the row of a run with these counters; `ended_at` is None if it was killed. Clean: every finished request was
    recorded or counted as dropped. Returns what it lost."""
    arrived, finished, dropped = slots[_AT_ARRIVED], slots[_AT_FINISHED], slots[_AT_DROPPED]
    lost = Lost(max(0, finished - recorded - dropped), max(0, arrived - finished))
    runs = tables.runs
    await connection.execute(
        update(runs)
        .where(runs.c.id == run_id, runs.c.clean.is_(None))
        .values(
            ended_at=ended_at,
            clean=ended_at is not None and lost == Lost(),
            arrived=arrived,
            finished=finished,
            recorded=recorded,
            dropped=dropped,
            lost_finished=lost.finished,
            lost_in_flight=lost.in_flight,
        )
    )
    return lost


async def lost_so_far(engine: AsyncEngine) -> Lost:
    """The rows that all runs lost."""
    runs = tables.runs
    async with engine.connect() as connection:
        row = (
            await connection.execute(select(func.sum(runs.c.lost_finished), func.sum(runs.c.lost_in_flight)))
        ).one()
    return Lost(int(row[0] or 0), int(row[1] or 0))
