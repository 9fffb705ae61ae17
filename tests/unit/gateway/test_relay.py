"""The relay carries out what the scheduler decides: what reaches the client, what ends at the engines, what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from router.core import attempts
from router.core.errors import AnswerTooLarge, OutOfSockets, UpstreamError, UpstreamRejected
from router.core.events import FailureKind, Tick
from router.core.money.reservation import Funding
from router.core.scheduler import Scheduler
from router.core.types import EndedHow, Outcome, Price, Slo
from router.gateway.keys.accounts import TOTAL, Account
from router.gateway.keys.admission import BudgetAdmission, KeyReservation
from router.gateway.relay.attempt import failure_of
from router.gateway.runner import Runner
from router.store.state import Budget, Claim
from tests.integration.budgets.audit import Audited
from tests.unit.core.test_hedging import Hopeful
from tests.unit.core.worlds import Fixed, instance, request
from tests.unit.core.worlds import scheduler as driven
from tests.unit.gateway import relays
from tests.unit.gateway.relays import Client, Engine, Relayed, ScriptedCall, relayed, saying

PRICE = Price(1.0, 2.0)


def scheduler(*names: str, predictor: Fixed | None = None, **settings: Any) -> Scheduler:
    """Instances with one slot each. Its driver is the relay, which answers each `Cancel` itself."""
    made = driven(*(instance(name, slots=1, price=PRICE) for name in names), predictor=predictor, **settings)
    made.late = True
    return made


def hedging(*names: str) -> Scheduler:
    return scheduler(*names, predictor=Hopeful(), hedge_share=1.0)


def idle(s: Scheduler) -> bool:
    """Whether nothing is left of any request."""
    return s.live == 0 and all(
        (each.in_flight, each.awaiting_first_token, each.context_tokens) == (0, 0, 0)
        for each in s.instances.values()
    )


HEDGED = {"slo": Slo(ttft_s=2.0)}


def test_an_answer_is_passed_on_as_it_comes_and_recorded() -> None:
    s, engine = scheduler("a"), Engine(*saying(b"one", b"two", b"three", after_s=0.5))
    found = relayed(s, {"a": engine}, request())
    record = found.record
    assert (found.client.status, found.client.words()) == (200, [b"one", b"two", b"three"])
    assert found.client.ended
    assert found.client.written.endswith(b"data: [DONE]\n\n")
    assert (record.outcome, record.instance, record.model) == (Outcome.OK, "a", "m")
    assert (record.ttft_s, record.e2e_s, record.output_tokens) == (0.5, 2.5, 3)
    assert (record.itl_max_s, record.finish_reason, record.attempts) == (1.0, "stop", 1)
    assert record.cost_usd == pytest.approx(PRICE.cost_usd(100, 3))
    (attempt,) = record.attempt_states
    assert (attempt.ended_how, attempt.output_tokens) == (EndedHow.OK, 3)
    assert idle(s)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UpstreamError("x", 500), FailureKind.ERROR),
        (UpstreamError("x", unreachable=True), FailureKind.UNREACHABLE),
        (UpstreamRejected("x", 422, param="top_k", code="bad"), FailureKind.REJECTED),
        (AnswerTooLarge("x"), FailureKind.TOO_LARGE),
        (OutOfSockets("x"), FailureKind.NO_SOCKET),
    ],
)
def test_what_kind_of_failure_an_error_is(error: UpstreamError, kind: FailureKind) -> None:
    failure = failure_of(error)
    assert (failure.kind, failure.message, failure.status) == (kind, "x", error.status)
    if isinstance(error, UpstreamRejected):
        assert (failure.param, failure.code) == ("top_k", "bad")


# --- attempts that are not sent yet -------------------------------------------------------------------
def test_a_loser_that_waits_for_its_engine_is_given_up_at_once() -> None:
    """There is no connection to its engine yet, so nothing was sent that is to be paid."""
    s = hedging("a", "b")
    engines = {"a": Engine(*saying(b"a"), opens=None), "b": Engine(*saying(b"b"))}
    found = relayed(s, engines, request(**HEDGED))
    assert (found.record.instance, found.client.words()) == ("b", [b"b"])
    assert found.record.attempt_states[0].cost_usd == 0.0
    assert idle(s)


def test_an_attempt_that_is_given_up_before_it_is_sent_calls_nobody() -> None:
    s, engine = scheduler("a"), Engine(*saying(b"a"), opens=1.0)
    found = relayed(s, {"a": engine}, request(), (0.5, lambda found: found.leave()))
    assert (found.record.outcome, found.record.cost_usd) == (Outcome.CLIENT_CANCELLED, 0.0)
    assert engine.calls == []


# --- faults of ours -----------------------------------------------------------------------------------
class Broken(Fixed):
    """Fails once, when it is told `when`."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when

    def _fail(self, what: str) -> None:
        if self.when == what:
            self.when = ""
            raise RuntimeError("broken")

    def observe_dispatch(self, *args: Any) -> None:
        self._fail("dispatch")

    def observe_ttft(self, *args: Any) -> None:
        self._fail("ttft")

    def observe_end(self, *args: Any) -> None:
        self._fail("end")

    def observe_loss(self, *args: Any) -> None:
        self._fail("loss")


