"""Policies that pick a model, evaluated on held-out prompts that are replayed through them. See docs/pickers.md."""
