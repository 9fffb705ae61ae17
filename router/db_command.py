"""`headway db`: shows the version of the store's tables, or upgrades them.

The gateway upgrades them itself when it starts. An upgrade before a roll-out keeps that start short."""

from __future__ import annotations

import argparse
import asyncio
import json
import os

from router.store import schema
from router.store.database import (
    StoreError,
    connect,
    create_engine,
    dispose,
    driver_errors,
    is_temporary,
    location,
    opening,
    parse_url,
    reason,
    sqlite_path,
)
from router.store.runs import takes_files
from router.store_arguments import add_store_arguments, store_of

ERRORS = (StoreError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("version", "upgrade"), help="show the tables' version, or upgrade the tables"
    )
    add_store_arguments(parser)
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Show or upgrade; returns the exit code. Raises ConfigError for a bad fleet file, StoreError."""
    before, now, created = asyncio.run(_versions(store_of(args), upgrade=args.action == "upgrade"))
    if args.json:
        print(json.dumps({"version": now, "before": before, "newest": schema.NEWEST}))
    elif created:
        print(f"the tables were created at {_named(now)}")
    elif args.action == "upgrade" and before != now:
        print(f"the tables were upgraded from {_named(before)} to {_named(now)}")
    elif now == schema.NEWEST:
        print(f"the tables are at {_named(now)}, the newest")
    else:
        print(f"the tables are at {_named(now)}; the newest is {schema.NEWEST}: run headway db upgrade")
    return 0


def _named(version: str | None) -> str:
    return "no version" if version is None else f"version {version}"


async def _versions(url: str, *, upgrade: bool) -> tuple[str | None, str | None, bool]:
    """The tables' version before and after, and whether they were created."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if not upgrade and path is not None and not path.exists():
        raise StoreError(f"no database at {location(parsed)}")
    engine = create_engine(parsed, keeps_file=not upgrade)
    try:
        with opening(engine):
            before, empty = None, True
            if path is None or path.exists():
                async with engine.connect() as connection:
                    before = await connection.run_sync(schema.version)
                    empty = await connection.run_sync(schema.is_empty)
            if upgrade:
                await connect(engine, create=True)
        return before, schema.NEWEST if upgrade else before, upgrade and empty
    finally:
        await dispose(engine)


async def upgrade_due(url: str) -> str | None:
    """A warning for the operator if the tables are of an older version or the database does not answer within
    three seconds; else None. Raises StoreError for what stops a start: a database that refuses the connection, has tables
    of a newer program or cannot be written."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is not None:
        if not takes_files(path.parent) or (path.exists() and not os.access(path, os.W_OK)):
            what = "cannot be written" if path.parent.is_dir() else "is in a directory that does not exist"
            raise StoreError(f"{location(parsed)} {what}")
        if path.exists() and not path.is_file():
            raise StoreError(f"{location(parsed)} is not a file")
    if parsed.get_backend_name() == "sqlite" and (path is None or not path.exists()):
        return None
    engine = create_engine(parsed, keeps_file=True)
    try:
        with opening(engine):
            try:
                async with asyncio.timeout(3.0):
                    await schema.refuse_shared_sessions(engine)
                    async with engine.connect() as connection:
                        found = await connection.run_sync(schema.version)
                        if path is None:
                            await connection.run_sync(schema.write_nothing)
            except driver_errors(engine) as error:
                if not is_temporary(error):
                    raise
                return f"the store {location(parsed)} does not answer here ({reason(error)})"
    finally:
        await dispose(engine)
    if found == schema.NEWEST:
        return None
    return (
        f"the store's tables are at {_named(found)}, the newest is {schema.NEWEST}: the gateway upgrades them when it"
        " starts, or run `headway db upgrade`"
    )
