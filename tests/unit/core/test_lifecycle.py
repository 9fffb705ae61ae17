"""How requests end: one `Finish` for each, after all of its attempts have ended."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.events import (
    Arrived,
    Cancel,
    Ended,
    FailureKind,
    Finish,
    FirstToken,
    GivenUp,
    Granted,
    Left,
    Metered,
    Tick,
)
from router.core.money.reservation import Funding
from router.core.settlement import Settlement
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, Outcome, Prediction, Request, Slo
from tests.unit.core.test_hedging import Hopeful
from tests.unit.core.worlds import (
    CHEAP,
    DrivenScheduler,
    Fixed,
    dispatched,
    failed,
    finished,
    instance,
    request,
    scheduler,
)

OK, CANCELLED = EndedHow.OK, EndedHow.CANCELLED


def in_phase(phase: str) -> DrivenScheduler:
    """r1 in a phase of its life, on instances with one slot; while it is queued r0 holds that."""
    names = "ab" if phase == "hedged" else "a"
    s = scheduler(*(instance(name, slots=1) for name in names), predictor=Hopeful(), hedge_share=1.0)
    if phase == "queued":
        s.handle(Arrived(request("r0")), 0.0)
    s.handle(Arrived(request("r1", slo=Slo(ttft_s=2.0))), 0.0)
    if phase == "decoding":
        s.handle(FirstToken("r1", 1), 0.2)
    if phase == "hedged":
        assert dispatched(s.handle(Tick(), 0.5)).hedge
    return s


PHASES = ["queued", "prefill", "decoding", "hedged"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("event", "outcome", "code"),
    [
        (Left("r1"), Outcome.CLIENT_CANCELLED, None),
        (GivenUp("r1", "shutdown"), Outcome.BACKEND_ERROR, "no_instance"),
        (GivenUp("r1", "internal_error"), Outcome.BACKEND_ERROR, "internal_error"),
    ],
)
def test_a_request_may_end_in_any_phase(phase: str, event: Any, outcome: Outcome, code: str | None) -> None:
    s = in_phase(phase)
    attempts = {"queued": 0, "hedged": 2}.get(phase, 1)
    out = s.handle(event, 1.0)
    assert [type(each) for each in out] == [Cancel] * attempts + [Finish]
    settlement = finished(out)
    assert settlement.outcome is outcome
    assert (settlement.refusal is None) == (code is None)
    if settlement.refusal is not None:
        assert (settlement.refusal.code, settlement.error_code) == (code, event.reason)
    assert [each.ended_how for each in settlement.attempts] == [CANCELLED] * attempts
    assert (settlement.e2e_s, settlement.decoded) == (1.0, phase == "decoding")
    for late in (
        event,
        FirstToken("r1", 1),
        Ended("r1", 1, OK),
        Metered("r1", 1, 1.0),
        Granted("r1", 1.0, 1.0),
    ):
        assert s.handle(late, 1.1) == []
    assert s.live == (phase == "queued")


def test_a_request_waits_for_the_end_of_all_its_attempts() -> None:
    s = in_phase("hedged")
    s.late = True
    assert s.handle(Left("r1"), 1.0) == [Cancel("r1", 1), Cancel("r1", 2)]
    for more in (Left("r1"), GivenUp("r1", "shutdown"), FirstToken("r1", 1), Metered("r1", 1, 1.0)):
        assert s.handle(more, 1.05) == []
    assert s.handle(Tick(), 700.0) == []  # it has ended: its time cannot pass any more
    assert s.handle(Ended("r1", 2, CANCELLED), 1.1) == []
    settlement = finished(s.handle(Ended("r1", 1, CANCELLED), 1.2))
    assert (settlement.outcome, settlement.e2e_s) == (Outcome.CLIENT_CANCELLED, 1.0)
    assert (settlement.refusal, settlement.decoded) == (None, False)
    assert [each.ended_at for each in settlement.attempts] == [1.2, 1.1]


@pytest.mark.parametrize("how", [OK, EndedHow.FAILED])
def test_an_attempt_that_ends_otherwise_while_it_is_cancelled_is_a_cancelled_one(how: EndedHow) -> None:
    a = instance("a", price=CHEAP)
    s = scheduler(a, instance("b"), eject_after=1)
    s.late = True
    s.handle(Arrived(request()), 0.0)
    s.handle(FirstToken("r1", 1), 0.1)
    assert s.handle(Left("r1"), 1.0) == [Cancel("r1", 1)]
    ended = failed(output_tokens=7) if how is EndedHow.FAILED else Ended("r1", 1, OK, 7)
    settlement = finished(s.handle(ended, 1.1))
    assert (settlement.outcome, settlement.slo_met) == (Outcome.CLIENT_CANCELLED, None)
    (attempt,) = settlement.attempts
    assert (attempt.ended_how, attempt.error) == (CANCELLED, None)
    assert attempt.cost_usd == pytest.approx(CHEAP.cost_usd(100, 7))
    assert a.healthy


def test_a_loser_that_ends_late_does_not_keep_its_request_from_a_retry() -> None:
    s = scheduler(*map(instance, "abc"), predictor=Hopeful(), hedge_share=1.0)
    s.late = True
    s.handle(Arrived(request(slo=Slo(ttft_s=2.0), client_streams=False)), 0.0)
    s.handle(Tick(), 0.5)
    assert s.handle(FirstToken("r1", 2), 0.6) == [Cancel("r1", 1)]
    assert dispatched(s.handle(failed(attempt=2), 0.7)).attempt == 3
    assert s.handle(Ended("r1", 1, CANCELLED), 0.8) == []
    assert finished(s.handle(Ended("r1", 3, OK, 5), 1.0)).outcome is Outcome.OK


def test_money_that_comes_while_a_request_ends_is_released_with_the_rest() -> None:
    s = scheduler(instance("a", price=CHEAP))
    s.late = True
    s.handle(Arrived(request(), Funding(420e-6, 1.0, 100e-6, 1.0)), 0.0)
    s.handle(Left("r1"), 1.0)
    assert s.handle(Granted("r1", 100e-6, 1.0), 1.1) == []
    settlement = finished(s.handle(Ended("r1", 1, CANCELLED), 1.2))
    assert settlement.reserved_usd == pytest.approx(520e-6)


# --- what is settled ----------------------------------------------------------------------------------
def settled(*events: Any, **fields: Any) -> Settlement:
    """The settlement of r1, which is alone. Events come a second apart."""
    s = scheduler(instance("a", price=CHEAP))
    out = s.handle(Arrived(request(at=100.0, **fields)), 100.0)
    for second, event in enumerate(events, 101):
        out = s.handle(event, float(second))
    return finished(out)


ONE_PIECE = {"engine_streams": False, "client_streams": False}


@pytest.mark.parametrize(
    ("end", "fields", "decoded"),
    [
        (Ended("r1", 1, OK, 1), ONE_PIECE, True),
        (Ended("r1", 1, OK, 0), ONE_PIECE, False),
        (Ended("r1", 1, OK, 1), ONE_PIECE | {"decodes": False}, False),
        (Left("r1"), ONE_PIECE, False),
    ],
)
def test_whether_an_answer_in_one_piece_has_tokens(end: Any, fields: dict[str, Any], decoded: bool) -> None:
    settlement = settled(end, **fields)
    assert (settlement.decoded, settlement.ttft_s, settlement.tpot_s) == (decoded, None, None)


@pytest.mark.parametrize(("tokens", "tpot_s"), [(0, None), (1, None), (2, 2.0), (5, 0.5)])
def test_the_time_of_a_token_after_the_first(tokens: int, tpot_s: float | None) -> None:
    settlement = settled(FirstToken("r1", 1), Tick(), Ended("r1", 1, OK, tokens))
    assert (settlement.ttft_s, settlement.e2e_s, settlement.tpot_s) == (1.0, 3.0, tpot_s)


def test_which_attempt_is_recorded_if_none_answers() -> None:
    s = in_phase("hedged")
    s.handle(FirstToken("r1", 1), 0.6)
    settlement = finished(s.handle(Left("r1"), 1.0))
    assert settlement.hedged
    assert (settlement.answer, settlement.ttft_s) == (settlement.attempts[0], 0.6)  # the client saw this one
    broken = settled(FirstToken("r1", 1), failed(output_tokens=3))
    assert (broken.answer, broken.ttft_s, broken.error_code) == (broken.attempts[0], 1.0, "upstream_error")

    s = scheduler(*map(instance, "ab"))
    s.handle(Arrived(request(client_streams=False)), 0.0)
    s.handle(FirstToken("r1", 1), 1.0)
    s.handle(failed(output_tokens=3), 2.0)
    unseen = finished(s.handle(Left("r1"), 3.0))
    assert not unseen.hedged
    assert (unseen.answer, unseen.ttft_s, unseen.decoded) == (unseen.attempts[1], None, True)
    alone = settled(FirstToken("r1", 1), failed(output_tokens=3), client_streams=False)
    assert (alone.answer, alone.ttft_s, alone.tpot_s) == (alone.attempts[0], None, None)


@pytest.mark.parametrize(
    ("end", "billed", "tokens"),
    [
        (Ended("r1", 1, OK, 9, 100), True, 9),
        (Ended("r1", 1, OK, 0, 100), True, 0),
        (failed(output_tokens=9), True, 9),
        (failed(), False, 0),
        (failed(kind=FailureKind.TOO_LARGE), True, 0),
        (failed(kind=FailureKind.UNREACHABLE), False, 0),
    ],
)
def test_what_an_engine_is_paid_for(end: Ended, billed: bool, tokens: int) -> None:
    settlement = settled(end)
    (attempt,) = settlement.attempts
    assert attempt.billed is billed
    cost_usd = CHEAP.cost_usd(100, tokens) if billed else 0.0
    assert settlement.cost_usd == attempt.cost_usd == pytest.approx(cost_usd)
    assert settlement.used_tokens == (100 + tokens if billed else 0)


@pytest.mark.parametrize(("tokens", "sent", "billed"), [(3, True, True), (0, True, True), (0, False, False)])
def test_a_cancelled_attempt_costs_what_it_gave_and_its_prompt_once_it_was_sent(
    tokens: int, sent: bool, billed: bool
) -> None:
    s = scheduler(instance("a", price=CHEAP))
    s.late = True
    s.handle(Arrived(request()), 0.0)
    s.handle(Left("r1"), 1.0)
    settlement = finished(s.handle(Ended("r1", 1, CANCELLED, tokens, sent=sent), 1.0))
    assert settlement.attempts[0].billed is billed
    assert settlement.cost_usd == pytest.approx(CHEAP.cost_usd(100, tokens) if billed else 0.0)


def test_the_engines_count_of_the_prompt_is_what_is_paid() -> None:
    settlement = settled(Ended("r1", 1, OK, 9, 250))
    assert settlement.cost_usd == pytest.approx(CHEAP.cost_usd(250, 9))
    assert settlement.used_tokens == 259


class Prompt(Fixed):
    """Predicts that an engine begins after a second, and gives ten tokens a second, 600 or fewer in nine answers of ten."""

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        return Prediction(engine_ttft_s=1.0, tpot_s=0.1, output_tokens_p90=600.0)


@pytest.mark.parametrize(
    ("fields", "after_s", "tokens"),
    [
        ({}, 5.0, 40),
        ({"choices": 2}, 5.0, 80),
        ({"max_tokens": 10}, 5.0, 10),
        ({"decodes": False}, 5.0, 0),
        ({}, 0.5, 0),
        ({}, 90.0, 600),
        ({"choices": 2}, 90.0, 600),
    ],
)
def test_an_answer_in_one_piece_that_nobody_waited_for_is_estimated(
    fields: dict[str, Any], after_s: float, tokens: int
) -> None:
    """The engine has produced something by then, and is paid for that."""
    s = scheduler(instance("a", price=CHEAP, context_tokens=4000), predictor=Prompt())
    s.handle(Arrived(request(at=9.0, **ONE_PIECE, **fields)), 9.0)
    settlement = finished(s.handle(Left("r1"), 9.0 + after_s))
    assert settlement.attempts[0].output_tokens == tokens
    assert settlement.cost_usd == pytest.approx(CHEAP.cost_usd(100, tokens))


def test_an_answer_in_one_piece_that_was_never_asked_for_costs_nothing() -> None:
    s = scheduler(instance("a", price=CHEAP), predictor=Prompt())
    s.late = True
    s.handle(Arrived(request(**ONE_PIECE)), 0.0)
    s.handle(Left("r1"), 5.0)
    settlement = finished(s.handle(Ended("r1", 1, CANCELLED, sent=False), 5.0))
    assert (settlement.cost_usd, settlement.used_tokens) == (0.0, 0)


def test_a_failed_attempt_costs_beside_the_one_that_answers() -> None:
    s = scheduler(instance("a", price=CHEAP), instance("b", price=CHEAP))
    s.handle(Arrived(request(client_streams=False)), 0.0)
    s.handle(FirstToken("r1", 1), 1.0)
    s.handle(failed(output_tokens=50), 2.0)
    s.handle(FirstToken("r1", 2), 3.0)
    settlement = finished(s.handle(Ended("r1", 2, OK, 5, 100), 4.0))
    assert settlement.cost_usd == pytest.approx(CHEAP.cost_usd(100, 50) + CHEAP.cost_usd(100, 5))
    assert settlement.answer is settlement.attempts[1]
    assert (settlement.ttft_s, settlement.queue_wait_s) == (3.0, 0.0)
    assert settlement.used_tokens == 100 + 50 + 100 + 5


@pytest.mark.parametrize(
    ("slo", "hard", "events", "outcome", "met"),
    [
        (Slo(ttft_s=1.5), False, (FirstToken("r1", 1), Ended("r1", 1, OK, 5)), Outcome.OK, True),
        (Slo(ttft_s=0.5), False, (FirstToken("r1", 1), Ended("r1", 1, OK, 5)), Outcome.LATE, False),
        (Slo(e2e_s=2.0), False, (FirstToken("r1", 1), Ended("r1", 1, OK, 5)), Outcome.OK, True),
        (Slo(e2e_s=1.9), False, (FirstToken("r1", 1), Ended("r1", 1, OK, 5)), Outcome.LATE, False),
        (Slo(ttft_s=1.5), False, (Ended("r1", 1, OK, 0),), Outcome.OK, True),  # an answer without a token
        (Slo(e2e_s=9.0), False, (failed(),), Outcome.BACKEND_ERROR, False),
        (None, False, (failed(),), Outcome.BACKEND_ERROR, None),
        (Slo(e2e_s=9.0), False, (Left("r1"),), Outcome.CLIENT_CANCELLED, None),
        (Slo(e2e_s=9.0), False, (failed(kind=FailureKind.REJECTED),), Outcome.REJECTED_INVALID, None),
        (Slo(ttft_s=0.9), True, (Tick(),), Outcome.EXPIRED_BEFORE_FIRST_TOKEN, False),
    ],
)
def test_whether_an_slo_was_kept(
    slo: Slo | None, hard: bool, events: tuple[Any, ...], outcome: Outcome, met: bool | None
) -> None:
    settlement = settled(*events, slo=slo, hard=hard)
    assert (settlement.outcome, settlement.slo_met) == (outcome, met)


@pytest.mark.parametrize(
    ("slo", "ttft_s", "tpot_s", "e2e_s", "met"),
    [
        (Slo(), None, None, None, True),
        (Slo(ttft_s=1.0), 1.0, 9.0, 9.0, True),
        (Slo(ttft_s=1.0), 1.1, 0.0, 0.0, False),
        (Slo(ttft_s=1.0), None, 0.0, 0.0, False),
        (Slo(tpot_s=1.0), 9.0, 1.0, 9.0, True),
        (Slo(tpot_s=1.0), 0.0, 1.1, 0.0, False),
        (Slo(tpot_s=1.0), 0.0, None, 0.0, True),  # of fewer than two tokens
        (Slo(e2e_s=1.0), 9.0, 9.0, 1.0, True),
        (Slo(e2e_s=1.0), 0.0, 0.0, 1.1, False),
        (Slo(e2e_s=1.0), 0.0, 0.0, None, False),
    ],
)
def test_which_times_meet_a_target(
    slo: Slo, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None, met: bool
) -> None:
    assert slo.met(ttft_s, tpot_s, e2e_s) is met


def test_a_queued_request_that_ends_was_waiting_all_the_time() -> None:
    s = in_phase("queued")
    settlement = finished(s.handle(Left("r1"), 3.0))
    assert (settlement.queue_wait_s, settlement.answer, settlement.attempts) == (3.0, None, ())
    s = in_phase("queued")
    s.handle(Ended("r0", 1, OK, 1), 0.4)
    assert finished(s.handle(Ended("r1", 1, OK, 1), 3.0)).queue_wait_s == 0.4
