"""SQLAlchemy's engine for asyncio, without its ORM.

`sqlalchemy.ext.asyncio` imports the ORM (6 MiB) for its sessions, which Headway does not use. So its module `engine` is
loaded here under a package that is not executed. Whoever imports the package later gets all of it, with these classes.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec

_PACKAGE = "sqlalchemy.ext.asyncio"
_spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
if _spec is not None:
    sys.modules[_PACKAGE] = module_from_spec(_spec)

from sqlalchemy.ext.asyncio.engine import AsyncConnection, AsyncEngine, create_async_engine  # noqa: E402

if _spec is not None:
    del sys.modules[_PACKAGE]

__all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]
