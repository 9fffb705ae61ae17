"""What a request may cost, before it is known who answers it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from router.gateway.keys.quote import LEAST_ANSWER_TOKENS, Tariff, Tariffs, quote

from router.core.scheduler import Scheduler
from router.core.types import Price, Request
from tests.unit.core.worlds import First, Fixed, instance

CHEAP = Tariff("cheap", Price(1.0, 2.0), 1000)
DEAR = Tariff("dear", Price(3.0, 10.0), None)
USD = 1e-6


def quoted(
    *tariffs: Tariff, usual: float = 200.0, whole: bool = False, hedged: bool = False, **fields: Any
) -> Any:
    asked = Request("r", 0.0, "p", ("m",), prompt_tokens_bound=100, **fields)
    return quote(asked, tariffs, usual, whole=whole, hedged=hedged)


@pytest.mark.parametrize(
    ("how", "least", "first", "step", "most"),
    [
        # The prompt and a token at the cheapest; the prompt and a usual answer (and the token after it) at the dearest.
        ({}, 102, 300 + 2010, 2010, math.inf),
        ({"max_tokens": 50}, 102, 300 + 510, 510, 300 + 510),
        ({"max_tokens": 4096}, 102, 300 + 2010, 2010, 300 + 40970),
        ({"max_tokens": 50, "choices": 3}, 106, 300 + 1510, 1510, 300 + 1510),
        ({"usual": 3.0}, 102, 300 + 10 * (LEAST_ANSWER_TOKENS + 1), 10 * (LEAST_ANSWER_TOKENS + 1), math.inf),
        ({"max_tokens": 50, "hedged": True}, 102, 600 + 510, 510, 600 + 510),
        ({"max_tokens": 50, "max_cost_usd": 400 * USD}, 102, 400, 510, 400),
        ({"max_tokens": 50, "max_cost_usd": 1 * USD}, 102, 102, 510, 102),
        ({"decodes": False}, 100, 300, 0, 300),
        ({"max_tokens": 4096, "whole": True}, 102, 300 + 40970, 2010, 300 + 40970),
        ({"whole": True}, 102, math.inf, 2010, math.inf),
    ],
)
def test_a_quote(how: dict[str, Any], least: float, first: float, step: float, most: float) -> None:
    found = quoted(CHEAP, DEAR, **how)
    expected = [pytest.approx(each * USD) for each in (least, first, step, most)]
    assert [found.least_usd, found.first_usd, found.step_usd, found.most_usd] == expected


def test_a_context_bounds_an_answer() -> None:
    found = quoted(CHEAP, whole=True)
    assert found.first_usd == found.most_usd == pytest.approx((100 + 2 * 1001) * USD)
    assert quoted(CHEAP, max_tokens=10).most_usd == pytest.approx((100 + 2 * 11) * USD)


def test_what_is_free_costs_nothing() -> None:
    found = quoted(Tariff("free", Price(), None))
    assert (found.least_usd, found.first_usd, found.step_usd, found.most_usd) == (0.0, 0.0, 0.0, 0.0)
    assert quoted().first_usd == 0.0  # nobody serves it: that is told by who decides


def test_tariffs_are_those_of_the_fleet_as_it_is() -> None:
    cheap, dear = Price(1.0, 2.0), Price(3.0, 4.0)
    scheduler = Scheduler(
        [instance("a", price=cheap), instance("b", price=cheap)], {"first": First()}, Fixed()
    )
    tariffs, asked = Tariffs(scheduler), Request("r", 0.0, "first", ("m",), ("other",))
    assert tariffs.of(asked) == (Tariff("m", cheap, None),)
    scheduler.set_instances(
        [instance("a", price=cheap), instance("b", "other", price=dear, context_tokens=9)]
    )
    assert set(tariffs.of(asked)) == {Tariff("m", cheap, None), Tariff("other", dear, 9)}
