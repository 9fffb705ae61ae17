"""The tables of release 0.1.0, which made them itself and wrote no version: requests, attempts, explanations, feedback, runs."""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: `v0002` creates tables that are missing."""
