"""A queue of finished requests on disk for times when the database does not answer: lines in segment files.

Lines are appended to the newest segment and read from the oldest. A segment without lines is deleted. Files are not synced:
lines survive the process but not a power failure (as with SQLite's `synchronous=NORMAL`). Writing goes to the kernel's
cache, so it runs in the event loop, where it cannot fall between a commit and the removal of the committed lines. A process
reads its own segments through open files, so it loses nothing if someone deletes them. A run's segments are named after its
counter file, whose lock (`router.store.runs`) shows whether the run is alive.
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
#: Time until a write to a failing disk is tried again.
_RETRY_S = 1.0


@dataclass(slots=True)
class _Segment:
    path: Path
    fd: int
    size: int = 0
    read: int = 0  # removed bytes at its beginning
    rows: int = 0  # lines that are not removed

    def is_in_place(self) -> bool:
        """True if the file still exists under its name."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False


class Spool:
    """The spool of one run. Only the run's process reads and writes it. `path` is the prefix of the segments' names,
    `max_bytes` the limit of their total size."""

    def __init__(self, path: Path, max_bytes: float) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, max(1, int(max_bytes / 4)))
        self._segments: list[_Segment] = []
        self._made = 0
        self._lengths: list[int] = []  # lengths of the first lines, as far as they were read
        self._retry_at: float | None = None  # after a refusal; infinity: after the next removal
        self._lost = 0
        self.rows = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        """True if lines were refused and a retry cannot succeed yet."""
        return self._retry_at is not None and time.monotonic() < self._retry_at

    def append(self, lines: list[bytes]) -> bool:
        """Append all lines; False and none if they exceed the limit or the disk refuses them."""
        data = b"".join(lines)
        if self.bytes + len(data) > self._max_bytes:
            # An empty spool will not get more room, but a smaller batch may fit.
            self._refused(float("inf") if self.rows else time.monotonic() + _RETRY_S, "the spool is full")
            return False
        try:
            segment = self._open_segment()
            try:
                _write_all(segment.fd, data)
            except OSError:
                os.ftruncate(segment.fd, segment.size)  # remove a partial line
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
        """The segment to write to: the newest, or a new one if that is large enough or was deleted."""
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
        """The first lines: at most `limit`, and at least one if there is any. They stay until `remove`."""
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
        """The number of unreadable lines since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def remove(self, count: int) -> None:
        """Remove the first `count` lines."""
        while count:
            if not self._lengths:
                self.read(count)
            segment = self._first()
            if segment is None:
                return
            now = min(count, len(self._lengths))
            segment.read += sum(self._lengths[:now])
            del self._lengths[:now]
            segment.rows -= now
            self.rows -= now
            count -= now
            if segment.read >= segment.size:
                self._drop(segment)

    def _drop(self, segment: _Segment) -> None:
        """Delete a segment; the file of the newest one is reused."""
        self.bytes -= segment.size
        self.rows -= segment.rows
        if segment is self._segments[-1] and segment.is_in_place():
            os.ftruncate(segment.fd, 0)
            segment.size = segment.read = segment.rows = 0
        else:
            self._segments.remove(segment)
            os.close(segment.fd)
            segment.path.unlink(missing_ok=True)
        if self._retry_at is not None:
            log.info("the spool has room again")
            self._retry_at = None

    def close(self) -> None:
        """Close the files and delete the empty ones. The spool cannot be used afterwards."""
        for segment in self._segments:
            os.close(segment.fd)
            if segment.read >= segment.size:
                segment.path.unlink(missing_ok=True)


def segments(path: Path) -> list[Path]:
    """The segments of a run, oldest first. `path` is the prefix of their names."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.*{SUFFIX}"))


def read_lines(segment: Path | int, offset: int, limit: int) -> list[bytes]:
    """Lines of a segment (given by its path or its open file) from `offset` on: at most `limit` and about a megabyte, at
    least one if there is any. Text after the last line end is not a line."""
    lines: list[bytes] = []
    taken = 0
    with open(os.dup(segment) if isinstance(segment, int) else segment, "rb") as file:
        file.seek(offset)
        while len(lines) < limit and taken < _READ_BYTES:
            line = file.readline()
            if not line.endswith(b"\n"):
                break
            lines.append(line)
            taken += len(line)
    return lines


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
