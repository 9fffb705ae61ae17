"""Published placement systems, run again on their own cases. See docs/reproductions.md."""


class ReproductionError(ValueError):
    """The published data are missing or not as expected. One line."""
