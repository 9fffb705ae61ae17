"""`predicted_latency`: tables of predicted times and the option that must be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

import pytest

from policies.predicted_latency import EXPLORE, PredictedLatency
from router.core.interfaces import Choice
from router.core.types import Request, Slo
from tests.unit.policies.made_options import option

REQUEST = Request("r", 0.0, "predicted_latency", ("m",), prompt_tokens=100)
SLO = Slo(ttft_s=1.0, tpot_s=0.1)


class NeverExplores(Random):
    def random(self) -> float:
        return 0.5


class Explores(Random):
    def random(self) -> float:
        return 0.0


def choose(
    times: Sequence[tuple[float, float]],
    slo: Slo | None = SLO,
    *,
    running: Sequence[int] | None = None,
    tokens: float | None = None,
    rng: Random | None = None,
    seed: int | None = None,
) -> Choice:
    options = [
        option("abcdef"[at], running=1 if running is None else running[at], output_tokens_p50=tokens)
        for at in range(len(times))
    ]
    policy = PredictedLatency(lambda request, given: times)
    return policy.choose(replace(REQUEST, slo=slo, seed=seed), options, rng or NeverExplores())


@pytest.mark.parametrize(
    ("times", "slo", "expected"),
    [
        # Best fit: the least headroom that is not negative.
        ([(0.2, 0.05), (0.9, 0.05), (1.1, 0.05)], SLO, 1),
        ([(1.0, 0.1), (0.5, 0.05)], SLO, 0),
        # A miss of either target is a miss.
        ([(0.2, 0.05), (0.9, 0.11)], SLO, 0),
        # TTFT has four times the weight of TPOT, each scaled to the spread of the options.
        ([(0.9, 0.01), (0.1, 0.09), (0.5, 0.05)], SLO, 0),
        # If TTFT does not differ, TPOT decides.
        ([(0.5, 0.02), (0.5, 0.09)], SLO, 1),
        # A target that is not set does not count.
        ([(5.0, 0.02), (0.1, 0.09)], Slo(tpot_s=0.1), 1),
        ([(0.8, 9.0), (0.1, 0.01)], Slo(ttft_s=1.0), 0),
        # None meets it: missing only TPOT is better than missing only TTFT, and that better than both.
        ([(1.2, 0.2), (1.1, 0.05), (0.5, 0.5)], SLO, 2),
        ([(1.2, 0.2), (9.0, 0.05)], SLO, 1),
        # Among equal kinds of miss the least excess.
        ([(3.0, 0.05), (1.1, 0.05), (2.0, 0.05)], SLO, 1),
        ([(1.2, 0.9), (1.9, 0.2)], SLO, 0),
        ([(inf, inf), (1e9, 0.2)], SLO, 1),
    ],
)
def test_headroom(times: list[tuple[float, float]], slo: Slo, expected: int) -> None:
    choice = choose(times, slo)
    assert choice.index == expected
    assert [at for at, reason in enumerate(choice.reasons) if reason is None] == [expected]


def test_most_headroom_takes_the_most_headroom_of_those_that_meet_the_slo() -> None:
    policy = PredictedLatency(lambda request, given: [(0.2, 0.05), (0.9, 0.05), (1.1, 0.05)], most=True)
    options = [option(name) for name in "abc"]
    choice = policy.choose(replace(REQUEST, slo=SLO), options, NeverExplores())
    assert (policy.name, choice.index) == ("most_headroom", 0)
    # If none meets it both take the least excess.
    assert policy.choose(replace(REQUEST, slo=Slo(ttft_s=0.1)), options, NeverExplores()).index == 0


def test_an_idle_instance_comes_first_if_none_meets_the_slo() -> None:
    assert choose([(1.1, 0.05), (3.0, 0.5)], running=[1, 0]).index == 1


def test_e2e_counts_the_expected_answer() -> None:
    slo = Slo(e2e_s=10.0)
    # 0.5 + 99 x 0.1 = 10.4 misses, 5.0 + 99 x 0.05 = 9.95 fits best.
    assert choose([(0.5, 0.1), (5.0, 0.05), (0.5, 0.02)], slo, tokens=100.0).index == 1


def test_without_an_slo_the_least_time_is_taken() -> None:
    times = [(0.1, 0.1), (3.0, 0.05), (0.2, 0.2)]
    assert choose(times, None, tokens=10.0).index == 0
    assert choose(times, None, tokens=100.0).index == 1
    assert choose(times, None).scores == [0.1, 3.0, 0.2]


def test_one_in_a_hundred_explores_what_misses() -> None:
    times = [(0.5, 0.05), (3.0, 0.05), (2.0, 0.05)]
    choice = choose(times, rng=Explores())
    assert choice.index == 2
    assert choice.propensity == pytest.approx(EXPLORE)
    assert choose(times).propensity == pytest.approx(1.0 - EXPLORE)
    draws = Random(1)
    explored = sum(choose(times, rng=draws).index == 2 for _ in range(5000))
    assert 25 <= explored <= 80
    # Nothing to explore if all meet it, or none.
    assert choose(times[:1] * 2, rng=Explores()).propensity == pytest.approx(0.5)
    assert choose(times[1:], rng=Explores()).propensity == 1.0


def test_ties_are_drawn_evenly_and_by_the_seed() -> None:
    times = [(0.5, 0.05)] * 3
    draws = Random(2)
    counts = [0, 0, 0]
    for _ in range(900):
        choice = choose(times, rng=draws)
        counts[choice.index] += 1
        assert choice.propensity == pytest.approx(1 / 3)
    assert min(counts) > 240
    assert len({choose(times, seed=7, rng=draws).index for _ in range(20)}) == 1


def test_without_trees_the_options_own_predictions_are_used() -> None:
    options = [
        option("a", ttft_s_p95=0.2, tpot_s=0.05),
        option("b", ttft_s_p95=0.8, tpot_s=0.05),
        option("c"),
    ]
    request = replace(REQUEST, slo=SLO)
    for policy in (PredictedLatency(), PredictedLatency(lambda request, given: None)):
        choice = policy.choose(request, options, NeverExplores())
        assert choice.index == 1
        assert choice.scores == [0.2, 0.8, None]
    unknown = [replace(each, prediction=None) for each in options]
    assert PredictedLatency().choose(request, unknown, NeverExplores()).scores == [None] * 3
