"""Latency from the history of an instance: an LSTM over its events, and a head for each request (NumPy only)."""
