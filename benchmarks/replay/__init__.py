"""Replay: a workload sent to a URL at its own times, open loop, and what came of each request."""
