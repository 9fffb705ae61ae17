"""Clients' keys in the database: keys that were made at run time, shared by all replicas.

Rows are added and revoked but never removed, so a revoked key's name is not used again. Every change has a later
`changed_at` than all changes before it, even if clocks differ. So `KeyTable.version` detects a change without reading the
rows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, case, func, insert, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from router.store.database import (
    StoreError,
    connect,
    create_engine,
    driver_errors,
    parse_url,
    public_url,
    safe_reason,
)
from router.store.tables import keys

logger = logging.getLogger("headway")

#: A change is at least this much later than the last one, even if the clock is behind.
_TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One row. `settings` is JSON as stored in the table. Times are seconds since the epoch."""

    name: str
    sha256: str
    maker: str | None
    settings: str
    created_at: float
    revoked_at: float | None = None


class NameTaken(Exception):
    """Another key, active or revoked, has this name (or this hash)."""


#: The result of `KeyTable.version`: number of rows, number of revoked rows, time of the last change.
Version = tuple[int, int, float]


class KeyTable:
    """The table `keys` of one database. All methods raise StoreError if the database does not answer. `keyed` is a marker
    file beside the database: it exists if the table ever had keys (None: no marker)."""

    def __init__(self, url: URL, engine: AsyncEngine, keyed: Path | None = None) -> None:
        self._name = public_url(url)
        self._engine = engine
        self.keyed = keyed
        self._errors = driver_errors(url)

    @classmethod
    async def open(cls, url: str, *, create: bool = False) -> KeyTable:
        """Connect to a database that this process has not opened yet. With `create` the database and its tables are
        created. Close it with `aclose`."""
        parsed = parse_url(url)
        engine = create_engine(parsed)
        try:
            await connect(parsed, engine, create=create)
        except BaseException:
            await engine.dispose()
            raise
        return cls(parsed, engine)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._engine.dispose()

    def held_keys(self) -> bool:
        """True if the marker shows that the table had keys, even if it has none now."""
        return self.keyed is not None and self.keyed.exists()

    def note_keys(self) -> None:
        """Create the marker file: the table has keys."""
        if self.keyed is not None and not self.keyed.exists():
            try:
                self.keyed.touch(mode=0o600)
            except OSError as error:
                logger.warning("cannot record that there are keys (%s): set auth.required", error.strerror)

    async def version(self) -> Version:
        """A value that changes with every change of the table, by any process."""
        query = select(func.count(), func.count(keys.c.revoked_at), func.max(keys.c.changed_at))
        try:
            async with self._engine.connect() as connection:
                rows, revoked, changed_at = (await connection.execute(query)).one()
        except self._errors as error:
            raise self._unanswered(error) from None
        return rows, revoked, changed_at or 0.0

    async def rows(self) -> tuple[StoredKey, ...]:
        """All keys, including revoked ones, in the order of their creation."""
        columns = (getattr(keys.c, name) for name in StoredKey.__dataclass_fields__)
        query = select(*columns).order_by(keys.c.created_at, keys.c.name)
        try:
            async with self._engine.connect() as connection:
                return tuple(StoredKey(*row) for row in await connection.execute(query))
        except self._errors as error:
            raise self._unanswered(error) from None

    async def add(self, key: StoredKey) -> None:
        """Store a new key. Raises NameTaken."""
        values: dict[str, Any] = {name: getattr(key, name) for name in StoredKey.__dataclass_fields__}
        statement = insert(keys).values(**values, changed_at=_later(key.created_at))
        try:
            async with self._engine.begin() as connection:
                await connection.execute(statement)
        except IntegrityError:
            raise NameTaken(key.name) from None
        except self._errors as error:
            raise self._unanswered(error) from None

    async def revoke(self, names: Collection[str], now: float) -> Sequence[str]:
        """Revoke keys permanently. Returns the names of those that were not revoked before."""
        statement = (
            update(keys)
            .where(keys.c.name.in_(names), keys.c.revoked_at.is_(None))
            .values(revoked_at=now, changed_at=_later(now))
            .returning(keys.c.name)
        )
        try:
            async with self._engine.begin() as connection:
                return sorted((await connection.execute(statement)).scalars())
        except self._errors as error:
            raise self._unanswered(error) from None

    def _unanswered(self, error: Exception) -> StoreError:
        return StoreError(f"the store {self._name} does not answer ({safe_reason(error)})")


def _later(now: float) -> ColumnElement[float]:
    """`now`, or just after the last change if another process's clock is ahead."""
    last = select(func.coalesce(func.max(keys.c.changed_at), 0.0)).scalar_subquery()
    return case((last >= now, last + _TICK_S), else_=now)
