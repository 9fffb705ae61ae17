"""Refuses a pooler before PostgreSQL that lends one of its sessions to several connections (PgBouncer's transaction mode).

Prepared statements and the lock of the retention belong to a session. In one that others use too, a statement may be another
program's, and the lock stays.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from router.store.async_engine import AsyncConnection, AsyncEngine
from router.store.schema import SchemaError

_ROUNDS = 3


async def refuse_shared_sessions(engine: AsyncEngine) -> None:
    """Raise SchemaError if two connections that are open at the same time reach the same session of a PostgreSQL server, or
    one reaches several. Only a pooler makes this possible; a busy one may hide it."""
    if engine.dialect.name != "postgresql":
        return
    async with engine.connect() as one:
        driver: Any = (await one.get_raw_connection()).driver_connection
        found = await _session(one)
        if found == driver.get_server_pid():
            return  # no pooler: these are its first words
        ours, theirs = {found}, set()
        async with engine.connect() as other:
            for _ in range(_ROUNDS):
                theirs.add(await _session(other))
                ours.add(await _session(one))
        if len(ours) > 1 or len(theirs) > 1 or ours & theirs:
            raise SchemaError(
                "is behind a pooler in transaction mode, which mixes up sessions: set session mode"
            )


async def _session(connection: AsyncConnection) -> int:
    """The server's process behind a connection. Its transaction has ended."""
    found: int = (await connection.execute(sa.text("SELECT pg_backend_pid()"))).scalar_one()
    await connection.rollback()
    return found
