"""What the commands show on a terminal: progress bars and aligned tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

#: The exit status after Ctrl-C or SIGTERM.
INTERRUPTED = 130


def progress_bar(*further: ProgressColumn | str, count: ProgressColumn | None = None) -> Progress:
    """A description, a bar, a `count` (how many of how many) and `further` columns. Shown on standard error where that
    is a terminal, and removed at its end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        count or MofNCompleteColumn(),
        *further,
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
        disable=not sys.stderr.isatty(),
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines: the first column begins at the left, the others end below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
