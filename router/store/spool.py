"""Finished requests on disk, in order, while the database is away: a queue of lines in segment files.

Lines are appended to the newest segment and read from the oldest; a segment without lines is removed. Nothing is synced:
lines survive the process, but not a power failure (as with SQLite's `synchronous=NORMAL`). Writes go to the kernel's cache
and are done in the event loop, so that none comes between a commit and the removal of what it committed. A process reads
its segments through their open files, so that it loses nothing if someone removes them. A run's segments are named after
its counter file, whose lock (`router.store.runs`) says whether the run is alive.
"""

from __future__ import annotations

import glob
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

SUFFIX = ".spool"
_SEGMENT_BYTES = 8 * 1024 * 1024
_READ_BYTES = 1024 * 1024
#: A write that the disk refused is repeated after this time.
_RETRY_S = 1.0


@dataclass(slots=True)
class _Segment:
    path: Path
    fd: int
    size: int = 0
    read: int = 0  # bytes at its beginning that were removed
    rows: int = 0  # lines that were not removed

    def is_in_place(self) -> bool:
        """Whether the file is still at its path."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False


class Spool:
    """The spool of one run. The run's process is its only reader and writer. `path` begins the names of its segments;
    `max_bytes` bounds their total size."""

    def __init__(self, path: Path, max_bytes: float) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, max(1, int(max_bytes / 4)))
        self._segments: list[_Segment] = []
        self._made = 0
        self._lengths: list[int] = []  # of the first lines, as far as they were read
        self._retry_at: float | None = None  # after a refused write; infinity: when lines are removed
        self._lost = 0
        self.rows = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether lines were refused and would still be."""
        return self._retry_at is not None and time.monotonic() < self._retry_at

    def append(self, lines: list[bytes]) -> bool:
        """Append all lines, or none (False) if there would be too many or the disk is full."""
        data = b"".join(lines)
        if self.bytes + len(data) > self._max_bytes:
            # An empty spool will not get more room; smaller batches may still fit.
            self._refused(float("inf") if self.rows else time.monotonic() + _RETRY_S, "the spool is full")
            return False
        try:
            segment = self._open_segment()
            try:
                _write_all(segment.fd, data)
            except OSError:
                os.ftruncate(segment.fd, segment.size)  # leave no partial line
                raise
        except OSError as error:
            self._refused(time.monotonic() + _RETRY_S, f"the spool cannot be written: {error.strerror}")
            return False
        segment.size += len(data)
        segment.rows += len(lines)
        self.bytes += len(data)
        self.rows += len(lines)
        self._retry_at = None
        return True

    def _refused(self, retry_at: float, reason: str) -> None:
        if self._retry_at is None:
            log.error("%s; %d records (%d bytes) are in it", reason, self.rows, self.bytes)
        self._retry_at = retry_at

    def _open_segment(self) -> _Segment:
        """The segment to write to: a new one if the last is large enough or was removed."""
        if self._segments:
            last = self._segments[-1]
            if last.size < self._segment_bytes and last.is_in_place():
                return last
        path = self._path.with_name(f"{self._path.name}.{self._made:06d}{SUFFIX}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._made += 1
        self._segments.append(_Segment(path, fd))
        return self._segments[-1]

    def read(self, limit: int) -> list[bytes]:
        """The first lines: at most `limit`, at least one if there is any. They stay until `remove`."""
        lines: list[bytes] = []
        while not lines and (segment := self._first()) is not None:
            try:
                lines = read_lines(segment.fd, segment.read, limit)
            except OSError as error:
                log.error("%s: %s", segment.path, error.strerror)
            if not lines:
                log.error("%s: %d records cannot be read", segment.path, segment.rows)
                self._lost += segment.rows
                self._drop(segment)
        self._lengths = list(map(len, lines))
        return lines

    def _first(self) -> _Segment | None:
        return next((each for each in self._segments if each.read < each.size), None)

    def take_lost(self) -> int:
        """The number of lines that could not be read since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def remove(self, count: int) -> None:
        """Remove the first lines."""
        while count and (segment := self._first()) is not None:
            if count >= segment.rows:  # all that is left of it, which need not be read
                now, size = segment.rows, segment.size - segment.read
            elif self._lengths:
                now = min(count, len(self._lengths))
                size = sum(self._lengths[:now])
            else:
                lost = self._lost
                self.read(count)
                if self._lost > lost:  # it could not be read: these lines are gone with it, and not lost
                    self._lost -= count
                    return
                continue
            segment.read += size
            del self._lengths[:now]
            segment.rows -= now
            self.rows -= now
            count -= now
            if segment.read >= segment.size:
                self._drop(segment)

    def _drop(self, segment: _Segment) -> None:
        """Free a segment's room; the last segment's file is reused."""
        self.bytes -= segment.size
        self.rows -= segment.rows
        if segment is self._segments[-1] and segment.is_in_place() and _emptied(segment.fd):
            segment.size = segment.read = segment.rows = 0
        else:
            self._segments.remove(segment)
            _discard(segment)
        if self._retry_at is not None:
            log.info("the spool has room again")
            self._retry_at = None

    def close(self) -> None:
        """Close the files; those with lines stay. The spool cannot be used afterwards."""
        for segment in self._segments:
            if segment.read >= segment.size:
                _discard(segment)
            else:
                os.close(segment.fd)


def segments(path: Path) -> list[Path]:
    """The segments of a run, oldest first. `path` begins their names."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.*{SUFFIX}"))


def read_lines(segment: Path | int, offset: int, limit: int) -> list[bytes]:
    """Lines of a segment (its path or open file) from `offset`: at most `limit` and about a megabyte, at least one if there
    is any. Bytes after the last line end are not a line."""
    lines: list[bytes] = []
    taken = 0
    # The open file itself: there may be no free descriptor for a second one.
    with open(segment, "rb", closefd=not isinstance(segment, int)) as file:
        file.seek(offset)
        while len(lines) < limit and taken < _READ_BYTES:
            line = file.readline()
            if not line.endswith(b"\n"):
                break
            lines.append(line)
            taken += len(line)
    return lines


def _emptied(fd: int) -> bool:
    """Whether the file could be emptied."""
    try:
        os.ftruncate(fd, 0)
    except OSError:
        return False
    return True


def _discard(segment: _Segment) -> None:
    """Close and remove a segment without lines. A file that cannot be removed does no harm: its rows are written."""
    try:
        os.close(segment.fd)
        segment.path.unlink(missing_ok=True)
    except OSError as error:
        log.error("%s cannot be removed: %s", segment.path, error.strerror)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
