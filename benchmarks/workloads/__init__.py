"""Workloads: what is asked, when, how long, with which wishes. See `format` for the file."""
