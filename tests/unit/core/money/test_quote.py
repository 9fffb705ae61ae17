"""What a request may cost, before it is known which candidate answers it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from router.core.events import Arrived, Ended, FleetChanged
from router.core.money.quote import LEAST_ANSWER_TOKENS, Quote, Tariff, quote
from router.core.types import EndedHow, Price, Request, Slo
from tests.unit.core.worlds import instance, request, scheduler

CHEAP = Tariff("cheap", Price(1.0, 2.0), 1000)
DEAR = Tariff("dear", Price(3.0, 10.0), None)
USD = 1e-6


def quoted(*tariffs: Tariff, usual: float = 200.0, hedged: bool = False, **fields: Any) -> Quote:
    request = Request("r", 0.0, "p", ("m",), prompt_tokens_bound=100, **fields)
    return quote(request, tariffs, usual, hedged=hedged)


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
        ({"max_tokens": 50, "max_cost_usd": 1.0}, 102, 300 + 510, 510, 300 + 510),
        ({"max_cost_usd": 1.0}, 102, 300 + 2010, 2010, 1e6),
        ({"max_tokens": 50, "max_cost_usd": 1 * USD}, 102, 102, 510, 102),
        ({"decodes": False}, 100, 300, 0, 300),
        ({"max_tokens": 4096, "engine_streams": False}, 102, 300 + 40970, 2010, 300 + 40970),
        ({"engine_streams": False}, 102, math.inf, 2010, math.inf),
    ],
)
def test_a_quote(how: dict[str, Any], least: float, first: float, step: float, most: float) -> None:
    found = quoted(CHEAP, DEAR, **how)
    expected = [pytest.approx(each * USD) for each in (least, first, step, most)]
    assert [found.least_usd, found.first_usd, found.step_usd, found.most_usd] == expected
    assert quoted(DEAR, CHEAP, **how) == found


def test_a_context_bounds_an_answer() -> None:
    found = quoted(CHEAP, engine_streams=False)
    assert found.first_usd == found.most_usd == pytest.approx((100 + 2 * 1001) * USD)
    assert quoted(CHEAP, max_tokens=10).most_usd == pytest.approx((100 + 2 * 11) * USD)
    assert quoted(CHEAP, usual=5000.0).first_usd == pytest.approx((100 + 2 * 1001) * USD)


def test_what_is_free_costs_nothing() -> None:
    found = quoted(Tariff("free", Price(), None))
    assert (found.least_usd, found.first_usd, found.step_usd, found.most_usd) == (0.0, 0.0, 0.0, 0.0)
    prompt_only = quoted(Tariff("free answers", Price(1.0), None), hedged=True)
    assert prompt_only.most_usd == pytest.approx(2 * 100 * USD)
    assert quoted().first_usd == 0.0  # nobody serves it: the scheduler refuses it for that


def test_a_scheduler_quotes_the_tariffs_of_its_fleet_as_it_is() -> None:
    cheap, dear = Price(1.0, 2.0), Price(3.0, 4.0)
    both = instance("a", price=cheap), instance("b", price=cheap)
    s = scheduler(*both, hedge_share=0.5)
    wanted = Request("r", 0.0, "first", ("m",), ("other",), prompt_tokens_bound=100, max_tokens=50)
    assert s.quote(wanted).most_usd == pytest.approx((100 + 2 * 51) * USD)
    s.handle(FleetChanged((both[0], instance("c", "other", price=dear)), s.settings), 0.0)
    assert s.quote(wanted).most_usd == pytest.approx((3 * 100 + 4 * 51) * USD)
    hedged = replace(wanted, slo=Slo(ttft_s=1.0))  # its prompt may have to be paid twice
    assert s.quote(hedged).most_usd == pytest.approx((2 * 3 * 100 + 4 * 51) * USD)
    never = scheduler(*both, hedge_share=0.0)
    assert never.quote(hedged).most_usd == never.quote(wanted).most_usd


def test_a_usual_answer_is_the_mean_of_those_of_late() -> None:
    s = scheduler(instance("a", price=Price(0.0, 1.0)))
    before_usd = s.quote(Request("q", 0.0, "first", ("m",))).step_usd
    for number in range(50):
        s.handle(Arrived(request(f"r{number}")), 0.0)
        s.handle(Ended(f"r{number}", 1, EndedHow.OK, 4000, 100), 1.0)
    assert s.quote(Request("q", 0.0, "first", ("m",))).step_usd > 2 * before_usd
