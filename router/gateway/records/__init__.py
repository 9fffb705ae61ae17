"""Finished requests: looking them up, and feedback about them."""
