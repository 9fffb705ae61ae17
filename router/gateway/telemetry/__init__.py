"""Metrics, traces, stalls."""
