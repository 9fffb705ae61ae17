"""Clients' keys, their limits and budgets."""
