"""Adds `min_quality`, `on_miss` and `priority` to `requests`: what the request asked for, NULL in older rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = {"min_quality": sa.Double, "on_miss": sa.Text, "priority": sa.BigInteger}


def upgrade() -> None:
    """Add the missing columns."""
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("requests")}
    for name, kind in _COLUMNS.items():
        if name not in present:
            op.add_column("requests", sa.Column(name, kind))
