"""Pipelines over unlike machines on virtual time: layers, links, and the schedulers that route requests."""
