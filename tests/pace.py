"""Limits of CPU time that hold on slow machines too."""

from __future__ import annotations

from time import thread_time

#: CPU seconds of `_work` that a limit's own seconds stand for. A fast machine of today needs about twice as long.
_UNIT_S = 0.005


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
