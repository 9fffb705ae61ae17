"""One request's money: what its cap and its key's budgets leave for an attempt, and how attempts share a reservation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.money.account import OVER_BUDGET, OVER_CAP, OutputBound, RequestMoney, Wait
from router.core.money.reservation import Funding
from router.core.types import Candidate, Price
from tests.unit.core.worlds import request

USD = 1e-6
# The prompt's bound is 400 tokens: 400 USD millionths, and 2 for each token of the answer.
PRICE = Price(1.0, 2.0)


def candidate(name: str = "a", context_tokens: int | None = None, price: Price = PRICE) -> Candidate:
    return Candidate(name, "m", "m", price, context_tokens)


def funded(reserved: float, left: float | None = None, *, step: float = 100.0, **fields: Any) -> RequestMoney:
    """A request whose key's budgets have reserved so many millionths of a USD, and have `left` of them in all."""
    left_usd = None if left is None else left * USD
    return RequestMoney(request(**fields), Funding(reserved * USD, left_usd, step * USD, 1.0))


@pytest.mark.parametrize(
    ("left", "fields", "bound", "by_money"),
    [
        (400 + 2 * 11, {}, 10, True),  # one token is kept for an engine that ignores its bound
        (400 + 2 * 11, {"max_tokens": 10}, 10, False),
        (400 + 2 * 11, {"max_tokens": 11}, 10, True),
        (400 + 2 * 11, {"choices": 2}, 5, True),
        (400 + 2, {}, 1, True),
        (400 + 2 * 1000, {"context_tokens": 900}, None, False),
        (400 + 2 * 850, {"context_tokens": 900}, 800, False),  # what the context has room for
        # Each of two prompts has its own context.
        (400 + 4 * 860, {"context_tokens": 900, "choices": 2, "longest_prompt_tokens": 60}, 840, False),
        (400 + 2 * 900, {"context_tokens": 900}, 800, False),
        (400 + 2 * 901, {"context_tokens": 900}, None, False),
        (1e300, {"context_tokens": 900, "max_cost_usd": 1e303}, None, False),
        (400 + 2 * 11, {"max_cost_usd": (400 + 2 * 5) * USD}, 5, True),
        (400 + 2 * 4, {"max_cost_usd": (400 + 2 * 5) * USD}, 3, True),
        (400.01, {"decodes": False}, None, False),
    ],
)
def test_the_bound_of_an_answer(
    left: float, fields: dict[str, Any], bound: int | None, by_money: bool
) -> None:
    where = candidate(context_tokens=fields.pop("context_tokens", None))
    found = funded(left, left, **fields).output_bound(where)
    assert (found.max_tokens, found.by_money) == (bound, by_money)
    assert (found.paid_tokens is None) is ("max_cost_usd" not in fields or bound is None)


@pytest.mark.parametrize(
    ("bound", "cap_is_least", "total"),
    [
        (OutputBound(), False, None),
        (OutputBound(30), False, 30),
        (OutputBound(30, True, 30), False, 30),
        # The engine knows no bound: the answer is cut where its money ends.
        (OutputBound(None, False, 40), True, 40),
        (OutputBound(60, True, 40), True, 40),
        (OutputBound(30, False, 40), False, 30),
    ],
)
def test_where_an_answer_ends(bound: OutputBound, cap_is_least: bool, total: int | None) -> None:
    assert (bound.cap_is_least, bound.total_tokens) == (cap_is_least, total)


@pytest.mark.parametrize(
    ("left", "fields", "why"),
    [
        (402, {}, None),
        (401, {}, OVER_BUDGET),
        (403, {"choices": 2}, OVER_BUDGET),
        (102, {"counted": ("m", 100)}, None),
        (401, {"counted": ("another", 100)}, OVER_BUDGET),
        (399, {"decodes": False}, OVER_BUDGET),
        (400.01, {"decodes": False}, None),
        (401, {"max_cost_usd": 1.0}, OVER_BUDGET),
        (500, {"max_cost_usd": 401 * USD}, OVER_CAP),
        (401, {"max_cost_usd": 401 * USD}, OVER_CAP),
    ],
)
def test_whose_money_does_not_pay_a_candidate(left: float, fields: dict[str, Any], why: str | None) -> None:
    assert funded(left, left, **fields).too_expensive(candidate()) is why


# --- attempts under way -------------------------------------------------------------------------------
def test_attempts_share_one_cap() -> None:
    money = RequestMoney(request(max_cost_usd=1000 * USD, max_tokens=100))
    first = money.output_bound(candidate())
    assert (first.paid_tokens, first.max_tokens) == (300, 100)
    assert money.begin(1, candidate(), first)
    beside = money.output_bound(candidate("b"))
    assert beside.left_usd == pytest.approx(400 * USD)
    assert beside.paid_tokens == 0
    longer = RequestMoney(request(max_cost_usd=1000 * USD, max_tokens=500))
    longer.begin(1, candidate(), longer.output_bound(candidate()))  # its cap pays for 300 tokens of 500
    assert longer.output_bound(candidate("b")).left_usd == pytest.approx(0.0, abs=USD)
    money.end(1, candidate(), PRICE.cost_usd(90, 10), 90, 10)  # what it did cost counts from here on
    assert money.output_bound(candidate("b")).left_usd == pytest.approx((1000 - 90 - 20) * USD)
    assert (money.spent_usd, money.overrun_usd) == (pytest.approx(110 * USD), 0.0)


