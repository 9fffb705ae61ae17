"""What an error of a database driver means. No database library is imported: the writer process uses this too."""

from __future__ import annotations

import os

#: PostgreSQL's classes of errors for values that it will never accept: data, constraints, limits such as an index's.
BAD_VALUE_STATES = frozenset({"22", "23", "54"})

#: PostgreSQL's errors for a prepared statement that is there already, or is not there. Each connection counts its own.
_MIXED_STATES = ("42P05", "26000")


class LostFileError(OSError):
    """The database file is not at its path. The message has no path: anyone may see it."""


def lost_file(path: str, identity: tuple[int, int]) -> str | None:
    """Why the SQLite file at `path` is not the one with this device and inode; None if it is."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        where = "file" if os.path.isdir(os.path.dirname(path)) else "directory"
        return f"the database's {where} was moved or removed"
    except OSError as error:
        return f"the database file cannot be reached ({error.strerror})"
    if (found.st_dev, found.st_ino) != identity:
        return "another file has replaced the database"
    return None


#: The driver's names for faults of a file, and what they mean. Unlike a lock they last until someone acts.
_FILE_FAULTS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "the database file cannot be written: it or its file system is read-only",
    "SQLITE_CANTOPEN": "the database file cannot be opened",
    "SQLITE_IOERR": "the disk refuses to read or write the database file",
    "SQLITE_CORRUPT": "the database file is damaged",
    "SQLITE_NOTADB": "the database file is not a SQLite database",
}
_LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED")
#: Another process has the file locked; a statement was interrupted.
_PASSING = (*_LOCKED, "SQLITE_INTERRUPT")


def file_fault(error: BaseException) -> str | None:
    """What is wrong with a SQLite file, in one clause; None for any other error."""
    if isinstance(error, LostFileError):
        return str(error)
    name = getattr(error, "sqlite_errorname", "")
    if not name or name.startswith(_PASSING):
        return None
    return next(
        (words for start, words in _FILE_FAULTS.items() if name.startswith(start)),
        f"the database refuses ({name})",
    )


def mixed_sessions(error: BaseException) -> str | None:
    """What is wrong with a pooler that does not keep one session for a connection; None for any other error."""
    if "statement pooling mode" in str(error):  # PgBouncer's words
        return "a pooler in statement mode allows no transactions: set session mode"
    if getattr(error, "sqlstate", None) in _MIXED_STATES:
        return "a pooler in transaction mode mixes up sessions: set session mode"
    return None


def error_name(error: BaseException) -> str:
    """What may be shown of an error that is not a fault of a file: its type in the driver, because a driver's message may
    quote the row."""
    if getattr(error, "sqlite_errorname", "").startswith(_LOCKED):
        return "another process has the file locked"
    return (
        mixed_sessions(error) or type(error.__cause__ or error).__name__
    )  # SQLAlchemy wraps asyncpg's twice


def tls_file_fault(file: str, *, has_key: bool) -> str | None:
    """Why a file of certificates, or of a key, cannot be used; None if it can."""
    import ssl  # here, because the writer process of a SQLite file needs no TLS

    try:
        with open(file, "rb"):
            if not has_key:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        return f"{file}: it has no certificate or CRL in PEM format"
    except OSError as error:
        return f"{file}: {error.strerror}"
    return None
