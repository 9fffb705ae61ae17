"""An answer that is checked before its client gets it: whatever comes, the client gets the best whole answer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from router.core.events import (
    Arrived,
    Cancel,
    Check,
    Checked,
    Dispatch,
    Ended,
    FirstToken,
    GivenUp,
    Granted,
    Left,
    Tick,
)
from router.core.interfaces import CheckedAnswer, Choice, Option
from router.core.money.reservation import Funding
from router.core.state import Instance
from router.core.types import AnswerCheck, Candidate, EndedHow, Outcome, Prediction, Price, Request, Slo
from tests.unit.core.worlds import (
    CHEAP,
    Curious,
    DrivenScheduler,
    Fixed,
    dispatched,
    failed,
    finished,
    instance,
    request,
    scheduler,
)

CHECK = AnswerCheck(2.0, Price(1.0, 1.0), 300, 100, limit_s=5.0)


class Told(Curious):
    """It hears how requests end."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, bool | None]] = []

    def ended(self, request: Any, candidate: Any, met: bool | None, now: float) -> None:
        self.ends.append((candidate.instance, met))


def answered(
    policy: Curious | None = None, *, tokens: int = 11, **fields: Any
) -> tuple[DrivenScheduler, Dispatch, list[Any]]:
    """A request whose first answer is whole after two seconds: the scheduler, its dispatch, and what came of the end."""
    settings = {"max_attempts": fields.pop("max_attempts", 3)}
    funding = fields.pop("funding", None)
    s = scheduler(
        instance("a", "m", price=CHEAP),
        instance("b", "n", price=CHEAP),
        policy=policy or Curious(),
        **settings,
    )
    wanted = request("r1", models=("m", "n"), **({"check": CHECK, "client_streams": False} | fields))
    first = dispatched(s.handle(Arrived(wanted, funding), 0.0))
    s.handle(FirstToken("r1", 1), 1.0)
    return s, first, s.handle(Ended("r1", 1, EndedHow.OK, tokens, 100), 2.0)


def usd(tokens: int) -> float:
    return CHEAP.cost_usd(100, tokens)


def test_a_check_reads_its_form_and_both_texts_and_writes_a_verdict() -> None:
    check = AnswerCheck(2.0, Price(1.0, 3.0), 300, 100, limit_s=5.0)
    assert check.cost_usd(1000, 200) == pytest.approx((300 + 1000 + 200 + 3 * 100) * 1e-6)


def test_a_good_answer_is_delivered_after_its_check() -> None:
    policy = Told()
    s, first, out = answered(policy, slo=Slo(tpot_s=0.2, e2e_s=60.0))
    assert out == [Check("r1", 1, first.candidate)]
    settlement = finished(s.handle(Checked("r1", 1, 1.0), 4.0))
    assert (settlement.outcome, settlement.refusal, settlement.slo_met) == (Outcome.OK, None, True)
    assert settlement.answer is first.state
    assert settlement.cost_usd == pytest.approx(usd(11))
    # The client waited for the check, but it says nothing of how fast the engine decodes.
    assert (settlement.e2e_s, settlement.ttft_s, settlement.tpot_s) == (4.0, 1.0, pytest.approx(0.1))
    assert policy.ends == [(first.candidate.instance, True)]
    assert s.live == 0


def test_a_poor_answer_is_replaced_and_both_are_paid() -> None:
    policy = Told()
    s, first, _ = answered(policy)
    second = dispatched(s.handle(Checked("r1", 1, 0.0), 3.0))
    assert second.candidate != first.candidate
    s.handle(FirstToken("r1", 2), 4.0)
    settlement = finished(s.handle(Ended("r1", 2, EndedHow.OK, 21, 100), 6.0))  # it is not checked again
    assert settlement.answer is second.state
    assert [each.ended_how for each in settlement.attempts] == [EndedHow.OK, EndedHow.OK]
    assert settlement.cost_usd == pytest.approx(usd(11) + usd(21))
    assert (settlement.ttft_s, settlement.e2e_s, settlement.tpot_s) == (4.0, 6.0, pytest.approx(0.1))
    assert policy.ends == [(second.candidate.instance, None)]


