"""`relevance`: the options it sees and what it must choose."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policies.relevance import BestQuality, quality_bound
from router.core.interfaces import Choice, Option
from router.core.state import Instance
from router.core.types import Candidate, Request, Slo
from tests.unit.policies import made_options

REQUEST = Request("r", 0.0, "relevance", ("m",), prompt_tokens=100)
WITH_SLO = replace(REQUEST, slo=Slo(ttft_s=1.0))


def option(name: str, quality: float | None, **given: Any) -> Option:
    return made_options.option(name, quality=quality, **{"e2e": 1.0} | given)


def choose(options: list[Option], request: Request = REQUEST) -> Choice:
    return BestQuality(0.1).choose(request, options, Random(0))


@pytest.mark.parametrize(
    ("options", "request_", "chosen"),
    [
        # the best quality, whatever it costs without a cap
        ([option("a", 0.6, cost=1.0), option("b", 0.7, cost=9.0)], REQUEST, 1),
        # the lower bound: 0.75 - 0.2 is less than 0.6 - 0.01
        ([option("a", 0.75, sd=0.2), option("b", 0.6, sd=0.01)], REQUEST, 1),
        # a prior counts as it is
        ([option("a", 0.7, sd=0.2), option("b", 0.6)], REQUEST, 1),
        # only among those that meet the SLO
        ([option("a", 0.9, miss=0.2), option("b", 0.5, miss=0.1)], WITH_SLO, 1),
        # none meets it: the least P(miss), then quality
        ([option("a", 0.9, miss=0.5), option("b", 0.2, miss=0.3), option("c", 0.4, miss=0.3)], WITH_SLO, 2),
        # the expected price within the cap
        ([option("a", 0.9, cost=2.0), option("b", 0.5, cost=0.5)], replace(REQUEST, max_cost_usd=1.0), 1),
        # no option is within the cap: the SLO still counts, the price does not
        (
            [option("a", 0.9, cost=2.0, miss=0.5), option("b", 0.5, cost=3.0, miss=0.0)],
            replace(WITH_SLO, max_cost_usd=1.0),
            1,
        ),
        # replicas: the least E2E, then the name
        ([option("a", 0.6, e2e=2.0), option("b", 0.6, e2e=1.0)], REQUEST, 1),
        ([option("b", 0.6), option("a", 0.6)], REQUEST, 1),
        # unknown quality comes last
        ([option("a", None, e2e=0.1), option("b", 0.01)], REQUEST, 1),
    ],
)
def test_choice(options: list[Option], request_: Request, chosen: int) -> None:
    assert choose(options, request_).index == chosen


def test_equal_replicas_are_alternatives() -> None:
    options = [option("a", 0.6, e2e=2.0), option("b", 0.6), option("c", 0.5), option("d", 0.6, miss=0.9)]
    choice = choose(options, WITH_SLO)
    assert choice.index == 1
    assert list(choice.alternatives) == [0]


def test_there_are_no_alternatives_if_no_option_meets_the_slo() -> None:
    assert list(choose([option("a", 0.6, miss=0.5), option("b", 0.6, miss=0.5)], WITH_SLO).alternatives) == []


def test_every_option_passed_over_has_its_reason() -> None:
    options = [
        option("a", 0.6),
        option("b", 0.5),
        option("c", 0.9, miss=0.4),
        option("d", 0.9, cost=5.0),
        option("e", 0.6, e2e=3.0),
    ]
    choice = choose(options, replace(WITH_SLO, max_cost_usd=1.0))
    assert list(choice.reasons) == [
        None,
        "lower quality: at least 0.500, against 0.600",
        "would miss its SLO with probability 0.40",
        "expected to cost more than max_cost_usd allows",
        "same quality but not faster: 3 s expected, against 1 s",
    ]
    assert choice.scores[1] == -0.5


def test_without_a_prediction_the_prior_counts() -> None:
    candidate = Candidate("a", "m", "m", quality=0.4)
    assert quality_bound(Option(candidate, Instance("a", "vllm", {"m": candidate}))) == 0.4
