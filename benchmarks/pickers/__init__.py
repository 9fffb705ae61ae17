"""Judging whoever picks a model: held-out prompts replayed through the very policies. See docs/pickers.md."""
