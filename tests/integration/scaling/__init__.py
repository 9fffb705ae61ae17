"""Scaling while a gateway runs."""
