"""What a serving process keeps in memory."""

from __future__ import annotations

import subprocess
import sys

#: Packages that are loaded when they are first needed. Each takes up to 12 MB.
LATER = (
    "aiohttp",
    "alembic",
    "fastapi",
    "policies.scaling",
    "router.scaling",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.orm",
    "starlette",
)


def test_a_gateway_starts_without_what_it_needs_later() -> None:
    code = f"import sys, router.process; print([name for name in {LATER!r} if name in sys.modules]); "
    # Others may import all of SQLAlchemy's asyncio.
    code += "from router.store import async_engine as ours; import sqlalchemy.ext.asyncio as theirs; "
    code += "print(theirs.AsyncEngine is ours.AsyncEngine, theirs.AsyncSession.__name__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\nTrue AsyncSession\n"
