"""Creates `spend` (by day, key, policy and model, filled from the existing requests) and `keys` (made at run time)."""

from __future__ import annotations

from alembic import op

from router.store.tables import metadata

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_DAY = {
    "sqlite": "strftime('%Y-%m-%d', received_at, 'unixepoch')",
    "postgresql": "to_char(to_timestamp(received_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
}


def upgrade() -> None:
    """Create the missing tables, as they are now; later versions change what they find. The spending of existing requests
    goes to the run `before`."""
    metadata.create_all(op.get_bind())
    day = _DAY[op.get_bind().dialect.name]
    op.execute(
        "INSERT INTO spend (day, run_id, key_name, policy, model, requests, prompt_tokens, output_tokens, cost_usd) "  # noqa: S608 (no value from outside)
        f"SELECT {day}, 'before', coalesce(key_name, ''), coalesce(policy, ''), coalesce(model, ''), count(*), "
        "coalesce(sum(prompt_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(cost_usd), 0.0) "
        "FROM requests GROUP BY 1, 3, 4, 5"
    )
