"""Second attempts beside a late first one: when, where, and what they may cost."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.deciding import Decided
from router.core.events import Arrived, Cancel, Dispatch, Ended, FailureKind, FirstToken, Tick
from router.core.hedging import again_at, gain, hedge_at, pays
from router.core.interfaces import Choice, Option
from router.core.money.account import OutputBound
from router.core.request_state import AttemptState
from router.core.scheduler import Scheduler
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, Prediction, Price, Request, Slo
from tests.unit.core.worlds import (
    CHEAP,
    Fixed,
    dispatched,
    failed,
    finished,
    instance,
    refused,
    request,
    scheduler,
)

SLO = Slo(ttft_s=2.0)


class Hopeful(Fixed):
    """Expects the first token by 0.5 s in 95 of 100 cases; a miss with a probability by instance."""

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        return Prediction(
            output_tokens_p50=100.0,
            ttft_s_p50=0.1,
            ttft_s_p95=0.5,
            p_miss=self.p_miss.get(instance.name, 0.04),
            cost_usd=candidate.price.cost_usd(100, 100),
        )


def hedging(*instances: Instance, share: float = 0.5, **settings: Any) -> Scheduler:
    return scheduler(*instances, predictor=Hopeful(), hedge_share=share, **settings)


def started(s: Scheduler, *, others: int = 1, **fields: Any) -> Dispatch:
    """The first attempt of r1; `others` arrived before it, so that there is a share to be used."""
    for n in range(others):
        s.handle(Arrived(request(f"o{n}")), 0.0)
        s.handle(FirstToken(f"o{n}", 1), 0.0)
    values: dict[str, Any] = {"slo": SLO} | fields
    (first,) = s.handle(Arrived(request("r1", **values)), 0.0)
    assert isinstance(first, Dispatch)
    return first


def late(s: Scheduler, now: float = 0.5) -> list[Any]:
    return s.handle(Tick(), now)


def test_a_second_attempt_at_the_predicted_95th_percentile_and_not_before():
    s = hedging(instance("a"), instance("b"))
    started(s)
    assert s.wake_at == pytest.approx(0.5)
    assert late(s, 0.49) == []
    (second,) = late(s)
    assert (second.hedge, second.attempt, second.candidate.instance) == (True, 2, "b")
    assert late(s, 0.6) == []  # one is enough


@pytest.mark.parametrize(("winner", "loser"), [(1, 2), (2, 1)])
def test_the_first_token_decides_and_the_loser_is_cancelled(winner: int, loser: int) -> None:
    a, b = instance("a"), instance("b")
    s = hedging(a, b)
    started(s)
    late(s)
    assert s.handle(FirstToken("r1", winner), 0.7) == [Cancel("r1", loser)]
    assert s.handle(FirstToken("r1", loser), 0.7) == []
    heard: list[str] = []
    s.policies["first"].ended = lambda request, candidate, *_: heard.append(candidate.instance)  # type: ignore[method-assign]
    settlement = finished(s.handle(Ended("r1", winner, EndedHow.OK, 10), 1.0))
    assert heard == ["ab"[winner - 1]]
    assert (settlement.hedged, settlement.answer.number) == (True, winner)
    hows = {each.number: each.ended_how for each in settlement.attempts}
    assert hows == {winner: EndedHow.OK, loser: EndedHow.HEDGE_LOST}
    for each in (a, b):
        assert each.awaiting_first_token == 0
    assert a.in_flight + b.in_flight == 1  # the other request


def test_if_one_fails_the_other_goes_on_and_if_both_fail_it_is_tried_again():
    s = hedging(instance("a"), instance("b"), instance("c"))
    started(s)
    late(s)
    assert s.handle(failed("r1", 1), 0.6) == []
    third = dispatched(s.handle(failed("r1", 2), 0.7))
    assert (third.candidate.instance, third.attempt, third.hedge) == ("c", 3, False)


def test_where_it_pays():
    dear = Price(50.0, 100.0)
    s = hedging(instance("a", price=CHEAP), instance("b", price=dear))
    started(s)
    assert late(s) == []
    s = hedging(instance("a", price=CHEAP), instance("b", price=dear), instance("c", price=CHEAP))
    started(s)
    assert dispatched(late(s)).candidate.instance == "c"


def test_not_where_no_attempt_is_left():
    s = hedging(instance("a"), instance("b"), max_attempts=1)
    started(s)
    assert late(s) == []


def test_what_an_engine_refuses_is_hedged_no_more():
    s = hedging(*map(instance, "abc"), share=1.0)
    started(s, others=2)
    late(s)
    assert s.handle(failed("r1", 2, FailureKind.REJECTED), 0.6) == []
    assert late(s, 1.0) == []


def test_a_time_limit_ends_both():
    s = hedging(instance("a"), instance("b"))
    started(s, hard=True)
    late(s)
    assert refused(s.handle(Tick(), 2.0)).code == "ttft_timeout"
    assert sum(each.in_flight for each in s.instances.values()) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"slo": None},
        {"slo": Slo(tpot_s=0.1)},  # a late first token breaks no target
        {"hedges": False},
        {"decodes": False},
    ],
)
def test_not_where_it_cannot_help(fields: dict[str, Any]) -> None:
    s = hedging(instance("a"), instance("b"))
    started(s, **fields)
    assert late(s) == []


def test_never_more_than_its_share():
    s = hedging(instance("a"), instance("b"), share=0.03)
    hedges = 0
    for n in range(200):
        now = float(n)
        s.handle(Arrived(request(f"r{n}", at=now, slo=SLO)), now)
        hedges += len(late(s, now + 0.5))
        s.handle(FirstToken(f"r{n}", 1), now + 0.6)
        s.handle(Ended(f"r{n}", 1, EndedHow.OK, 10), now + 0.7)
    assert hedges == 6


def test_not_on_the_same_instance_nor_a_full_one():
    s = hedging(instance("a"))
    started(s)
    assert late(s) == []
    s = hedging(instance("a"), instance("b", slots=1))
    s.handle(Arrived(request("o", models=("m",))), 0.0)
    s.handle(Arrived(request("x", slo=SLO)), 0.0)
    s.instances["b"].in_flight = 1
    assert late(s) == []


def test_both_are_reserved_against_the_money_cap():
    price = Price(1.0, 2.0)  # a prompt of at most 400 tokens: 0.0004 USD, an output token 0.000002 USD
    worst_usd = price.cost_usd(400, 50)
    for cap_usd, hedged in ((2 * worst_usd, True), (worst_usd + price.cost_usd(400, 0), False)):
        s = hedging(instance("a", price=CHEAP), instance("b", price=CHEAP))
        first = started(s, max_tokens=50, max_cost_usd=cap_usd)
        assert first.bound.max_tokens == 50
        out = late(s)
        assert bool(out) is hedged
        if hedged:
            assert out[0].bound.paid_tokens == 50
    # Without a bound by the client the first attempt may spend all of it: nothing is left for a second.
    s = hedging(instance("a", price=CHEAP), instance("b", price=CHEAP))
    started(s, max_cost_usd=1.0)
    assert late(s) == []


def test_what_the_loser_cost_is_gone():
    price = Price(1.0, 2.0)
    s = hedging(instance("a", price=CHEAP), instance("b", price=CHEAP), instance("c", price=CHEAP))
    cap_usd = 2.5 * price.cost_usd(400, 50)
    started(s, max_tokens=500, max_cost_usd=cap_usd)
    assert late(s) == []  # the first may spend it all
    s = hedging(instance("a", price=CHEAP), instance("b", price=CHEAP), instance("c", price=CHEAP))
    started(s, max_tokens=50, max_cost_usd=cap_usd, client_streams=False)
    late(s)
    s.handle(FirstToken("r1", 2), 0.6)
    again = dispatched(s.handle(failed("r1", 2, output_tokens=20), 0.7))
    left_usd = cap_usd - price.cost_usd(400, 0) - price.cost_usd(400, 20)
    assert again.bound.paid_tokens == price.affordable_output_tokens(400, left_usd)
    assert again.bound.paid_tokens < 50


def test_when_a_token_is_late():
    told = Prediction(ttft_s_p95=0.5)
    assert hedge_at(request(at=3.0, slo=SLO), told) == pytest.approx(3.5)
    assert hedge_at(request(slo=Slo(e2e_s=9.0)), told) == pytest.approx(0.5)
    assert hedge_at(request(), told) is None
    assert hedge_at(request(slo=SLO), Prediction()) is None


def attempt(p_miss: float, price: Price) -> AttemptState:
    candidate = Candidate("a", "m", "m", price)
    prediction = Prediction(ttft_s_p50=0.2, ttft_s_p95=0.5, p_miss=p_miss, cost_usd=price.cost_usd(100, 100))
    decided = Decided("first", 0.0, (), Choice(0, (), ()), (), ())
    bound = OutputBound()
    return AttemptState(request(), candidate, instance("a"), prediction, 1, decided, bound, False, 0.0, 100)


def option(p_miss: float, price: Price) -> Option:
    candidate = Candidate("b", "m", "m", price)
    return Option(candidate, instance("b"), Prediction(p_miss=p_miss, cost_usd=price.cost_usd(100, 100)))


def test_the_gain_is_the_chance_that_the_other_one_saves_it():
    asked, sure = request(slo=SLO), Prediction(p_miss=0.0)
    assert gain(asked, attempt(0.02, CHEAP), Prediction(p_miss=0.25), 0.5) == pytest.approx(
        0.4 * 0.75, rel=1e-6
    )
    assert gain(asked, attempt(0.5, CHEAP), sure, 0.5) == 1.0
    later = request(at=3.0, slo=SLO)
    assert gain(later, attempt(0.02, CHEAP), sure, 3.5) == gain(asked, attempt(0.02, CHEAP), sure, 0.5)
    assert gain(asked, attempt(0.5, CHEAP), Prediction(), 0.5) == 0.0
    # The longer nothing comes, the surer the miss: at the target it is certain, whatever was predicted.
    gains = [gain(asked, attempt(0.0, CHEAP), sure, now) for now in (0.5, 1.0, 1.5, 1.9, 2.0)]
    assert gains == sorted(gains)
    assert gains[0] < 0.01
    assert gains[-1] == pytest.approx(1.0)


def test_what_does_not_pay_yet_is_thought_over_again_until_it_is_too_late():
    asked = request(at=1.0, slo=SLO)
    assert again_at(asked, 2.0) == pytest.approx(2.25)
    assert again_at(asked, 2.7) is None
    assert again_at(asked, 1.0) is None  # it would be at once, again and again
    assert again_at(request(at=1.0, slo=Slo(ttft_s=2.0, e2e_s=9.0)), 2.7) == pytest.approx(3.125)
    assert again_at(request(at=1.0), 2.0) is None


def test_an_engine_that_hangs_is_hedged_before_the_target_however_sure_it_looked():
    s = hedging(instance("a"), instance("b"))
    s.predictor.p_miss = {"a": 1e-6, "b": 1e-6}  # type: ignore[attr-defined]
    started(s)
    out: list[Any] = []
    while not out:
        at = s.wake_at
        assert at < 2.0
        out = late(s, at)
    assert out[0].hedge


def test_it_pays_by_what_it_is_worth():
    asked = request(slo=SLO)
    assert pays(asked, attempt(0.04, CHEAP), option(0.0, CHEAP), 1.0, 0.5)
    assert not pays(asked, attempt(0.04, CHEAP), option(0.9, CHEAP), 3.0, 0.5)  # little gained
    assert not pays(asked, attempt(0.04, CHEAP), option(0.0, Price(50.0, 100.0)), 3.0, 0.5)  # too dear
    assert pays(asked, attempt(0.04, Price()), option(0.0, Price()), 3.0, 0.5)  # costs nothing


@pytest.mark.parametrize(("worth", "does"), [(1.49, False), (1.51, True)])
def test_it_pays_if_the_gain_is_worth_more_than_the_expected_extra_price(worth: float, does: bool) -> None:
    # The gain is 0.8. In millionths: the first attempt costs 300, of which 100 are its prompt; the second one costs 600,
    # of which 200 are its prompt. So 0.8 * 300 * worth is set against 0.8 * (600 + 100 - 300) + 0.2 * 200.
    first, second = attempt(0.5, Price(1.0, 2.0)), option(0.2, Price(2.0, 4.0))
    assert pays(request(slo=SLO), first, second, worth, 0.5) is does
