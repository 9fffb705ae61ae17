# cython: language_level=3, annotation_typing=False
"""The time of many equal steps. Step time is linear in the KV tokens read, so each step takes the same time more than
the one before: the times are an arithmetic series."""

from __future__ import annotations

import math


def span_s(first_s: float, slope_s: float, count: int) -> float:
    """Seconds of `count` steps: the first takes `first_s`, each further one `slope_s` more."""
    return count * first_s + slope_s * (count * (count - 1) / 2)


def count_within(first_s: float, slope_s: float, spent_s: float, most: int) -> int:
    """How many of these steps have ended after `spent_s` seconds, at most `most`."""
    if spent_s <= 0.0:
        return 0
    # the root of slope / 2 * n^2 + linear * n = spent
    linear = first_s - slope_s / 2
    root = 2 * spent_s / (linear + math.sqrt(linear * linear + 2 * slope_s * spent_s))
    count = min(int(root), most)
    while count > 0 and span_s(first_s, slope_s, count) > spent_s:
        count -= 1
    while count < most and span_s(first_s, slope_s, count + 1) <= spent_s:
        count += 1
    return count
