"""The tables of policies in the documentation: measured by a command, kept in `docs/claims.json`, written into the pages."""
