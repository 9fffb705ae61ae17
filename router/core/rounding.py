"""Rounded times and loads, as they are shown and recorded."""

from __future__ import annotations

from router.compiled import CONSTRUCTS

#: A float of this size has no fraction: a sum with it is rounded to an integer.
_NO_FRACTION = 1.5 * 2.0**52
_POWERS = (1.0, 1e1, 1e2, 1e3, 1e4)


def rounded(value: float, digits: int) -> float:
    """`round(value, digits)`, up to four digits, in a third of its instructions, which go through the value's decimal digits.
    Where the nearest multiple is certain, it is divided instead: the quotient of two integers is rounded correctly too."""
    by = _POWERS[digits]
    scaled = value * by
    if 0.0 < scaled < 1e9:
        whole = scaled + _NO_FRACTION - _NO_FRACTION
        if -0.499 < scaled - whole < 0.499:
            return whole / by
    return round(value, digits)


if CONSTRUCTS:
    from router.native.construction import rounded  # type: ignore[no-redef]  # noqa: F401
