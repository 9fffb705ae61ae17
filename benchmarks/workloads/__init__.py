"""Workloads: prompts, arrival times, lengths and routing parameters. See `format` for the file."""
