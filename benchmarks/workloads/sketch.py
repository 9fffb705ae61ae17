"""Plots in a terminal: lines of Unicode blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

_RISING = "▁▂▃▄▅▆▇█"
_GROWING = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float]) -> str:
    """One block a value, scaled to the largest; a blank is nothing at all."""
    top = max(values, default=0.0)
    if not top > 0:
        return " " * len(values)
    return "".join(
        _RISING[min(len(_RISING) - 1, int(value / top * len(_RISING)))] if value > 0 else " "
        for value in values
    )


def bar(share: float, width: int) -> str:
    """A horizontal bar, `share` of `width` columns long, padded to `width`; what is above 0 is seen."""
    eighths = max(1, round(share * width * 8)) if share > 0 else 0
    full, rest = divmod(min(eighths, width * 8), 8)
    return ("█" * full + (_GROWING[rest] if rest else "")).ljust(width)


def per_second(times_s: Sequence[float], bins: int) -> tuple[list[float], float]:
    """Events/s in `bins` equal parts of the time from the first to the last, and a part's length in seconds.
    `times_s` must rise."""
    if not times_s:
        return [0.0] * bins, 0.0
    since_first_s = np.subtract(times_s, times_s[0])
    width_s = max(float(since_first_s[-1]), 1e-9) / bins
    counts, _ = np.histogram(since_first_s, bins, (0, bins * width_s))
    return (counts / width_s).tolist(), width_s


def doublings(values: Sequence[int]) -> Counter[int]:
    """How many of `values` (at least 1) lie in [2^k, 2^(k+1)), by k."""
    return Counter(value.bit_length() - 1 for value in values)


def histograms(columns: dict[str, Sequence[int]], width: int = 24) -> list[str]:
    """Several sets of lengths side by side, a line for each doubling."""
    counted = {name: doublings(values) for name, values in columns.items()}
    powers = [power for counts in counted.values() for power in counts]
    if not powers:
        return []
    label = max(len(_range(power)) for power in range(min(powers), max(powers) + 1))
    lines = [f"{'tokens':<{label}}  " + "  ".join(f"{name:<{width + 8}}" for name in columns).rstrip()]
    for power in range(min(powers), max(powers) + 1):
        cells = []
        for name, counts in counted.items():
            count, total = counts.get(power, 0), len(columns[name])
            percent = f"{100 * count / total:5.1f} %" if count else ""
            cells.append(f"{bar(count / max(counts.values(), default=1), width)}{percent:>8}")
        lines.append(f"{_range(power):>{label}}  " + "  ".join(cells).rstrip())
    return lines


def _range(power: int) -> str:
    low, high = 1 << power, (2 << power) - 1
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"
