"""Predictions for a candidate: TTFT, TPOT, E2E, output length, price, and P(an SLO is missed)."""
