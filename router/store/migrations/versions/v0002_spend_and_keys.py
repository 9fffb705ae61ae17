"""Creates `spend` (by day, key, policy and model, filled from the existing requests) and `keys` (made at run time)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")

_DAY = {
    "sqlite": "strftime('%Y-%m-%d', received_at, 'unixepoch')",
    "postgresql": "to_char(to_timestamp(received_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
}


def upgrade() -> None:
    """Create the tables. The spending of existing requests goes to the run `before`."""
    op.create_table(
        "spend",
        sa.Column("day", sa.String(10), primary_key=True),
        sa.Column("run_id", _ID, primary_key=True),
        sa.Column("key_name", sa.Text, primary_key=True),
        sa.Column("policy", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", sa.Double, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "keys",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("maker", sa.Text),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("revoked_at", sa.Double),
        sa.Column("changed_at", sa.Double, nullable=False),
        if_not_exists=True,
    )
    op.create_index("ix_keys_changed_at", "keys", ["changed_at"], if_not_exists=True)
    day = _DAY[op.get_bind().dialect.name]
    op.execute(
        "INSERT INTO spend (day, run_id, key_name, policy, model, requests, prompt_tokens, output_tokens, cost_usd) "  # noqa: S608 (no value from outside)
        f"SELECT {day}, 'before', coalesce(key_name, ''), coalesce(policy, ''), coalesce(model, ''), count(*), "
        "coalesce(sum(prompt_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cost_usd), 0.0) "
        "FROM requests GROUP BY 1, 3, 4, 5"
    )
