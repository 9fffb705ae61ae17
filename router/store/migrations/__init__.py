"""The versions of the tables (Alembic), each a step from the one before. `router.store.schema` runs them."""