@pytest.mark.parametrize("when", ["dispatch", "ttft", "end", "loss"])
def test_a_fault_while_something_is_learned_costs_no_request_anything(when: str) -> None:
    s = scheduler("a", predictor=Broken(when))
    engine = Engine(*saying(b"a", b"b"))
    leaves = [(0.5, lambda found: found.leave())] if when == "loss" else []
    found = relayed(s, {"a": engine}, request(), *leaves)
    assert found.record.outcome is (Outcome.CLIENT_CANCELLED if leaves else Outcome.OK)
    assert idle(s)
    assert s.predictor.when == ""


@pytest.mark.parametrize(("step", "leaves"), [("first_token", False), ("end", False), ("end", True)])
def test_a_fault_in_the_scheduler_ends_its_request_and_frees_its_slot(
    step: str, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults = getattr(attempts, step), [RuntimeError("broken")]

    def broken(*values: Any, **named: Any) -> None:
        real(*values, **named)
        if faults:
            raise faults.pop()

    monkeypatch.setattr(attempts, step, broken)
    s = scheduler("a")
    engine = Engine(*saying(b"a", b"b"))
    later = [(0.5, lambda found: found.leave())] if leaves else []
    found = relayed(s, {"a": engine}, request(), *later)
    assert (found.record.outcome, found.record.error_code) == (Outcome.BACKEND_ERROR, "internal_error")
    assert all(each.in_flight == 0 for each in s.instances.values())


class Prompt(ScriptedCall):
    """A call on an idle connection: it is sent at once."""

    def _later(self, seconds: float, then: Callable[[], None]) -> None:
        if seconds:
            super()._later(seconds, then)
        else:
            then()


def test_what_was_sent_before_a_fault_at_the_start_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [RuntimeError("broken")]
    arm = Runner._arm

    def broken(runner: Runner) -> None:
        if faults:
            raise faults.pop()
        arm(runner)

    monkeypatch.setattr(Runner, "_arm", broken)
    monkeypatch.setattr(relays, "ScriptedCall", Prompt)
    s, engine = scheduler("a"), Engine(*saying(b"a", after_s=1.0))
    found = relayed(s, {"a": engine}, request())
    assert (found.record.outcome, found.record.error_code) == (Outcome.BACKEND_ERROR, "internal_error")
    assert (len(engine.calls), found.record.cost_usd) == (1, pytest.approx(PRICE.cost_usd(100, 0)))
    assert (found.client.status, idle(s)) == (500, True)


def test_money_is_counted_although_the_scheduler_fails_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its engine had made two tokens. The reservation has grown by then."""
    monkeypatch.setattr(attempts, "end", lambda *_, **__: 1 / 0)
    cost_usd = PRICE.cost_usd(100, 2)
    budget, state = Budget("k", TOTAL, 1.0), Audited()
    reservation = KeyReservation(BudgetAdmission(state, lambda: 0.0), Account("k"), [budget])
    grant = asyncio.run(state.take(Claim((), [budget], cost_usd * 0.6, 0.0), 0.0))
    reservation.funding = Funding(grant.reserved_usd, 1.0, cost_usd, 1.0)
    engine = Engine(*saying(b"a", b"b"))
    found = relayed(scheduler("a"), {"a": engine}, request(), reservation=reservation)
    assert (found.record.outcome, found.record.error_code) == (Outcome.BACKEND_ERROR, "internal_error")
    assert (found.client.words(), found.record.cost_usd) == ([b"a", b"b"], pytest.approx(cost_usd))
    assert state.spent_usd("k", TOTAL) == pytest.approx(cost_usd)
    assert not state.reserved


def test_a_fault_of_a_policy_after_its_choice_costs_the_request_nothing() -> None:
    s = scheduler("a")
    s.policies["first"].placed = lambda *_: 1 / 0  # type: ignore[method-assign, index]
    found = relayed(s, {"a": Engine(*saying(b"a"))}, request())
    assert (found.record.outcome, found.client.status, idle(s)) == (Outcome.OK, 200, True)


@pytest.mark.parametrize("queued", [False, True])
def test_a_fault_of_the_policy_at_a_decision_frees_the_slot(queued: bool) -> None:
    s, engine = scheduler("a"), Engine(*saying(b"a"))
    s.policies["first"].choose = lambda *_: 1 / 0  # type: ignore[method-assign, index]
    later: list[tuple[float, Any]] = []
    if queued:
        s.instances["a"].dispatched(0)  # another request has the slot
        later = [(1.0, lambda found: free(s, found))]
    found = relayed(s, {"a": engine}, request(), *later)
    assert (found.record.outcome, found.record.error_code) == (Outcome.BACKEND_ERROR, "internal_error")
    assert (found.client.status, idle(s), engine.calls) == (500, True, [])


def free(s: Scheduler, found: Relayed) -> None:
    """The other request has ended."""
    s.instances["a"].released(0, 0, False)
    found.runner.apply(Tick())


def test_the_client_of_a_whole_answer_pauses_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not read yet is the answer to an earlier request on its connection."""
    monkeypatch.setattr(Client, "paused", True)
    s = scheduler("a")
    found = relayed(s, {"a": Engine(*saying(b"a", b"b"))}, request(client_streams=False))
    assert (found.record.outcome, found.client.status, idle(s)) == (Outcome.OK, 200, True)


@pytest.mark.parametrize(("slow", "learned_s"), [(False, 1.0), (True, None)])
def test_a_slow_client_makes_no_engine_slow(
    monkeypatch: pytest.MonkeyPatch, slow: bool, learned_s: float | None
) -> None:
    monkeypatch.setattr(Client, "paused", slow)
    s = scheduler("a")
    later = [(float(at), lambda found: found.client.on_writable()) for at in (30, 40, 50)] if slow else []
    found = relayed(s, {"a": Engine(*saying(b"a", b"b", b"c"))}, request(), *later)
    s.catch_up()
    assert found.record.outcome is Outcome.OK
    assert s.predictor.ends == [(3, None if learned_s is None else pytest.approx(learned_s))]


def test_a_fault_in_the_relay_itself_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.gateway.relay.relay.Attempt", lambda *_: 1 / 0)
    s = scheduler("a")
    found = relayed(s, {"a": Engine(*saying(b"a"))}, request())
    assert (found.record.outcome, found.client.status) == (Outcome.BACKEND_ERROR, 500)
    assert idle(s)


def test_a_fault_while_an_engine_is_read_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    s, engine = scheduler("a"), Engine(*saying(b"a", b"b"))
    monkeypatch.setattr(Engine, "start", lambda *_: 1 / 0)
    found = relayed(s, {"a": engine}, request())
    assert (found.record.outcome, found.record.error_code) == (Outcome.BACKEND_ERROR, "internal_error")
    assert (found.client.status, idle(s)) == (500, True)
