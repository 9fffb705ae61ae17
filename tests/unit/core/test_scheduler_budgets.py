"""What a key's budgets have left bounds the answer, and says who may answer."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.events import Arrived, Dispatch, Ended, Refuse
from router.core.types import EndedHow, Outcome, Price
from tests.unit.core.worlds import instance, request, scheduler

PRICE = Price(1.0, 2.0)  # the prompt's bound is 400 tokens
USD = 1e-6


def sent(left: float, price: Price = PRICE, **fields: Any) -> Any:
    context_tokens = fields.pop("context_tokens", None)
    s = scheduler(instance("a", price=price, context_tokens=context_tokens))
    (out,) = s.handle(Arrived(request(left_usd=left * USD, **fields)), 0.0)
    return out


@pytest.mark.parametrize(
    ("left", "fields", "bound", "by_money"),
    [
        (400 + 2 * 11, {}, 10, True),  # one token is kept for an engine that goes on
        (400 + 2 * 11, {"max_tokens": 10}, 10, False),
        (400 + 2 * 11, {"max_tokens": 11}, 10, True),
        (400 + 2 * 11, {"choices": 2}, 5, True),
        (400 + 2, {}, 1, True),
        (400 + 2 * 1000, {"context_tokens": 900}, None, False),
        (400 + 2 * 850, {"context_tokens": 900}, 800, False),  # what the context has room for
        (400 + 2 * 11, {"max_cost_usd": (400 + 2 * 5) * USD}, 5, True),
        (400 + 2 * 4, {"max_cost_usd": (400 + 2 * 5) * USD}, 3, True),
        (400.01, {"decodes": False}, None, False),
    ],
)
def test_the_bound(left: float, fields: dict[str, Any], bound: int | None, by_money: bool) -> None:
    out = sent(left, **fields)
    assert isinstance(out, Dispatch)
    assert (out.max_output_tokens, out.budget_bound) == (bound, by_money)
    assert (out.paid_tokens is None) is ("max_cost_usd" not in fields)


@pytest.mark.parametrize(
    ("left", "fields", "code"),
    [
        (401, {}, "insufficient_quota"),
        (403, {"choices": 2}, "insufficient_quota"),
        (399, {"decodes": False}, "insufficient_quota"),
        (401, {"max_cost_usd": 1.0}, "insufficient_quota"),
        (500, {"max_cost_usd": 401 * USD}, "budget_unattainable"),
        (401, {"max_cost_usd": 401 * USD}, "budget_unattainable"),
    ],
)
def test_whose_money_it_is_that_does_not_do(left: float, fields: dict[str, Any], code: str) -> None:
    out = sent(left, **fields)
    assert isinstance(out, Refuse)
    refusal = out.refusal
    assert (refusal.code, refusal.outcome) == (code, Outcome.REJECTED_BUDGET)
    quota = code == "insufficient_quota"
    assert (refusal.status, refusal.should_retry) == ((429, False) if quota else (400, True))


def test_the_affordable_takes_it_and_a_failure_leaves_less() -> None:
    dear = Price(2.0, 2.0)
    s = scheduler(instance("a", price=dear), instance("b", price=PRICE), instance("c", price=PRICE))
    (first,) = s.handle(Arrived(request(left_usd=900 * USD)), 0.0)
    assert first.candidate.instance == "a"
    (second,) = s.handle(Ended("r1", 1, EndedHow.FAILED, 0, restartable=True), 1.0)
    assert (second.candidate.instance, second.max_output_tokens) == ("b", 249)
    (third,) = s.handle(Ended("r1", 2, EndedHow.FAILED, 10, restartable=True), 2.0)
    assert third.candidate.instance == "c" if isinstance(third, Dispatch) else third.refusal.status == 502
    (alone,) = s.handle(Arrived(request("r2", left_usd=700 * USD)), 3.0)
    assert alone.candidate.instance == "b"
