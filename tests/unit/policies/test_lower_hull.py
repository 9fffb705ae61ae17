"""The lower hull of (quality, cost) points against its definition."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.lower_hull import lower_hull, steps_of

hundredths = st.integers(0, 100).map(lambda number: number / 100)
points = st.lists(st.tuples(hundredths, hundredths.map(lambda cost: cost + 0.01)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("choices", "hull"),
    [
        ([(0.5, 1.0)], [(0.5, 1.0)]),
        # more expensive and no better, or more expensive than a mix of its neighbours
        ([(0.5, 1.0), (0.4, 2.0), (0.6, 4.0), (0.9, 5.0), (0.5, 1.5)], [(0.5, 1.0), (0.9, 5.0)]),
        (
            [(0.5, 2.0), (0.2, 1.0), (0.4, 3.0), (0.9, 9.0), (0.2, 1.5), (0.7, 8.0)],
            [(0.2, 1.0), (0.5, 2.0), (0.9, 9.0)],
        ),
        ([(0.3, 1.0), (0.6, 1.0)], [(0.6, 1.0)]),  # equally cheap: the better one
        ([(0.5, 1.0), (0.5 + 1e-14, 2.0)], [(0.5, 1.0)]),  # no better but for rounding
    ],
)
def test_lower_hull(choices: list[tuple[float, float]], hull: list[tuple[float, float]]) -> None:
    assert lower_hull(choices) == hull


@given(points, st.floats(0.0, 100.0))
def test_at_every_price_of_quality_the_best_choice_is_on_the_hull(
    choices: list[tuple[float, float]], price: float
) -> None:
    hull = lower_hull(choices)
    assert set(hull) <= set(choices)
    best = min(cost - price * quality for quality, cost in choices)
    assert min(cost - price * quality for quality, cost in hull) == pytest.approx(best, abs=1e-9)


@given(points)
def test_steps_lead_from_the_cheapest_to_the_best_each_at_a_higher_price(
    choices: list[tuple[float, float]],
) -> None:
    hull = lower_hull(choices)
    steps = list(steps_of(hull))
    assert hull[0][1] == min(cost for _, cost in choices)
    assert hull[0][0] + sum(step.quality for step in steps) == pytest.approx(max(choices)[0])
    assert hull[0][1] + sum(step.cost for step in steps) == pytest.approx(hull[-1][1])
    assert all(low.price < high.price for low, high in pairwise(steps))
