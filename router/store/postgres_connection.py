"""Connects to a PostgreSQL server, or to the first one of several that can be used."""

from __future__ import annotations

from typing import Any

import asyncpg  # type: ignore[import-untyped]

#: Connections, too many of them, shutting down or starting up: the classes of errors after which the next host may do.
_NEXT_HOST = {"08", "53", "57"}


async def connect(*, host: Any = None, port: Any = None, timeout: float = 60.0, **settings: Any) -> Any:
    """`asyncpg.connect`. Each of several hosts (a list, with a list of ports) has an equal part of `timeout`: asyncpg would
    let the first one that does not answer use it up."""
    if not isinstance(host, list) or settings.get("target_session_attrs") == "prefer-standby":
        return await asyncpg.connect(host=host, port=port, timeout=timeout, **settings)
    last: Exception = ConnectionError("no host")
    for one, its_port in zip(host, port, strict=True):
        try:
            return await asyncpg.connect(host=one, port=its_port, timeout=timeout / len(host), **settings)
        except (OSError, asyncpg.TargetServerAttributeNotMatched) as error:
            last = error
        except asyncpg.PostgresError as error:
            if str(error.sqlstate)[:2] not in _NEXT_HOST:
                raise
            last = error
    raise last
