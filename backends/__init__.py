"""Adapters for engines (`kinds`), a model of engines (`engine`), and that model served over HTTP (`emulator`)."""

from backends.kinds import KINDS, create

__all__ = ["KINDS", "create"]