def test_an_answer_that_its_check_delays_is_late() -> None:
    s, first, _ = answered(slo=Slo(e2e_s=7.0))
    settlement = finished(s.handle(Checked("r1", 1, 1.0), 7.5))
    assert (settlement.outcome, settlement.slo_met, settlement.answer) == (Outcome.LATE, False, first.state)


def test_without_a_score_the_answer_is_delivered() -> None:
    s, first, _ = answered()
    assert finished(s.handle(Checked("r1", 1, None), 3.0)).answer is first.state


def test_a_score_counts_once() -> None:
    s, _, _ = answered()
    dispatched(s.handle(Checked("r1", 1, 0.0), 3.0))
    assert s.handle(Checked("r1", 1, 0.0), 3.0) == []
    assert s.handle(Checked("r2", 1, 0.0), 3.0) == []


def test_the_first_answer_is_delivered_where_the_second_one_fails() -> None:
    policy = Told()
    s, first, _ = answered(policy)
    s.handle(Checked("r1", 1, 0.0), 3.0)
    settlement = finished(s.handle(failed("r1", 2), 4.0))  # and nobody else is tried
    assert (settlement.outcome, settlement.answer) == (Outcome.OK, first.state)
    assert policy.ends == [(first.candidate.instance, None)]
    assert settlement.cost_usd == pytest.approx(usd(11))


def test_the_first_answer_is_delivered_where_the_second_one_is_empty() -> None:
    s, first, _ = answered()
    s.handle(Checked("r1", 1, 0.0), 3.0)
    settlement = finished(s.handle(Ended("r1", 2, EndedHow.OK, 0, 100, empty=True), 4.0))
    assert (settlement.outcome, settlement.answer) == (Outcome.OK, first.state)


def test_the_first_answer_is_delivered_where_time_passes() -> None:
    s, first, _ = answered(slo=Slo(ttft_s=2.5, e2e_s=20.0), hard=True)
    s.handle(Checked("r1", 1, 0.0), 3.0)  # its first token was in time, so its TTFT ends nothing any more
    assert s.handle(Tick(), 3.0) == []
    assert s.wake_at == 20.0
    settlement = finished(s.handle(Tick(), 20.0))
    assert (settlement.outcome, settlement.slo_met, settlement.answer) == (Outcome.OK, True, first.state)
    assert [each.ended_how for each in settlement.attempts] == [EndedHow.OK, EndedHow.CANCELLED]


def test_the_first_answer_is_delivered_where_the_second_one_is_cut_by_money() -> None:
    s, first, _ = answered(max_cost_usd=2 * usd(11) + usd(300))
    second = dispatched(s.handle(Checked("r1", 1, 0.0), 3.0))
    assert second.bound.by_money
    s.handle(FirstToken("r1", 2), 4.0)
    ended = Ended("r1", 2, EndedHow.OK, second.bound.max_tokens or 0, 100, truncated=True, out_of_money=True)
    settlement = finished(s.handle(ended, 5.0))
    assert (settlement.outcome, settlement.answer) == (Outcome.OK, first.state)
    assert settlement.cost_usd <= 2 * usd(11) + usd(300)


def test_the_first_answer_is_delivered_where_the_budgets_do_not_pay_the_second_one() -> None:
    s, first, _ = answered(funding=Funding(450e-6, 1.0, 1e-6, 1.0))
    s.handle(Checked("r1", 1, 0.0), 3.0)
    settlement = finished(s.handle(Granted("r1", 0.0, 0.0), 3.0))
    assert (settlement.outcome, settlement.answer) == (Outcome.OK, first.state)


@pytest.mark.parametrize("again", [False, True])
def test_the_first_answer_is_delivered_where_a_request_is_given_up(again: bool) -> None:
    s, first, _ = answered()
    if again:
        s.handle(Checked("r1", 1, 0.0), 3.0)
    settlement = finished(s.handle(GivenUp("r1", "shutdown"), 4.0))
    assert (settlement.outcome, settlement.answer) == (Outcome.OK, first.state)


