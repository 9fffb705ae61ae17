"""Scalers side by side on day cycles and traces, on virtual time: `python -m benchmarks.scaling` (docs/scaling.md)."""
