"""Policies side by side: the same workload, one policy after another, and a report of it."""
