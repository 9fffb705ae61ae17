"""Jobs on unlike machines."""

from __future__ import annotations

from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.makespan import assign


def test_long_jobs_go_to_the_wide_machine() -> None:
    times = [[8.0, 2.0], [1.0, 0.9], [1.0, 0.9]]
    found = assign(times, [0.0, 0.0])
    assert found.machines == (1, 0, 0)
    assert (found.makespan, found.ends) == (2.0, (2.0, 2.0))


def test_a_busy_machine_gets_less() -> None:
    assert assign([[1.0, 1.0]] * 4, [2.0, 0.0]).ends == (3.0, 3.0)


def test_an_exchange_is_found_where_no_move_helps() -> None:
    # Longest first gives {7, 4, 4} and {6, 5}, 15 in all on one machine; moves alone do not reach 13.
    found = assign([[each, each] for each in (7.0, 6.0, 5.0, 4.0, 4.0)], [0.0, 0.0])
    assert found.makespan == 13.0
    assert found.bound == pytest.approx(13.0)


def test_many_jobs_end_near_the_bound_where_each_machine_is_best_at_something() -> None:
    # Prefills of 100 to 100k tokens: wide machines gain most on long ones.
    lengths = [100 * 1000 ** (at / 199) for at in range(200)]
    times = [[0.01 + length / rate for rate in (1e4, 2e4, 4e4, 8e4)] for length in lengths]
    found = assign([[*row[:3], row[3] + 0.05] for row in times], [0.0, 3.0, 0.0, 5.0])
    assert found.makespan <= 1.01 * found.bound


def test_the_bound_is_close_where_machines_differ_in_speed_alone() -> None:
    random = Random(1)
    works = [random.lognormvariate(0.0, 1.2) for _ in range(200)]
    found = assign([[work * slower for slower in (1, 1, 2, 2, 3, 4)] for work in works], [0.0] * 6)
    assert found.makespan <= 1.003 * found.bound


def test_a_job_that_no_machine_can_do_is_refused() -> None:
    with pytest.raises(ValueError, match="no machine can do job 1"):
        assign([[1.0, inf], [inf, inf]], [0.0, 0.0])


def test_no_jobs() -> None:
    assert assign([], [3.0, 1.0]).makespan == 3.0


@given(
    st.lists(st.lists(st.integers(1, 9).map(float), min_size=2, max_size=2), min_size=1, max_size=6),
    st.lists(st.integers(0, 5).map(float), min_size=2, max_size=2),
)
def test_it_is_near_the_optimum_and_no_assignment_is_below_the_bound(
    times: list[list[float]], ready: list[float]
) -> None:
    found = assign(times, ready)
    ends = list(ready)
    for job, machine in enumerate(found.machines):
        ends[machine] += times[job][machine]
    assert list(found.ends) == pytest.approx(ends)
    optimum = min(
        max(
            start + sum(row[machine] for row, at in zip(times, machines, strict=True) if at == machine)
            for machine, start in enumerate(ready)
        )
        for machines in product((0, 1), repeat=len(times))
    )
    assert found.bound - 1e-6 <= optimum <= found.makespan <= 2.0 * optimum
