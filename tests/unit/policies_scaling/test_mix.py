"""The cheapest mix, against all mixes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.scaling.mix import Kind, cheapest
from tests.pace import lines

SMALL, LARGE = Kind(1.0, 1.0, 0, 5), Kind(3.5, 4.0, 0, 5)


@pytest.mark.parametrize(
    ("demand", "numbers"),
    [
        (0.0, (0, 0)),
        (1.0, (1, 0)),
        (3.0, (3, 0)),
        (3.1, (0, 1)),
        (5.0, (1, 1)),
        (8.0, (0, 2)),
        (24.9, (5, 5)),
        (100.0, (5, 5)),
    ],
)
def test_two_kinds(demand, numbers):
    assert cheapest([SMALL, LARGE], demand) == numbers


def test_bounds_hold():
    assert cheapest([SMALL._replace(least=2), LARGE._replace(most=1)], 7.0) == (3, 1)


@pytest.mark.parametrize("share", [0.5, 0.999, 1.1])
def test_many_instances_take_no_time(share):
    """One decision stands still the gateway."""
    kinds = [Kind(2.0, 5.0, 0, 4096), Kind(0.7, 1.5, 0, 4096), Kind(1.1, 2.4, 0, 4096)]
    demand = share * 4096 * (5.0 + 1.5 + 2.4)
    with lines() as counted:
        found = cheapest(kinds, demand)
    assert counted.run < 4096
    assert share > 1 or sum(kind.rate_per_s * n for kind, n in zip(kinds, found, strict=True)) >= demand


KINDS = st.lists(
    st.builds(
        lambda price, rate, least, more: Kind(price, rate, least, least + more),
        st.integers(1, 20).map(float),
        st.integers(1, 9).map(float),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=3,
)


@given(KINDS, st.integers(0, 60))
def test_nothing_is_cheaper(kinds, demand):
    found = cheapest(kinds, float(demand))
    mixes = product(*(range(kind.least, kind.most + 1) for kind in kinds))
    carried = [
        mix for mix in mixes if sum(kind.rate_per_s * n for kind, n in zip(kinds, mix, strict=True)) >= demand
    ]

    def price(mix):
        return sum(kind.price * n for kind, n in zip(kinds, mix, strict=True))

    if carried:
        assert found in carried
        assert price(found) == min(map(price, carried))
    else:
        assert found == tuple(kind.most for kind in kinds)
