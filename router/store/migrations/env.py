"""Alembic runs this for each command, on the connection and in the transaction that `router.store.schema` opened."""

from __future__ import annotations

from alembic import context

from router.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
