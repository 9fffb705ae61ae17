"""What the commands show on a terminal: progress, aligned tables, JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn
from rich.progress import Progress as ProgressBar

#: Takes what is being done.
Progress = Callable[[str], None]
#: The exit status after Ctrl-C or SIGTERM.
INTERRUPTED = 130


def status_of(main: Callable[[], int]) -> int:
    """The exit status of a program's `main`; INTERRUPTED, without a traceback, after Ctrl-C."""
    try:
        return main()
    except KeyboardInterrupt:
        return INTERRUPTED


def progress_bar(*further: ProgressColumn | str, count: ProgressColumn | None = None) -> ProgressBar:
    """A description, a bar, a `count` (how many of how many) and `further` columns. Shown on standard error where that
    is a terminal, and removed at its end."""
    return ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        count or MofNCompleteColumn(),
        *further,
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
        disable=not sys.stderr.isatty(),
    )


class _Tables(Console):
    def on_broken_pipe(self) -> None:
        """`router.cli` ends all commands alike whose reader leaves."""
        raise BrokenPipeError


def table_console() -> Console:
    """Prints tables on standard output. A file or a pipe has no width of its own, so there lines may be long."""
    return _Tables(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)


def prefixed(progress: Progress, prefix: str) -> Progress:
    """The same, with a text before each step."""
    return lambda step: progress(f"{prefix}{step}")


@contextmanager
def shown_progress(what: str) -> Iterator[Progress]:
    """Shows on a terminal what is being done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True).status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows as lines: the cells of the first `left` columns begin below each other, those of the others end below each
    other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def aligned_table(rows: Sequence[Mapping[str, str]], left: int = 1) -> list[str]:
    """Rows by heading as `aligned` lines, the headings first; no line without rows."""
    return aligned([list(row) for row in rows[:1]] + [list(row.values()) for row in rows], left)


def print_json(data: object) -> None:
    print(orjson.dumps(data, option=orjson.OPT_INDENT_2).decode())
