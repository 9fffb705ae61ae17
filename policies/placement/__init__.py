"""Placement: what to run on which GPUs. Pure decisions, one file a method."""
