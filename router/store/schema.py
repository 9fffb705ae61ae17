"""The version of a database's tables: read, migrated to the newest (Alembic, `router.store.migrations`), checked.

Opening a store for recording migrates it first. Processes that start at the same time take turns, by PostgreSQL's advisory
lock or SQLite's lock on the file. A migration is one transaction: it is complete or not done. A database without our tables
gets them as they are now, without Alembic, whose modules take memory for as long as the process lives. One with tables but
without a version (made by release 0.1.0) goes through all versions.

A pooler before PostgreSQL that lends one of its sessions to several connections (PgBouncer's transaction mode) is refused:
prepared statements and the lock of the retention belong to a session. In one that others use too, a statement may be another
program's, and the lock stays.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from router.store.async_engine import AsyncConnection, AsyncEngine
from router.store.tables import metadata

log = logging.getLogger(__name__)

#: All versions that this program knows, oldest first.
VERSIONS = ("0001", "0002", "0003")
NEWEST = VERSIONS[-1]

# As Alembic makes it.
_VERSION_TABLE = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
_FOLDER = Path(__file__).with_name("migrations")
# Any number that nothing else in the database uses: "headway" in ASCII.
_LOCK = 0x68656164776179
# How long an upgrade waits for a transaction that uses a table. All others wait behind it.
_TABLE_WAIT_S = 3
_ROUNDS = 3


class SchemaError(Exception):
    """This program cannot use the tables."""


async def upgrade(engine: AsyncEngine) -> None:
    """Migrate the tables to the newest version. Raises SchemaError if they are of a newer program, or not ours. PostgreSQL
    refuses it while another transaction uses a table for long."""
    await refuse_shared_sessions(engine)
    async with engine.connect() as connection:
        if await connection.run_sync(_ready):
            return
        await connection.rollback()
        # Our turn: the first process may have done everything.
        if engine.dialect.name == "postgresql":
            await connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            await connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_TABLE_WAIT_S}s'"))
        else:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        await connection.run_sync(_upgrade)
        await connection.commit()


async def check(engine: AsyncEngine) -> None:
    """Raise SchemaError unless the tables have the newest version."""
    await refuse_shared_sessions(engine)
    async with engine.connect() as connection:
        found = await connection.run_sync(version)
        if found not in VERSIONS or not await connection.run_sync(_ready):
            raise SchemaError(
                f"is at {'no version' if found is None else f'version {found}'}, this program reads {NEWEST}:"
                " run `headway db upgrade`, or start the gateway, which upgrades it too"
            )


def version(connection: sa.Connection) -> str | None:
    """The version of the tables; None if there is none. Raises SchemaError for an unknown version."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    if found is not None and found not in VERSIONS:
        raise SchemaError(
            f"was made by a newer version of Headway (its tables are at {found}, this program supports {NEWEST})"
        )
    return found


def _ready(connection: sa.Connection) -> bool:
    if version(connection) != NEWEST:
        return False
    _refuse_missing(connection)
    return True


def _upgrade(connection: sa.Connection) -> None:
    before = version(connection)
    if before == NEWEST:
        return
    if is_empty(connection):
        metadata.create_all(connection)
        _VERSION_TABLE.create(connection)
        connection.execute(sa.insert(_VERSION_TABLE).values(version_num=NEWEST))
        log.info("the store's tables were created at version %s", NEWEST)
    else:
        _migrate(connection)
        log.info("the store's tables were upgraded from %s to version %s", before or "no version", NEWEST)


def is_empty(connection: sa.Connection) -> bool:
    """Whether the database has none of our tables."""
    return not {*metadata.tables, _VERSION_TABLE.name}.intersection(sa.inspect(connection).get_table_names())


def write_nothing(connection: sa.Connection) -> None:
    """Raise what the first write would, if the database is read-only or its user may not write our tables. The caller rolls
    back."""
    if is_empty(connection):
        _VERSION_TABLE.create(connection)
    for table in metadata.sorted_tables if version(connection) == NEWEST else [_VERSION_TABLE]:
        column = next(iter(table.columns))
        connection.execute(sa.insert(table).from_select([column], sa.select(column).where(sa.false())))
        connection.execute(sa.update(table).where(sa.false()).values({column: column}))
        connection.execute(sa.delete(table).where(sa.false()))


def _migrate(connection: sa.Connection) -> None:
    # Its own message has a dozen lines.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    _refuse_missing(connection)


def _refuse_missing(connection: sa.Connection) -> None:
    """Raise SchemaError for tables with our names but other columns."""
    inspector = sa.inspect(connection)
    present = set(inspector.get_table_names())
    missing = []
    for table in metadata.sorted_tables:
        if table.name not in present:
            missing.append(f"the table {table.name}")
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        missing += [
            f"the column {table.name}.{column.name}" for column in table.columns if column.name not in columns
        ]
    if missing:
        raise SchemaError(f"lacks {', '.join(missing)}: made by another program?")


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
