"""Relays requests to engines and their answers to clients."""
