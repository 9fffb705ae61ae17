"""Published placement systems, run again on their own cases. See docs/reproductions.md."""
