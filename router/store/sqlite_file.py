"""Whether the SQLite file of a running gateway is still the one that it opened.

SQLite continues to write to a file that was moved or removed, and makes an empty file if there is none: rows and keys would
be lost without an error. So the file's device and inode are compared (a `stat`) before a connection is opened or taken from
the pool, before a commit, and twenty times a second by the writer. The writer process checks it too.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from sqlalchemy import event

from router.store.async_engine import AsyncEngine
from router.store.faults import LostFileError, lost_file

log = logging.getLogger(__name__)


class SqliteFile:
    """The file behind an engine. `fault` says what is wrong with it, None if nothing; `losses` counts how often it was
    found lost, `path` is absolute, `identity` is its device and inode."""

    def __init__(self, path: Path, engine: AsyncEngine) -> None:
        """The engine uses only this file from now on. It must exist."""
        self.path = path.absolute()
        found = os.stat(self.path)
        self.identity = (found.st_dev, found.st_ino)
        self.fault: str | None = None
        self.losses = 0
        event.listen(engine.sync_engine, "do_connect", self._check_event)
        event.listen(engine.sync_engine, "checkout", self._check_event)
        event.listen(engine.sync_engine, "commit", self._check_event)

    def check(self) -> str | None:
        """Check the file; returns what is wrong with it. Logs each change once."""
        fault = lost_file(str(self.path), self.identity)
        if fault is not None and self.fault is None:
            self.losses += 1
            log.error("%s: %s; records wait until it is back or the gateway is restarted", self.path, fault)
        elif fault is None and self.fault is not None:
            log.warning("%s: the database file is back", self.path)
        self.fault = fault
        return fault

    def _check_event(self, *_: Any) -> None:
        fault = self.check()
        if fault is not None:
            raise LostFileError(fault)
