"""Creates requests, attempts, explanations, feedback and runs: the tables from before versions existed.

An old database has these tables without a version, so each one is created only if it does not exist.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_TEXT, _COUNT, _REAL = sa.Text, sa.BigInteger, sa.Double


def upgrade() -> None:
    """Create the missing tables."""
    op.create_table(
        "requests",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("client_request_id", _TEXT),
        sa.Column("retry_count", _COUNT),
        sa.Column("received_at", _REAL, nullable=False),
        sa.Column("api", _TEXT),
        sa.Column("key_name", _TEXT),
        sa.Column("policy", _TEXT),
        sa.Column("model_requested", _TEXT),
        sa.Column("model", _TEXT),
        sa.Column("instance", _TEXT),
        sa.Column("attempts", _COUNT),
        sa.Column("hedged", sa.Boolean),
        sa.Column("prompt_tokens", _COUNT),
        sa.Column("max_tokens", _COUNT),
        sa.Column("output_tokens", _COUNT),
        sa.Column("finish_reason", _TEXT),
        sa.Column("decoded", sa.Boolean),
        sa.Column("predicted_output_tokens_p50", _REAL),
        sa.Column("predicted_output_tokens_p90", _REAL),
        sa.Column("predicted_ttft_s_p50", _REAL),
        sa.Column("predicted_ttft_s_p95", _REAL),
        sa.Column("predicted_e2e_s_p50", _REAL),
        sa.Column("predicted_e2e_s_p95", _REAL),
        sa.Column("predicted_quality", _REAL),
        sa.Column("predicted_cost_usd", _REAL),
        sa.Column("artifact", _TEXT),
        sa.Column("propensity", _REAL),
        sa.Column("queue_wait_s", _REAL),
        sa.Column("ttft_s", _REAL),
        sa.Column("tpot_s", _REAL),
        sa.Column("itl_max_s", _REAL),
        sa.Column("e2e_s", _REAL),
        sa.Column("cost_usd", _REAL),
        sa.Column("slo_ttft_s", _REAL),
        sa.Column("slo_tpot_s", _REAL),
        sa.Column("slo_e2e_s", _REAL),
        sa.Column("slo_met", sa.Boolean),
        sa.Column("max_cost_usd", _REAL),
        sa.Column("budget_overrun_usd", _REAL),
        sa.Column("outcome", _TEXT, nullable=False),
        sa.Column("error_code", _TEXT),
        sqlite_with_rowid=False,
        if_not_exists=True,
    )
    _create_index("requests_received_at", "requests", "received_at")
    op.create_table(
        "attempts",
        sa.Column("request_id", _ID, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("instance", _TEXT),
        sa.Column("model", _TEXT),
        sa.Column("started_at", _REAL),
        sa.Column("first_token_at", _REAL),
        sa.Column("ended_at", _REAL),
        sa.Column("output_tokens", _COUNT),
        sa.Column("cost_usd", _REAL),
        sa.Column("ended_how", _TEXT),
        sa.Column("error", _TEXT),
        sqlite_with_rowid=False,
        if_not_exists=True,
    )
    op.create_table(
        "explanations",
        sa.Column("request_id", _ID, primary_key=True),
        sa.Column("blob", sa.LargeBinary, nullable=False),
        sa.Column("prompt", _TEXT),
        if_not_exists=True,
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("request_id", _ID, nullable=False),
        sa.Column("received_at", _REAL, nullable=False),
        sa.Column("key_name", _TEXT),
        sa.Column("quality", _REAL, nullable=False),
        if_not_exists=True,
    )
    _create_index("ix_feedback_request_id", "feedback", "request_id")
    op.create_table(
        "runs",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("started_at", _REAL, nullable=False),
        sa.Column("ended_at", _REAL),
        sa.Column("clean", sa.Boolean),
        sa.Column("arrived", _COUNT, nullable=False),
        sa.Column("finished", _COUNT, nullable=False),
        sa.Column("recorded", _COUNT, nullable=False),
        sa.Column("dropped", _COUNT, nullable=False),
        sa.Column("lost_finished", _COUNT, nullable=False),
        sa.Column("lost_in_flight", _COUNT, nullable=False),
        if_not_exists=True,
    )


def _create_index(name: str, table: str, column: str) -> None:
    """Create an index that does not exist. PostgreSQL's IF NOT EXISTS would keep others from writing until the upgrade is
    over."""
    if name not in {each["name"] for each in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, [column])
