"""Estimates from an instance's queue and its engine profile, and the distributions that are combined with them."""
