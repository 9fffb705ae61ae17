"""Checks that the SQLite file of a running gateway is still the file that it opened.

SQLite keeps writing to a moved or deleted file, and creates an empty one if there is none: rows and keys would be lost
without an error. So a `stat` compares the file's device and inode before a connection is opened or taken from the pool,
before a commit, and ten times a second in the writer.
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
    """The database file is not at its path. The message has no path, so it may be shown to anyone."""


class SqliteFile:
    """The file of an engine. `fault` describes what is wrong with it (None: nothing); `losses` counts how often it was found
    missing or replaced."""

    def __init__(self, path: Path, engine: AsyncEngine) -> None:
        """Accept only this file for the engine from now on. It must exist."""
        self._path = path.absolute()
        found = os.stat(self._path)
        self._identity = (found.st_dev, found.st_ino)
        self.fault: str | None = None
        self.losses = 0
        event.listen(engine.sync_engine, "do_connect", self._check_event)
        event.listen(engine.sync_engine, "checkout", self._check_event)
        event.listen(engine.sync_engine, "commit", self._check_event)

    def check(self) -> str | None:
        """Check the file and return its fault. A change is logged once."""
        fault = self._find_fault()
        if fault is not None and self.fault is None:
            self.losses += 1
            log.error("%s: %s; records wait until it is back or the gateway is restarted", self._path, fault)
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
            return "another file has replaced the database"
        return None

    def _check_event(self, *_: Any) -> None:
        fault = self.check()
        if fault is not None:
            raise LostFileError(fault)
