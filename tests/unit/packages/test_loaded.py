"""What a serving process keeps in memory."""

from __future__ import annotations

import subprocess
import sys

#: Packages that are loaded when they are first needed. Each takes 3 to 12 MB.
LATER = ("aiohttp", "alembic", "fastapi", "sqlalchemy.dialects.postgresql", "starlette")


def test_a_gateway_starts_without_what_it_needs_later() -> None:
    code = f"import sys, router.process; print([name for name in {LATER!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert loaded.stdout == "[]\n"
