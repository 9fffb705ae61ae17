"""Money in the life of a request: who may answer, when an attempt starts, how far an answer may go, what is settled."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.events import (
    Allow,
    Arrived,
    Cancel,
    Dispatch,
    Ended,
    Finish,
    FirstToken,
    GivenUp,
    Granted,
    Left,
    Metered,
    Reserve,
    Tick,
)
from router.core.money.reservation import Funding
from router.core.scheduler import Scheduler
from router.core.state import Instance
from router.core.types import EndedHow, Outcome, Price, Slo
from tests.unit.core.test_hedging import Hopeful
from tests.unit.core.worlds import Fixed, dispatched, failed, finished, instance, request, scheduler

PRICE = Price(1.0, 2.0)  # the prompt's bound is 400 tokens
USD = 1e-6


def funding(reserved: float, left: float | None = None, *, step: float = 100.0) -> Funding:
    """So many millionths of a USD are reserved, and `left` may be had in all."""
    return Funding(reserved * USD, None if left is None else left * USD, step * USD, 1.0)


def priced(name: str, price: Price = PRICE, slots: int | None = None) -> Instance:
    return instance(name, price=price, slots=slots)


def granted(reserved: float, left: float | None = None, id: str = "r1") -> Granted:
    return Granted(id, reserved * USD, None if left is None else left * USD)


def arrive(s: Scheduler, of: Funding, id: str = "r1", *, at: float = 0.0, **fields: Any) -> list[Any]:
    return s.handle(Arrived(request(id, at=at, **fields), of), at)


def kinds(instructions: list[Any]) -> list[type]:
    return [type(each) for each in instructions]


# --- who may answer -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("left", "fields", "code", "status"),
    [
        (401, {}, "insufficient_quota", 429),
        (401, {"max_cost_usd": 1.0}, "insufficient_quota", 429),
        (500, {"max_cost_usd": 401 * USD}, "budget_unattainable", 400),
    ],
)
def test_whose_money_does_not_suffice(left: float, fields: dict[str, Any], code: str, status: int) -> None:
    s = scheduler(priced("a"))
    settlement = finished(arrive(s, funding(left, left), **fields))
    assert settlement.outcome is Outcome.REJECTED_BUDGET
    refusal = settlement.refusal
    assert (refusal.code, refusal.status, refusal.should_retry) == (code, status, status == 400)
    # What was reserved at the start is to be released.
    assert (settlement.reserved_usd, settlement.cost_usd, settlement.used_tokens) == (left * USD, 0.0, 0)


def test_the_affordable_takes_it_and_a_failure_leaves_less() -> None:
    s = scheduler(priced("a", Price(2.0, 2.0)), priced("b"), priced("c"))
    options: dict[str, Any] = {"client_streams": False}
    assert dispatched(arrive(s, funding(900, 900), **options)).candidate.instance == "a"
    second = dispatched(s.handle(failed(), 1.0))
    assert (second.candidate.instance, second.bound.max_tokens) == ("b", 249)
    third = dispatched(s.handle(failed(attempt=2, output_tokens=10), 2.0))
    assert (third.candidate.instance, third.bound.max_tokens) == ("c", 39)
    assert dispatched(arrive(s, funding(700, 700), "r2", at=3.0)).candidate.instance == "b"


# --- an attempt that waits for money ------------------------------------------------------------------
def unfunded(s: Scheduler, **fields: Any) -> None:
    """r1 has its slot; of the money for its prompt and one token a millionth is missing."""
    out = arrive(s, funding(401, 1000), **fields)
    assert out == [Reserve("r1", pytest.approx(100 * USD))]


def test_an_attempt_starts_when_its_money_is_there() -> None:
    a = priced("a")
    s = scheduler(a)
    unfunded(s)
    assert (a.in_flight, s.queue_depth, s.live) == (1, 0, 1)  # its slot is its own
    sent = dispatched(s.handle(granted(100, 599), 0.5))
    assert sent.allowance.covered_usd == pytest.approx(501 * USD, rel=1e-3)
    settlement = finished(s.handle(Ended("r1", 1, EndedHow.OK, 10, 100), 1.0))
    assert settlement.cost_usd == pytest.approx(PRICE.cost_usd(100, 10))
    assert settlement.reserved_usd == pytest.approx(501 * USD)
    assert settlement.used_tokens == 110


def test_a_wait_for_money_is_no_time_of_the_engine() -> None:
    predictor = Fixed()
    s = scheduler(priced("a"), predictor=predictor)
    unfunded(s)
    s.handle(granted(100, 599), 5.0)
    s.handle(FirstToken("r1", 1), 5.1)
    settlement = finished(s.handle(Ended("r1", 1, EndedHow.OK, 10, 100), 6.0))
    s.catch_up()
    assert predictor.ttfts == pytest.approx([0.1])
    assert [each[0] for each in predictor.observed] == ["dispatch", "ttft", "end"]
    assert predictor.observed[0][3] == 5.0
    assert (settlement.queue_wait_s, settlement.ttft_s) == (5.0, 5.1)


@pytest.mark.parametrize("event", [granted(0, 0), Left("r1")])
def test_an_attempt_that_was_never_paid_shows_nothing_of_its_engine(event: Any) -> None:
    predictor = Fixed()
    s = scheduler(priced("a"), predictor=predictor)
    unfunded(s)
    assert finished(s.handle(event, 5.0))
    s.catch_up()
    assert predictor.observed == []


def test_an_attempt_that_gets_a_part_asks_again_until_nothing_comes() -> None:
    a = priced("a")
    s = scheduler(a)
    unfunded(s)
    assert kinds(s.handle(granted(0.5, 0.5), 0.1)) == [Reserve]
    settlement = finished(s.handle(granted(0, 0), 0.2))
    assert (settlement.refusal.code, settlement.outcome) == ("insufficient_quota", Outcome.REJECTED_BUDGET)
    (attempt,) = settlement.attempts
    assert (attempt.ended_how, attempt.cost_usd, attempt.billed) == (EndedHow.CANCELLED, 0.0, False)
    assert settlement.reserved_usd == pytest.approx(401.5 * USD)
    assert (a.in_flight, a.pending_prefill_tokens, s.live) == (0, 0, 0)


def test_budgets_that_give_nothing_free_the_slot_for_the_next() -> None:
    s = scheduler(priced("a", slots=1))
    unfunded(s)
    assert s.handle(Arrived(request("next", at=0.1)), 0.1) == []
    out = s.handle(granted(0, 401), 0.2)
    assert kinds(out) == [Finish, Dispatch]
    assert out[1].request_id == "next"


@pytest.mark.parametrize(
    ("event", "at", "outcome"),
    [
        (Left("r1"), 1.0, Outcome.CLIENT_CANCELLED),
        (GivenUp("r1", "shutdown"), 1.0, Outcome.BACKEND_ERROR),
        (Tick(), 600.0, Outcome.EXPIRED_BEFORE_FIRST_TOKEN),
    ],
)
def test_a_request_that_waits_for_money_may_end(event: Any, at: float, outcome: Outcome) -> None:
    """Its attempt never started, so there is nothing to cancel, and its slot goes to the next at once."""
    s = scheduler(priced("a", slots=1))
    unfunded(s)
    assert s.handle(Arrived(request("next", at=0.1, expires_at=1000.0)), 0.1) == []
    out = s.handle(event, at)
    assert kinds(out) == [Finish, Dispatch]
    settlement = finished(out)
    assert (settlement.outcome, settlement.cost_usd) == (outcome, 0.0)
    assert (settlement.attempts[0].ended_how, settlement.attempts[0].billed) == (EndedHow.CANCELLED, False)
    assert s.handle(granted(100, 599), at) == []  # it comes too late


# --- an answer that grows -----------------------------------------------------------------------------
def test_more_is_reserved_ahead_while_an_answer_goes_on() -> None:
    s = scheduler(priced("a"))
    sent = dispatched(arrive(s, funding(500, 1000)))
    assert sent.allowance.report_at_usd == pytest.approx(475 * USD, rel=1e-3)
    out = s.handle(Metered("r1", 1, 480 * USD), 1.0)
    assert out[0] == Reserve("r1", pytest.approx(100 * USD))
    assert kinds(out) == [Reserve, Allow]
    assert out[1].allowance.covered_usd == pytest.approx(500 * USD, rel=1e-3)
    (allow,) = s.handle(granted(100, 500), 1.5)
    assert allow.allowance.covered_usd == pytest.approx(600 * USD, rel=1e-3)


def test_an_answer_for_which_nothing_comes_gets_its_last_allowance() -> None:
    s = scheduler(priced("a"))
    arrive(s, funding(500, 500))
    s.handle(FirstToken("r1", 1), 0.5)
    assert kinds(s.handle(Metered("r1", 1, 510 * USD), 1.0)) == [Reserve]  # it waits
    (allow,) = s.handle(granted(0, 0), 1.5)
    assert (allow.attempt, allow.allowance.final) == (1, True)
    assert allow.allowance.covered_usd == pytest.approx(500 * USD, rel=1e-3)
    settlement = finished(s.handle(Ended("r1", 1, EndedHow.OK, 50, 100, out_of_money=True), 2.0))
    assert (settlement.outcome, settlement.refusal) == (Outcome.BUDGET_EXHAUSTED_MID_DECODE, None)


@pytest.mark.parametrize(
    ("fields", "truncated", "tokens", "outcome"),
    [
        ({}, True, 10, Outcome.BUDGET_EXHAUSTED_MID_DECODE),
        ({}, True, 9, Outcome.OK),  # another bound than that of its money ended it
        ({}, False, 10, Outcome.OK),
        ({"max_tokens": 10}, True, 10, Outcome.OK),  # its client wanted no more
    ],
)
def test_whose_bound_ended_an_answer(
    fields: dict[str, Any], truncated: bool, tokens: int, outcome: Outcome
) -> None:
    s = scheduler(priced("a"))
    sent = dispatched(arrive(s, funding(422, 422), **fields))
    assert sent.bound.max_tokens == 10
    ended = Ended("r1", 1, EndedHow.OK, tokens, 100, truncated=truncated)
    assert finished(s.handle(ended, 1.0)).outcome is outcome


@pytest.mark.parametrize(
    ("context", "tokens", "cut", "bound"),
    [
        (None, 50, {}, 299),
        (None, 50, {"truncated": True}, 299),  # by a bound of the engine, which will cut others too
        (None, 50, {"truncated": True, "out_of_money": True}, 50),
        (400, 300, {"truncated": True}, 300),
        (400, 290, {"truncated": True}, 299),
        (400, 300, {}, 299),
    ],
)
def test_an_answer_that_was_cut_shows_only_that_it_would_have_been_longer(
    context: int | None, tokens: int, cut: dict[str, bool], bound: int
) -> None:
    predictor = Fixed()
    s = scheduler(instance("a", price=PRICE, context_tokens=context), predictor=predictor)
    sent = dispatched(arrive(s, funding(600, 1000), max_tokens=500))
    assert sent.bound.max_tokens == 299
    s.handle(Ended("r1", 1, EndedHow.OK, tokens, 100, **cut), 2.0)
    s.catch_up()
    assert predictor.bounds == [bound]


# --- two attempts -------------------------------------------------------------------------------------
def hedging(*instances: Instance, **settings: Any) -> Scheduler:
    """r1 is under way at a, beside another request, and its hedge is due at 0.5 s."""
    s = scheduler(*instances, predictor=Hopeful(), hedge_share=1.0, **settings)
    arrive(s, funding(450, 2000), slo=Slo(ttft_s=2.0))
    return s


def test_a_hedge_waits_for_its_money_and_starts_with_it() -> None:
    s = hedging(priced("a"), priced("b"))
    assert s.handle(Tick(), 0.5) == [Reserve("r1", pytest.approx((2 * 402 - 450) * USD))]
    out = s.handle(granted(400, 1550), 0.6)
    sent = dispatched(out)
    assert (sent.attempt, sent.hedge, sent.candidate.instance) == (2, True, "b")
    for allowance in (sent.allowance, *(each.allowance for each in out if isinstance(each, Allow))):
        assert allowance.covered_usd == pytest.approx((850 - 402) * USD, rel=1e-3)


def test_a_hedge_that_the_budgets_do_not_pay_leaves_the_first_attempt() -> None:
    a, b = priced("a"), priced("b")
    s = hedging(a, b)
    s.handle(Tick(), 0.5)
    out = s.handle(granted(0, 1550), 0.6)
    assert not any(isinstance(each, Dispatch | Finish | Cancel) for each in out)
    assert (a.in_flight, b.in_flight) == (1, 0)
    settlement = finished(s.handle(Ended("r1", 1, EndedHow.OK, 10, 100), 1.0))
    assert (settlement.answer.number, settlement.outcome) == (1, Outcome.OK)
    assert [each.ended_how for each in settlement.attempts] == [EndedHow.OK, EndedHow.CANCELLED]


def test_a_first_token_while_the_hedge_waits_for_money_ends_it_and_frees_its_slot() -> None:
    b = priced("b", slots=1)
    s = hedging(priced("a", slots=1), b)
    s.handle(Tick(), 0.5)
    assert s.handle(Arrived(request("next", at=0.5)), 0.5) == []
    sent = dispatched(s.handle(FirstToken("r1", 1), 0.6))
    assert (sent.request_id, sent.candidate.instance, b.in_flight) == ("next", "b", 1)
    assert s.handle(granted(400, 1550), 0.7) != []  # r1 goes on, and may cost more
    settlement = finished(s.handle(Ended("r1", 1, EndedHow.OK, 10, 100), 1.0))
    assert [each.ended_how for each in settlement.attempts] == [EndedHow.OK, EndedHow.HEDGE_LOST]
    assert settlement.cost_usd == pytest.approx(PRICE.cost_usd(100, 10))  # the hedge never started


def test_no_hedge_beside_an_attempt_that_has_not_started() -> None:
    """It is not late: it waits for money, and a second attempt would take some of that."""
    s = scheduler(priced("a"), priced("b"), predictor=Hopeful(), hedge_share=1.0)
    unfunded(s, slo=Slo(ttft_s=2.0))
    assert s.handle(Tick(), 0.5) == []
    assert dispatched(s.handle(granted(100, 599), 0.6)).attempt == 1
    assert s.wake_at < 2.0  # it may be hedged later


def test_what_a_hedge_would_have_cost_pays_the_first_attempt() -> None:
    """Both wait, and the budgets give nothing more. Without the hedge there is enough for the answer to go on."""
    s = hedging(priced("a"), priced("b"))
    s.handle(Tick(), 0.5)
    assert s.handle(Metered("r1", 1, 440 * USD), 0.6) == []
    (allow,) = s.handle(granted(0, 450), 0.7)
    assert (allow.attempt, allow.allowance.final) == (1, False)
    assert allow.allowance.covered_usd == pytest.approx(450 * USD, rel=1e-3)


def test_a_hedge_starts_before_the_first_attempt_goes_on() -> None:
    """The first attempt may give its first token as soon as it goes on. That cancels the hedge, which must be known then."""
    s = hedging(priced("a"), priced("b"))
    s.handle(Tick(), 0.5)
    assert s.handle(Metered("r1", 1, 440 * USD), 0.6) == []
    assert kinds(s.handle(granted(600, 1550), 0.7)) == [Dispatch, Allow]
