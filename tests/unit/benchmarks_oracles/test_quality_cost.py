"""The frontier of cost against quality: known answers, and the same by HiGHS."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from benchmarks.oracles.quality_cost import Frontier, frontier
from benchmarks.oracles.truth import Truth
from benchmarks.simulator import Arrival, Fleet, open_fleet
from router.config import FleetConfig
from router.core.types import Request

MODELS = ("small", "middle", "large")
PRICES = {"small": 0.1, "middle": 1.0, "large": 3.0}


def three_models() -> Fleet:
    models = [
        {
            "name": model,
            "context_tokens": 8192,
            "price": {"input_usd_per_mtok": 0.0, "output_usd_per_mtok": PRICES[model]},
            "quality": {"small": 0.3, "middle": 0.5, "large": 0.8}[model],
        }
        for model in MODELS
    ]
    instances = [
        {"name": f"{model}-0", "kind": "emulated", "profile": "llama-3.1-8b@a30", "serves": {model: model}}
        for model in MODELS
    ]
    return open_fleet(FleetConfig.model_validate({"models": models, "instances": instances}))


def asks(qualities: Mapping[str, float], tokens: Mapping[str, int] | None = None, **fields: Any) -> Arrival:
    request = Request("r", 0.0, "price", MODELS, prompt_tokens=10, prompt_tokens_bound=10, **fields)
    return Arrival(request, tokens or dict.fromkeys(MODELS, 1000), qualities, ())


def of(*arrivals: Arrival) -> Truth:
    return Truth(three_models(), arrivals)


def pairs(truth: Truth, points: int) -> list[tuple[float, float]]:
    return [(quality, usd * 1e3) for quality, usd in frontier(truth, points).points]


def test_money_goes_first_to_whom_it_helps_most() -> None:
    hard = asks({"small": 0.0, "middle": 1.0, "large": 1.0})
    easy = asks({"small": 1.0, "middle": 1.0, "large": 1.0})
    odd = asks({"small": 0.5, "middle": 0.5, "large": 1.0})
    # 0.1 each; then the hard one moves to the middle for 0.9, then the odd one to the large for 2.9.
    assert pairs(of(hard, easy, odd), 4) == [
        pytest.approx((0.5, 0.1)),
        pytest.approx((2 / 3, 0.1 + 0.9 / 3 / 2)),
        pytest.approx((5 / 6, 0.1 + 0.9 / 3)),
        pytest.approx((1.0, 0.1 + 3.8 / 3)),
    ]


def test_a_cheap_model_that_talks_much_is_dear() -> None:
    chatty = asks({"small": 0.4, "middle": 0.6, "large": 0.6}, {"small": 20_000, "middle": 500, "large": 500})
    # The context ends the small one's answer after 8182 tokens.
    assert pairs(of(chatty), 5) == [pytest.approx((0.6, 0.5))]


@pytest.mark.parametrize("seed", range(8))
def test_the_greedy_walk_is_the_optimum_that_highs_finds(seed: int) -> None:
    rng = Random(seed)

    def level() -> float:
        return rng.choice((0.0, 0.25, 0.5, 1.0)) if seed % 2 else rng.random()

    truth = of(
        *(
            asks(
                {model: level() for model in MODELS},
                {model: rng.randint(1, 3000) for model in MODELS},
                max_cost_usd=rng.choice((None, 0.002)),
            )
            for _ in range(30)
        )
    )
    walked = frontier(truth, 9)
    assert walked.requests > 20
    for quality, usd in walked.points:
        assert usd == pytest.approx(least_usd(truth, quality), rel=1e-6, abs=1e-12)


def least_usd(truth: Truth, quality: float) -> float:
    """The least mean cost of a mean quality, by HiGHS: the shares of each request's candidates add up to 1."""
    choices = [[each for each in some if each.usual and each.quality is not None] for some in truth.attempts]
    rows = [row for row in choices if row]
    flat = [(at, each) for at, row in enumerate(rows) for each in row]
    qualities, usd = np.array([(each.quality, each.cost_usd) for _, each in flat]).T / len(rows)
    own = [[float(at == row) for at, _ in flat] for row in range(len(rows))]
    found = linprog(usd, A_ub=[-qualities], b_ub=[1e-12 - quality], A_eq=own, b_eq=np.ones(len(rows)))
    return float(found.fun)


def test_caps_and_hard_wishes_keep_candidates_out() -> None:
    qualities = {"small": 0.2, "middle": 0.6, "large": 1.0}
    poor = asks(qualities, max_cost_usd=0.0015)  # 500 tokens of the large model
    picky = asks(qualities, min_quality=0.5)  # by the operator's prior
    assert pairs(of(poor), 3)[-1] == pytest.approx((0.6, 1.0))
    assert pairs(of(picky), 3)[0] == pytest.approx((0.6, 1.0))


def test_requests_of_unknown_quality_are_left_out_and_counted() -> None:
    known, unknown = asks({"small": 0.2}), asks({})
    found = frontier(of(known, unknown))
    assert (found.requests, found.left_out) == (1, 1)
    assert len(found.points) == 1
    assert frontier(of(unknown)) == Frontier((), 0, 1)
