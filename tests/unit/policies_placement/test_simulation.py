"""The fast simulator against its definition, and the evaluator's parts against the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.outcomes import Evaluator, Overheads
from policies.placement.simulation import Arrivals, simulate
from policies.placement.types import Group, Placement, Shape
from tests.unit.policies_placement.cases import A100, groups, requests


@pytest.mark.parametrize(
    ("stages", "stage_s", "deadline_s", "good", "latency_s"),
    [
        # three requests at 0, 0 and 1 s, each 1 s of work
        (1, 1.0, 9.0, 3, 1 + 2 + 2),
        (1, 1.0, 1.5, 2, 1 + 1),  # the second is refused and holds up nobody
        # two stages of 0.5 s: the second request follows half a second later
        (2, 0.5, 9.0, 3, 1 + 1.5 + 1),
        (2, 0.5, 1.4, 2, 1 + 1),
        (1, 1.0, 0.9, 0, 0),
    ],
)
def test_one_group(stages: int, stage_s: float, deadline_s: float, good: int, latency_s: float) -> None:
    arrivals = Arrivals([0.0, 0.0, 1.0], [0, 0, 0], [deadline_s] * 3, 1)
    served = simulate(arrivals, [stages], [[stage_s]], [[0]], 0.0)
    assert (served.good, served.sent) == ([good], [3])
    assert served.latency_s == pytest.approx(latency_s)


def test_a_request_goes_to_the_group_whose_last_stage_is_free_first() -> None:
    arrivals = Arrivals([0.0, 0.1, 0.2, 3.0], [0] * 4, [9.0] * 4, 1)
    served = simulate(arrivals, [1, 1], [[1.0], [2.0]], [[0, 1]], 0.0)
    # the first to group 0 (a tie), then 1, then 0 (free at 1 s), then group 0 again (free at 2.0 s, the other at 2.1 s)
    assert served.sent == [3, 1]


def test_overheads() -> None:
    evaluate = Evaluator(
        Arrivals([0.0], [0], [9.0], 1), lambda _, shape: 1.0 / shape.gpus, Overheads(0.009, 0.011)
    )
    outcome = evaluate(groups((1, 4, [0])))
    assert outcome.mean_latency_s == pytest.approx(1.0 * (1 + 4 * 0.009) + 0.011)
    assert (outcome.attainment, outcome.placement.replicas) == (1.0, 1)


def test_models_without_a_replica_are_not_served() -> None:
    evaluate = Evaluator(requests([3, 5], 1.0, 99.0), lambda *_: 0.1)
    outcome = evaluate(groups((1, 1, [1]), (1, 1, [])))
    assert (outcome.good, outcome.sent, outcome.attainment) == ((0, 5), (5, 0), 5 / 8)
    assert evaluate.unserved(outcome) == [3, 0]


def test_without_requests_nothing_is_late() -> None:
    assert Evaluator(Arrivals([], [], [], 2), lambda *_: 0.1)(groups((1, 1, [0]))).attainment == 1.0


models = st.integers(0, 4)
contents = st.lists(
    st.tuples(st.sampled_from([(1, 1), (2, 1), (1, 2), (1, 4)]), st.sets(models, max_size=4)),
    min_size=1,
    max_size=5,
)


@given(contents, st.integers(0, 5))
def test_parts_that_share_no_model_add_up_to_the_whole(
    contents: list[tuple[tuple[int, int], set[int]]], seed: int
) -> None:
    arrivals = requests([20] * 5, 0.2, 1.5, seed)
    evaluate = Evaluator(arrivals, lambda model, shape: (1 + model) / 4 / shape.gpus)
    placement = Placement(
        tuple(Group(Shape(A100, *shape), tuple(sorted(chosen))) for shape, chosen in contents)
    )
    whole = simulate(
        arrivals,
        [group.shape.pipeline for group in placement],
        [
            [(1 + model) / 4 / group.shape.gpus * (1 + 0.009 * group.shape.pipeline) for model in range(5)]
            for group in placement
        ],
        [
            [place for place, group in enumerate(placement.groups) if model in group.models]
            for model in range(5)
        ],
        0.011,
    )
    outcome = evaluate(placement)
    assert (outcome.good, outcome.sent) == (tuple(whole.good), tuple(whole.sent))
    assert outcome.mean_latency_s == pytest.approx(whole.latency_s / 100)
    simulated = evaluate.simulated_requests
    assert evaluate(placement) == outcome
    assert evaluate.simulated_requests == simulated  # remembered
