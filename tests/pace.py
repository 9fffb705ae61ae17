"""How much work a piece of code is: in lines of Python that it runs, or in CPU time of this machine's pace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from types import FrameType
from typing import Any

#: CPU seconds of `_work` that a limit's own seconds stand for. A fast machine of today needs about twice as long.
_UNIT_S = 0.005


class Lines:
    """How many lines of Python have run. The same on every machine, busy or not."""

    run = 0


@contextmanager
def lines() -> Iterator[Lines]:
    """Counts the lines that functions called inside the `with` block run."""
    counted = Lines()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        counted.run += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield counted
    finally:
        sys.settrace(before)


def cpu_limit_s(limit_s: float) -> float:
    """`limit_s` in this machine's CPU seconds, by what a fixed piece of work takes here and now."""
    return limit_s * max(1.0, min(_work() for _ in range(3)) / _UNIT_S)


def _work() -> float:
    began = thread_time()
    total = 0
    for number in range(200_000):
        total += number & 7
    assert total
    return thread_time() - began
