"""What a reproduction cannot go on with."""

from __future__ import annotations


class ReproductionError(ValueError):
    """The published data are missing or not as expected. One line."""