def test_a_client_may_leave_meanwhile() -> None:
    s, _, _ = answered()
    settlement = finished(s.handle(Left("r1"), 3.0))
    assert (settlement.outcome, settlement.cost_usd) == (Outcome.CLIENT_CANCELLED, pytest.approx(usd(11)))
    assert s.handle(Checked("r1", 1, 0.0), 4.0) == []
    s, _, _ = answered()
    s.handle(Checked("r1", 1, 0.0), 3.0)
    out = s.handle(Left("r1"), 4.0)
    assert isinstance(out[0], Cancel)
    assert finished(out).outcome is Outcome.CLIENT_CANCELLED


@pytest.mark.parametrize(
    "fields",
    [
        {"check": None},
        {"max_attempts": 1},
        {"slo": Slo(e2e_s=6.9)},  # a check may take five seconds, and two have passed
        {"slo": Slo(ttft_s=0.5)},  # late already
        {"expires_at": 6.9},
    ],
    ids=["no check", "no attempt", "no time for it", "late", "time limit"],
)
def test_an_answer_that_is_not_checked(fields: dict[str, Any]) -> None:
    _, first, out = answered(**fields)
    assert finished(out).answer is first.state


def test_there_is_nobody_else() -> None:
    s, first, _ = answered()
    other = "b" if first.candidate.instance == "a" else "a"
    s.instances[other].healthy = False
    assert finished(s.handle(Checked("r1", 1, 0.0), 3.0)).answer is first.state


def test_a_late_second_answer_is_hedged_by_no_model_of_the_first_one() -> None:
    class Late(Fixed):
        """Expects every first token half a second later, and many misses at `n`."""

        def predict(
            self, request: Request, candidate: Candidate, instance: Instance, now: float
        ) -> Prediction:
            missed = 0.9 if candidate.model == "n" else 0.0
            return Prediction(ttft_s_p50=now + 0.1, ttft_s_p95=now + 0.5, p_miss=missed, cost_usd=1e-6)

    class First(Curious):
        """Asks `m` first, then `n`; a hedge goes to the best instance."""

        def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
            index = min(range(len(options)), key=lambda at: options[at].candidate.model)
            return Choice(index, [None] * len(options), [None] * len(options), check=True)

        def reconsider(
            self, request: Request, answer: CheckedAnswer, options: Sequence[Option], rng: Random
        ) -> Choice:
            index = max(range(len(options)), key=lambda at: options[at].candidate.model)
            return Choice(index, [None] * len(options), [None] * len(options))

    instances = [instance("a", "m"), instance("b", "m"), instance("c", "n")]
    s = scheduler(*instances, policy=First(), predictor=Late(), hedge_share=1.0)
    s.handle(
        Arrived(request("r1", models=("m", "n"), check=CHECK, client_streams=False, slo=Slo(e2e_s=60.0))), 0.0
    )
    s.handle(FirstToken("r1", 1), 0.1)
    s.handle(Ended("r1", 1, EndedHow.OK, 11, 100), 2.0)
    assert dispatched(s.handle(Checked("r1", 1, 0.0), 3.0)).candidate.model == "n"
    assert s.handle(Tick(), 3.6) == []


def test_a_late_hedge_is_given_up_before_the_check() -> None:
    s = scheduler(
        instance("a", "m"), instance("b", "m"), instance("c", "n"), policy=Curious(), predictor=Fixed()
    )
    s.handle(
        Arrived(request("r1", models=("m", "n"), check=CHECK, client_streams=False, engine_streams=False)),
        0.0,
    )
    state = s._open.states["r1"]
    attempt = state.attempts[0]
    other = s._placer._decider.decide(state.request, attempt.decided.options, 1.0)
    s._dispatch(state, other, 1.0, hedge=True)
    s.catch_up()
    out = s.handle(Ended("r1", 1, EndedHow.OK, 5, 100), 2.0)
    assert [type(each) for each in out] == [Cancel, Check]
    assert finished(s.handle(Checked("r1", 1, 1.0), 3.0)).attempts[1].ended_how is EndedHow.HEDGE_LOST
