"""`rounded` gives the bits that `round` gives."""

from __future__ import annotations

from math import copysign

from hypothesis import example, given
from hypothesis import strategies as st

from router.core.rounding import rounded


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e6, 1e6), st.integers(3, 4))
@example(0.0005, 3)
@example(2.6755, 3)
@example(-0.0, 3)
@example(-1e-9, 4)
@example(1e6 + 0.0005, 3)
def test_as_round(value: float, digits: int) -> None:
    found, wanted = rounded(value, digits), round(value, digits)
    assert found == wanted
    assert copysign(1.0, found) == copysign(1.0, wanted)


@given(st.integers(0, 10**9), st.integers(-3, 3))
def test_near_the_middle_of_two(thousandths: int, ulps: int) -> None:
    value = (thousandths + 0.5) / 1000 * (1.0 + ulps * 2.0**-52)
    assert rounded(value, 3) == round(value, 3)
