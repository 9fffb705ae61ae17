"""Where an answer ends because its money ends, token by token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.money.account import OutputBound
from router.core.money.meter import TokenMeter, Verdict
from router.core.money.reservation import Allowance
from router.core.types import Candidate, Price
from tests.unit.core.worlds import request

PRICE = Price(1.0, 5.0)
PROMPT = 400  # the upper bound of the prompt's tokens
CANDIDATE = Candidate("i", "m", "m", PRICE)


def capped(paid: int, bound: int | None = None, *, left_usd: float = 1.0, **fields: Any) -> TokenMeter:
    """The meter of a request whose cap pays for `paid` tokens; the engine gets `bound` (by default the same)."""
    wanted = request(max_cost_usd=left_usd, **fields)
    told = OutputBound(paid if bound is None else bound, True, paid, left_usd)
    return TokenMeter(wanted, CANDIDATE, told, None)


def usd(tokens: float) -> float:
    return PRICE.cost_usd(PROMPT, tokens)


def allowed(tokens: float, *, report_at: float | None = None, final: bool = False) -> Allowance:
    """The cost of so many tokens is reserved."""
    covered_usd = usd(tokens) + 1e-12
    return Allowance(covered_usd, covered_usd if report_at is None else usd(report_at), final)


def budgeted(allowance: Allowance, **fields: Any) -> TokenMeter:
    return TokenMeter(request(**fields), CANDIDATE, OutputBound(), allowance)


def verdict(meter: TokenMeter, tokens: int, *, complete: bool = False, finished: bool = False) -> Verdict:
    meter.count(tokens, None)
    return meter.judge(complete=complete, finished=finished)


def one_by_one(meter: TokenMeter, to: int) -> Verdict:
    """The verdict on the last of the tokens up to `to`, of which each comes in an event of its own."""
    for tokens in range(meter.tokens + 1, to):
        assert verdict(meter, tokens) is Verdict.PASS
    return verdict(meter, to)


# --- the request's own cap ----------------------------------------------------------------------------
def test_the_last_token_that_is_paid_for_ends_the_answer() -> None:
    meter = capped(5, 50)  # the engine's bound is larger, so it would go on
    found = [verdict(meter, tokens) for tokens in (3, 4, 5, 6)]
    assert found == [Verdict.PASS, Verdict.PASS, Verdict.PASS_LAST, Verdict.STOP]


def test_an_engine_that_knows_its_bound_ends_by_itself() -> None:
    meter = capped(5)
    assert verdict(meter, 5) is Verdict.PASS
    assert verdict(meter, 6) is Verdict.STOP  # it does not


def test_bounds_are_of_each_choice() -> None:
    assert one_by_one(capped(10, 6, choices=2), 10) is Verdict.PASS_LAST  # it would go on to 12
    assert one_by_one(capped(12, 6, choices=2), 12) is Verdict.PASS
    meter = capped(20, 9, max_tokens=5, choices=2)
    assert one_by_one(meter, 11) is Verdict.STOP
    assert not meter.by_money


def test_a_cap_holds_beside_budgets() -> None:
    meter = TokenMeter(request(), CANDIDATE, OutputBound(50, True, 5, 1.0), allowed(99))
    assert one_by_one(meter, 5) is Verdict.PASS_LAST


def test_the_engines_own_end_is_no_cut() -> None:
    assert verdict(capped(5, 50), 5, finished=True) is Verdict.PASS


def test_a_longer_prompt_takes_from_the_answer_by_price() -> None:
    """15 prompt tokens beyond the bound cost as much as three output tokens. A shorter prompt gives nothing back: the
    engine got its bound before."""
    for prompt_tokens, most in ((PROMPT + 15, 17), (PROMPT, 20), (1, 20)):
        meter = capped(20, left_usd=PRICE.cost_usd(PROMPT, 20))
        meter.count(0, prompt_tokens)
        # The engine stops at the 20 tokens that it was told, not before.
        assert verdict(meter, most) is (Verdict.PASS if most == 20 else Verdict.PASS_LAST)
        assert verdict(meter, most + 1) is Verdict.STOP


@pytest.mark.parametrize(
    ("meter", "by_money"),
    [
        (capped(5), True),
        (capped(5, max_tokens=5), False),
        (capped(9, max_tokens=5), False),
        (capped(5, max_tokens=6), True),
        (capped(10, 5, max_tokens=5, choices=2), False),
        (budgeted(allowed(99), max_tokens=5), False),
    ],
)
def test_whose_bound_ends_an_answer(meter: TokenMeter, by_money: bool) -> None:
    while verdict(meter, meter.tokens + 1) is not Verdict.STOP:
        assert meter.tokens < 12
    assert meter.by_money is by_money


@pytest.mark.parametrize("meter", [capped(50, 5, max_tokens=5), budgeted(allowed(60), max_tokens=5)])
def test_an_estimate_above_the_clients_bound_is_no_end(meter: TokenMeter) -> None:
    meter.count(20, None, 5)
    assert meter.judge(complete=False, finished=False) is Verdict.PASS
    meter.count(24, None, 6)
    assert meter.judge(complete=False, finished=False) is Verdict.STOP
    assert not meter.by_money


def test_an_estimate_above_the_cap_ends_the_answer() -> None:
    meter = capped(20, 5, max_tokens=5)
    meter.count(21, None, 3)
    assert meter.judge(complete=False, finished=False) is Verdict.STOP
    assert meter.by_money


@pytest.mark.parametrize(("certain", "billed"), [(None, 6), (6, 6), (5, 5), (2, 5)])
def test_at_most_one_token_beyond_the_cap_is_billed(certain: int | None, billed: int) -> None:
    """Only if it has surely come."""
    meter = capped(5)
    meter.count(9, None, certain)
    assert meter.judge(complete=False, finished=False) is Verdict.STOP
    assert meter.tokens == billed


# --- what the key's budgets allow ---------------------------------------------------------------------
def test_an_event_waits_for_money_and_passes_when_it_is_there() -> None:
    meter = budgeted(allowed(10))
    assert one_by_one(meter, 9) is Verdict.PASS  # the next one is covered, too
    assert meter.report_usd is None
    assert verdict(meter, 10) is Verdict.WAIT
    assert meter.report_usd == pytest.approx(usd(11))
    meter.allow(allowed(11))
    assert meter.judge(complete=False, finished=False) is Verdict.PASS


def test_the_next_event_is_taken_for_as_large_as_the_largest() -> None:
    meter = budgeted(allowed(10))
    assert verdict(meter, 4) is Verdict.PASS
    assert verdict(meter, 7) is Verdict.WAIT
    assert meter.report_usd == pytest.approx(usd(11))
    # With the end of the answer nothing more is to come.
    assert meter.judge(complete=True, finished=True) is Verdict.PASS


def test_a_cost_is_reported_ahead_of_the_need_once_for_each_allowance() -> None:
    meter = budgeted(allowed(100, report_at=10))
    reports = []
    for tokens in range(8, 12):
        one_by_one(meter, tokens)
        reports.append(meter.report_usd)
        meter.report_usd = None
    assert reports == [None, None, pytest.approx(usd(11)), None]
    meter.allow(allowed(200, report_at=12))
    one_by_one(meter, 12)
    assert meter.report_usd == pytest.approx(usd(13))


def test_the_last_allowance_ends_the_answer() -> None:
    meter = budgeted(allowed(10, final=True))
    assert one_by_one(meter, 10) is Verdict.PASS_LAST
    assert meter.by_money
    assert meter.judge_total(PROMPT, 40) is Verdict.PASS  # it has ended there already
    assert verdict(budgeted(allowed(10, final=True)), 11) is Verdict.STOP
    assert meter.report_usd is None


def test_the_prompt_as_the_engine_counts_it_is_what_costs() -> None:
    meter = budgeted(allowed(10))
    meter.count(5, PROMPT + 25)  # as much as five tokens
    assert meter.judge(complete=True, finished=False) is Verdict.PASS
    meter.count(6, None)
    assert meter.judge(complete=True, finished=False) is Verdict.WAIT


def test_a_total_beyond_what_was_seen_is_covered_too() -> None:
    meter = budgeted(allowed(10))
    verdict(meter, 1)
    assert meter.judge_total(PROMPT, 10) is Verdict.PASS
    assert meter.judge_total(PROMPT, 40) is Verdict.WAIT
    assert meter.report_usd == pytest.approx(usd(40))
    assert (
        budgeted(allowed(10)).judge_total(None, None) is Verdict.PASS
    )  # it counted nothing, and nothing was seen
    assert budgeted(allowed(10)).judge_total(PROMPT + 51, None) is Verdict.WAIT
    assert capped(5).judge_total(PROMPT, 40) is Verdict.PASS  # no budget bounds it: it is said at the end


@given(
    sizes=st.lists(st.integers(0, 5), max_size=40),
    reserved=st.integers(1, 20),
    steps=st.lists(st.integers(1, 30), max_size=10),
)
def test_what_passes_is_covered_and_the_end_comes_before_the_money(
    sizes: list[int], reserved: int, steps: list[int]
) -> None:
    """Whatever an engine sends: no event passes beyond what is reserved, and a request that gets more whenever it asks is
    never cut."""
    meter, tokens, passed, covered = budgeted(allowed(reserved)), 0, 0, reserved
    more = iter(steps)
    for size in sizes:
        tokens += size
        found = verdict(meter, tokens)
        while found is Verdict.WAIT:
            assert meter.report_usd > usd(covered)
            step = next(more, 0)
            covered += step
            meter.allow(allowed(covered, final=not step))
            found = meter.judge(complete=False, finished=False)
        if found is Verdict.STOP:
            break
        passed = tokens
        assert passed <= covered
        if found is Verdict.PASS_LAST:
            break
    else:
        return
    assert next(more, None) is None  # every step was taken before the answer was cut
    assert meter.by_money


BOUNDS = st.none() | st.integers(1, 25)


@given(
    made=st.lists(st.sampled_from([-1, 0, 0, 1, 1, 2, 4]), min_size=1, max_size=8),
    exact=st.booleans(),
    before=st.integers(0, 12),
    prompt=st.sampled_from([None, PROMPT, PROMPT + 10]),
    bounds=st.tuples(BOUNDS, BOUNDS, BOUNDS, BOUNDS, st.integers(0, 25)),
)
def test_events_that_pass_together_are_those_that_pass_one_by_one(
    made: list[int], exact: bool, before: int, prompt: int | None, bounds: tuple[Any, ...]
) -> None:
    paid, bound, wanted, covered, report_at = bounds
    if not exact:
        made = [max(1, each) for each in made]

    def begun() -> TokenMeter:
        told = OutputBound(bound, True, paid, None if paid is None else usd(paid))
        allowance = None if covered is None else allowed(covered, report_at=min(report_at, covered))
        meter = TokenMeter(request(max_tokens=wanted), CANDIDATE, told, allowance)
        for tokens in range(before):
            meter.count(tokens + 1, prompt, tokens // 2)
            meter.judge(complete=False, finished=False)
        meter.report_usd = None
        return meter

    def state(meter: TokenMeter) -> tuple[int, int, int]:
        return meter.tokens, meter._certain_tokens, meter._widest

    one_by_one, together = begun(), begun()
    states = [state(together)]
    for each in made:
        tokens = one_by_one.tokens + each
        one_by_one.count(tokens, None, tokens if exact else one_by_one._certain_tokens + 1)
        passes = one_by_one.judge(complete=False, finished=False) is Verdict.PASS
        if each < 0 or not passes or one_by_one.report_usd is not None:
            break
        states.append(state(one_by_one))
    assert together.passing(made, exact=exact) == len(states) - 1
    assert state(together) == states[-1]