def test_an_attempt_starts_with_its_prompt_and_a_token_of_each_choice() -> None:
    bound = OutputBound(max_tokens=50)
    assert funded(402).begin(1, candidate(), bound)
    assert not funded(401).begin(1, candidate(), bound)
    assert funded(404, choices=2).begin(1, candidate(), bound)
    assert not funded(403, choices=2).begin(1, candidate(), bound)
    assert funded(400, decodes=False).begin(1, candidate(), bound)
    # An answer in one piece cannot be ended half-way: all of it is reserved first.
    assert not funded(499, engine_streams=False).begin(1, candidate(), bound)
    assert funded(500, engine_streams=False).begin(1, candidate(), bound)
    assert not funded(499, engine_streams=False).begin(1, candidate(context_tokens=50), OutputBound())
    assert funded(500, engine_streams=False).begin(1, candidate(context_tokens=50), OutputBound())


def test_an_attempt_waits_until_its_cost_is_reserved() -> None:
    money = funded(410, 1000)
    assert money.begin(1, candidate(), OutputBound())
    assert not money.metered(1, 420 * USD)
    assert money.request_more() == pytest.approx(100 * USD)
    assert money.request_more() is None
    money.granted(5 * USD, 590 * USD)
    assert money.wait_of(1) is Wait.CONTINUES
    assert money.request_more() == pytest.approx(200 * USD)
    money.granted(200 * USD, 585 * USD)
    assert money.wait_of(1) is Wait.OVER
    assert money.allowance(1).covered_usd == pytest.approx(615 * USD, rel=1e-3)


def test_an_attempt_that_waits_in_vain_gets_nothing() -> None:
    money = funded(410, 410)
    money.begin(1, candidate(), OutputBound())
    money.metered(1, 420 * USD)
    money.request_more()
    money.granted(0.0, 0.0)
    assert money.wait_of(1) is Wait.REFUSED
    assert money.request_more() is None  # it ends: nobody waits any more
    last = money.allowance(1, final=True)
    assert last.final
    assert last.covered_usd == pytest.approx(410 * USD, rel=1e-3)


def test_a_refusal_of_less_is_no_refusal_of_what_is_needed_now() -> None:
    """The budgets were asked before the attempt had to wait, so they are asked once more."""
    money = funded(410, 1000)
    money.begin(1, candidate(), OutputBound())
    assert money.metered(1, 405 * USD)
    assert money.request_more() is not None  # ahead of the need
    assert not money.metered(1, 700 * USD)
    assert money.request_more() is None  # while their answer is pending
    money.granted(0.0, 590 * USD)
    assert money.wait_of(1) is Wait.CONTINUES
    assert money.request_more() == pytest.approx(290 * USD)
    money.granted(0.0, 0.0)
    assert money.wait_of(1) is Wait.REFUSED


def test_two_attempts_share_one_reservation() -> None:
    money = funded(900, 2000)
    assert money.begin(1, candidate(), OutputBound())
    assert money.output_bound(candidate("b")).max_tokens == (2000 - 400 - 400) / 2 - 1
    assert money.begin(2, candidate("b"), OutputBound())
    for number in (1, 2):
        allowance = money.allowance(number)
        assert allowance.covered_usd == pytest.approx((900 - 402) * USD, rel=1e-3)
    assert not money.metered(1, 600 * USD)
    money.request_more()
    # It failed, and costs nothing: what it held pays the other one.
    money.end(2, candidate("b"), 0.0, None, 0)
    money.granted(0.0, 0.0)
    assert money.wait_of(1) is Wait.OVER
    allowance = money.allowance(1)
    assert allowance.covered_usd == pytest.approx(900 * USD, rel=1e-3)


def test_without_budgets_nothing_is_reserved() -> None:
    money = RequestMoney(request())
    assert money.begin(1, candidate(), OutputBound())
    assert money.metered(1, 1e9)
    assert (money.request_more(), money.allowance(1), money.wait_of(1)) == (None, None, Wait.OVER)
    money.end(1, candidate(), 5.0, None, 10)
    assert (money.reserved_usd, money.spent_usd, money.overrun_usd) == (0.0, 5.0, None)


@pytest.mark.parametrize(
    ("cap", "left", "spent", "overrun"),
    [
        (500, None, 400, 0),
        (500, None, 510, 10),
        (None, 500, 400, None),  # within the budgets, nothing is said
        (None, 500, 510, 10),
        (500, 450, 510, 60),
        (500, 600, 510, 10),
        (0.3, None, 0.1 + 0.2, 0),  # 0.30000000000000004
    ],
)
def test_what_was_spent_beyond_its_bounds(
    cap: float | None, left: float | None, spent: float, overrun: float | None
) -> None:
    wanted = request(max_cost_usd=None if cap is None else cap * USD)
    funding = None if left is None else Funding(left * USD, left * USD, 0.0, 1.0)
    money = RequestMoney(wanted, funding)
    money.end(1, candidate(), spent * USD, None, 1)
    assert money.overrun_usd == (None if overrun is None else pytest.approx(overrun * USD))


_USD_PER_MTOK = st.integers(0, 3000).map(lambda cents: cents / 100)


@given(_USD_PER_MTOK, _USD_PER_MTOK, st.integers(1, 10**6), st.integers(0, 10**5))
def test_a_cap_that_is_exactly_the_price_pays(
    input_usd: float, output_usd: float, prompt: int, output: int
) -> None:
    price = Price(input_usd, output_usd)
    hundredths = round(input_usd * 100) * prompt + round(output_usd * 100) * output
    cap_usd = hundredths / 10**8
    affordable = price.affordable_output_tokens(prompt, cap_usd)
    assert affordable == (output if output_usd else None)
    if input_usd:
        less = price.affordable_output_tokens(prompt + 1, cap_usd)
        assert less is not None
        assert less < output or less < 0
