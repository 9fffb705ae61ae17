"""Clients' keys in the database: keys that were made at run time, shared by all replicas.

Rows are added and revoked, never removed, so that no other key gets a revoked key's name. The `changed_at` of each change
is later than that of all changes before it, whatever the clocks of the replicas say. So `KeyTable.version` detects a change
without reading the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import ColumnElement, case, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from router.store.async_engine import AsyncEngine
from router.store.database import answering, connected
from router.store.tables import keys

logger = logging.getLogger("headway")

#: A change is later than the last one by at least this much.
_TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One row. `settings` is the table's JSON; times are in seconds since the epoch."""

    name: str
    sha256: str
    maker: str | None
    settings: str
    created_at: float
    revoked_at: float | None = None


#: A version of the table: its rows, its revoked rows, the time of the last change.
Version = tuple[int, int, float]


class KeyTable:
    """The table `keys` of one database. All methods raise StoreError if the database does not answer. The file `keyed`,
    beside the database, says that the table has held keys (None: there is no such file)."""

    def __init__(self, engine: AsyncEngine, keyed: Path | None = None) -> None:
        self._engine = engine
        self.keyed = keyed

    def held_keys(self) -> bool:
        """Whether the table is known to have held keys."""
        return self.keyed is not None and self.keyed.exists()

    def note_keys(self) -> None:
        """Note beside the database that the table holds keys."""
        if self.keyed is not None and not self.keyed.exists():
            try:
                self.keyed.touch(mode=0o600)
            except OSError as error:
                logger.warning("cannot record that there are keys (%s): set auth.required", error.strerror)

    async def version(self) -> Version:
        """A value that differs after every change, wherever it was made."""
        query = select(func.count(), func.count(keys.c.revoked_at), func.max(keys.c.changed_at))
        async with connected(self._engine) as connection:
            rows, revoked, changed_at = (await connection.execute(query)).one()
        return rows, revoked, changed_at or 0.0

    async def rows(self) -> tuple[StoredKey, ...]:
        """All keys, revoked ones included, in the order in which they were made."""
        columns = (getattr(keys.c, name) for name in StoredKey.__dataclass_fields__)
        query = select(*columns).order_by(keys.c.created_at, keys.c.name)
        async with connected(self._engine) as connection:
            return tuple(StoredKey(*row) for row in await connection.execute(query))

    async def add(self, key: StoredKey) -> bool:
        """Add a key; False if another key, which may be revoked, has its name or its hash."""
        statement = insert(keys).values(**asdict(key), changed_at=_later(key.created_at))
        with answering(self._engine):
            try:
                async with self._engine.begin() as connection:
                    await connection.execute(statement)
            except IntegrityError:
                return False
        return True

    async def revoke(self, names: Collection[str], now: float) -> Sequence[str]:
        """Revoke keys for good; returns the names that were not revoked before."""
        statement = (
            update(keys)
            .where(keys.c.name.in_(names), keys.c.revoked_at.is_(None))
            .values(revoked_at=now, changed_at=_later(now))
            .returning(keys.c.name)
        )
        with answering(self._engine):
            async with self._engine.begin() as connection:
                return sorted((await connection.execute(statement)).scalars())


def _later(now: float) -> ColumnElement[float]:
    """`now`, or just after the last change if another clock is ahead."""
    last = select(func.coalesce(func.max(keys.c.changed_at), 0.0)).scalar_subquery()
    return case((last >= now, last + _TICK_S), else_=now)
