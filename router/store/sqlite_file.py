"""Whether the SQLite file of a running gateway is still the one that it opened.

SQLite goes on writing to a file that was moved or removed, and makes an empty one where there is none: rows and keys would
be gone without an error. So the file's device and inode are compared, a `stat` each time, before a connection is opened or
taken from the pool, before a commit, and ten times a second by the writer.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

log = logging.getLogger(__name__)


class LostFileError(OSError):
    """The database file is not at its path. The message has no path: it may be shown to anyone."""


class SqliteFile:
    """The file behind an engine. `fault` says in one clause what is wrong with it, None when nothing is; `losses` counts how
    often it was found lost."""

    def __init__(self, path: Path, engine: AsyncEngine) -> None:
        """From here on the engine uses this file and no other. It must exist."""
        self._path = path.absolute()
        found = os.stat(self._path)
        self._identity = (found.st_dev, found.st_ino)
        self.fault: str | None = None
        self.losses = 0
        event.listen(engine.sync_engine, "do_connect", self._check_event)
        event.listen(engine.sync_engine, "checkout", self._check_event)
        event.listen(engine.sync_engine, "commit", self._check_event)

    def check(self) -> str | None:
        """Look at the file; what is wrong with it. A change is logged once."""
        fault = self._find_fault()
        if fault is not None and self.fault is None:
            self.losses += 1
            log.error(
                "%s: %s; records wait until it is back, or until the gateway is restarted", self._path, fault
            )
        elif fault is None and self.fault is not None:
            log.warning("%s: the database file is back", self._path)
        self.fault = fault
        return fault

    def _find_fault(self) -> str | None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            where = "file" if self._path.parent.is_dir() else "directory"
            return f"the database's {where} was moved or removed"
        except OSError as error:
            return f"the database file cannot be reached ({error.strerror})"
        if (found.st_dev, found.st_ino) != self._identity:
            return "another file is in the place of the database"
        return None

    def _check_event(self, *_: Any) -> None:
        fault = self.check()
        if fault is not None:
            raise LostFileError(fault)
