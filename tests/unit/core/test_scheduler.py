"""The scheduler by its events and instructions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from router.core.errors import Refusal
from router.core.events import (
    Arrived,
    Dispatch,
    DrainChanged,
    Ended,
    Event,
    Failure,
    FailureKind,
    Finish,
    FirstToken,
    FleetChanged,
    Left,
    LoadReported,
    PeerObserved,
    PeerTurned,
    PredictorsChanged,
    Probed,
    QualityReported,
    TargetsChanged,
    Tick,
)
from router.core.scheduler import Scheduler
from router.core.settings import SchedulerSettings
from router.core.types import EndedHow, LoadReport, Outcome, Prediction, Price, PromptFeatures, Slo, Targets
from tests.unit.core.worlds import (
    CHEAP,
    First,
    Fixed,
    dispatched,
    failed,
    finished,
    instance,
    refused,
    request,
    scheduler,
)

OK = EndedHow.OK


def test_a_request_is_dispatched_followed_and_settled():
    predictor = Fixed()
    a = instance("a")
    s = scheduler(a, predictor=predictor)
    sent = dispatched(s.handle(Arrived(request()), 0.0))
    assert (sent.candidate.instance, sent.attempt, sent.bound.max_tokens) == ("a", 1, None)
    assert (a.in_flight, a.awaiting_first_token, a.pending_prefill_tokens) == (1, 1, 100)
    assert s.handle(FirstToken("r1", 1), 0.5) == []
    assert (a.awaiting_first_token, a.pending_prefill_tokens, a.context_tokens) == (0, 0, 200)
    settlement = finished(s.handle(Ended("r1", 1, OK, output_tokens=11), 1.5))
    assert (settlement.outcome, settlement.refusal, settlement.decoded) == (Outcome.OK, None, True)
    assert (settlement.ttft_s, settlement.e2e_s, settlement.tpot_s) == (0.5, 1.5, pytest.approx(0.1))
    assert [each.number for each in settlement.attempts] == [1]
    assert settlement.answer is settlement.attempts[0]
    assert (a.in_flight, a.context_tokens, s.live, s.wake_at) == (0, 0, 0, None)
    assert predictor.ttfts == [0.5]
    assert predictor.ends == [(11, pytest.approx(0.1))]


def test_a_tpot_target_is_a_promise_unless_it_will_probably_be_missed():
    a = instance("a")
    predictor = Fixed()
    s = scheduler(a, predictor=predictor, confidence=0.9)
    for name, tpot_s, p_miss in (("r1", 0.2, None), ("r2", 0.1, 0.9), ("r3", 0.3, 0.91), ("r4", None, 0.0)):
        predictor.p_miss["a"] = p_miss
        s.handle(Arrived(request(name, slo=Slo(tpot_s=tpot_s))), 0.0)
    assert a.promised_tpot_s == [0.1, 0.2]
    s.handle(Ended("r2", 1, OK, output_tokens=11), 1.5)
    assert a.promised_tpot_s == [0.2]


def test_the_decision_tells_every_candidate_and_why():
    s = scheduler(instance("a"), instance("b"), instance("c", context_tokens=50))
    s.instances["b"].healthy = False
    decision = dispatched(s.handle(Arrived(request()), 0.0)).decision
    told = {c.candidate.instance: c.reason for c in decision.considered}
    assert told == {"a": None, "b": "unhealthy", "c": "context of 50 tokens is too short"}
    assert decision.considered[decision.chosen].candidate.instance == "a"


@pytest.mark.parametrize(
    ("candidate", "fields", "status", "code", "outcome"),
    [
        ({"context_tokens": 100}, {}, 400, "context_length_exceeded", Outcome.REJECTED_INVALID),
        (
            {"context_tokens": 99},
            {"decodes": False},
            400,
            "context_length_exceeded",
            Outcome.REJECTED_INVALID,
        ),
        ({"quality": 0.5}, {"min_quality": 0.6}, 400, "quality_unattainable", Outcome.REJECTED_INVALID),
        ({}, {"min_quality": 0.1}, 400, "quality_unattainable", Outcome.REJECTED_INVALID),
        ({"price": CHEAP}, {"max_cost_usd": 400e-6}, 400, "budget_unattainable", Outcome.REJECTED_BUDGET),
        (
            {"price": CHEAP},
            {"max_cost_usd": 403e-6, "choices": 2},
            400,
            "budget_unattainable",
            Outcome.REJECTED_BUDGET,
        ),
        ({}, {"models": ("other",)}, 503, "no_instance", Outcome.REJECTED_NO_INSTANCE),
    ],
)
def test_refusals_for_good(candidate, fields, status, code, outcome):
    s = scheduler(instance("a", **candidate))
    refusal = refused(s.handle(Arrived(request(**fields)), 0.0))
    assert (refusal.status, refusal.code, refusal.outcome) == (status, code, outcome)
    assert s.live == 0


def test_free_output_is_never_bound_by_money():
    s = scheduler(instance("a", price=Price(1.0, 0.0)))
    assert dispatched(s.handle(Arrived(request(max_cost_usd=1.0)), 0.0)).bound.max_tokens is None


def test_a_failed_attempt_goes_to_the_next_candidate_then_ends():
    s = scheduler(instance("a"), instance("b"), max_attempts=3)
    s.handle(Arrived(request()), 0.0)
    sent = dispatched(s.handle(failed("r1", 1), 0.1))
    assert (sent.candidate.instance, sent.attempt) == ("b", 2)
    refusal = refused(s.handle(failed("r1", 2), 0.2))
    assert (refusal.status, refusal.code, refusal.outcome) == (502, "upstream_error", Outcome.BACKEND_ERROR)
    assert refusal.message == "Every attempt failed upstream: a: it broke; b: it broke."
    assert all(i.in_flight == 0 for i in s.instances.values())


@pytest.mark.parametrize(
    ("fields", "attempts", "retried"),
    [
        ({}, 3, True),
        ({}, 1, False),
        ({"expires_at": 2.0}, 3, False),
        ({"slo": Slo(ttft_s=1.5), "hard": True}, 3, False),
        ({"slo": Slo(ttft_s=2.1), "hard": True}, 3, True),
        ({"slo": Slo(ttft_s=1.5)}, 3, True),
        ({"slo": Slo(ttft_s=9.0), "hard": True, "expires_at": 2.0}, 3, False),
    ],
)
def test_a_broken_answer_is_tried_again_while_time_and_attempts_are_left(fields, attempts, retried):
    s = scheduler(instance("a"), instance("b"), max_attempts=attempts)
    s.handle(Arrived(request(client_streams=False, **fields)), 0.0)
    s.handle(FirstToken("r1", 1), 1.0)
    out = s.handle(failed(), 2.0)
    if retried:
        assert dispatched(out).candidate.instance == "b"
    else:
        assert refused(out).code == "upstream_error"


def test_a_failed_attempt_that_waits_in_vain_for_another_candidate_ends_with_its_error():
    s = scheduler(instance("a"), instance("b", slots=1), eject_after=1)
    s.handle(Arrived(request("r1")), 0.0)
    s.instances["a"].draining = True
    s.handle(Arrived(request("r2")), 0.0)
    s.instances["a"].draining = False
    assert s.handle(failed("r1"), 0.1) == []  # it waits for b
    refusal = refused(s.handle(Probed("b", False), 0.2))
    assert (refusal.status, refusal.code, refusal.outcome) == (502, "upstream_error", Outcome.BACKEND_ERROR)
    assert refusal.message == "Every attempt failed upstream: a: it broke."


@pytest.mark.parametrize("streams", [True, False])
def test_a_broken_answer_is_tried_again_only_if_the_client_has_seen_none_of_it(streams):
    s = scheduler(instance("a"), instance("b"))
    s.handle(Arrived(request(client_streams=streams)), 0.0)
    s.handle(FirstToken("r1", 1), 0.1)
    out = s.handle(failed(output_tokens=3), 0.2)
    if not streams:
        assert dispatched(out).attempt == 2
        return
    refusal = refused(out)
    assert (refusal.code, refusal.outcome, s.live) == ("upstream_error", Outcome.BACKEND_ERROR, 0)


@pytest.mark.parametrize(
    ("kind", "status", "code", "outcome"),
    [
        (FailureKind.REJECTED, 422, "invalid_request", Outcome.REJECTED_INVALID),
        (FailureKind.TOO_LARGE, None, "upstream_error", Outcome.BACKEND_ERROR),
    ],
)
def test_what_another_engine_would_do_too_is_not_tried_again(kind, status, code, outcome):
    s = scheduler(instance("a"), instance("b"))
    s.handle(Arrived(request()), 0.0)
    settlement = finished(s.handle(failed(kind=kind, status=status, message="bad top_k"), 0.1))
    refusal = settlement.refusal
    assert (refusal.status, refusal.code, refusal.outcome) == (status or 502, code, outcome)
    assert "bad top_k" in refusal.message.lower()
    # The engine's words may quote the request: the record of a rejection does without them.
    assert ("bad top_k" in settlement.attempts[0].error) is (kind is not FailureKind.REJECTED)
    assert s.live == 0


def test_fallbacks_are_tried_in_order_only_when_nobody_can_take_it():
    s = scheduler(instance("a", "m"), instance("b", "n"), instance("c", "o"))
    fields = {"fallbacks": ("n", "o")}
    assert dispatched(s.handle(Arrived(request(**fields)), 0.0)).candidate.model == "m"
    s.instances["a"].healthy = False
    assert dispatched(s.handle(Arrived(request("r2", **fields)), 0.0)).candidate.model == "n"
    s.instances["b"].draining = True
    assert dispatched(s.handle(Arrived(request("r3", **fields)), 0.0)).candidate.model == "o"


def test_the_queue_is_bounded_and_serves_priority_then_slack_then_arrival():
    s = scheduler(instance("a", slots=1), max_queue=4)
    s.handle(Arrived(request("first")), 0.0)
    for at, (name, fields) in enumerate(
        [("plain", {}), ("urgent", {"slo": Slo(ttft_s=60.0)}), ("vip", {"priority": 1}), ("plain2", {})],
        start=1,
    ):
        assert s.handle(Arrived(request(name, at=at, **fields)), float(at)) == []
    refusal = refused(s.handle(Arrived(request("toomany", at=5.0)), 5.0))
    assert (refusal.status, refusal.code) == (503, "server_overloaded")
    assert refusal.retry_after_s is not None
    order, current, now = [], "first", 6.0
    while True:
        out = s.handle(Ended(current, 1, OK, output_tokens=1), now)
        if len(out) == 1:
            break
        current = dispatched(out).request_id
        order.append(current)
        now += 1
    assert order == ["vip", "urgent", "plain", "plain2"]
    assert s.queue_depth == 0


@pytest.mark.parametrize("what", ["report", "release", "return"])
def test_a_waiting_request_is_served_by_the_event_that_opens_a_slot(what):
    """Also after reports of full instances, which do not look at the others."""
    s = scheduler(
        instance("a", slots=1), instance("b"), instance("c", slots=1), eject_after=1, return_after=1
    )
    s.handle(Probed("c", False), 0.0)
    s.handle(LoadReported("b", LoadReport(waiting=6)), 0.0)
    for name in ("r1", "r2", "r3", "r4", "r5"):
        s.handle(Arrived(request(name)), 0.0)
    assert s.instances["b"].in_flight == 4
    for at in range(3):
        s.handle(Arrived(request(f"w{at}")), 0.1)
        assert s.handle(LoadReported("b", LoadReport(waiting=6)), 0.2) == []
        assert s.handle(LoadReported("a", LoadReport(running=1, waiting=0)), 0.3) == []
    opens: dict[str, Event] = {
        "report": LoadReported("b", LoadReport(running=4, waiting=0)),
        "release": Ended("r1", 1, OK, output_tokens=1),
        "return": Probed("c", True),
    }
    sent = [each for each in s.handle(opens[what], 0.4) if isinstance(each, Dispatch)]
    names = {"report": "bbb", "release": "a", "return": "c"}
    assert [each.candidate.instance for each in sent] == list(names[what])


def test_a_slot_of_another_model_does_not_help_the_queue():
    s = scheduler(instance("a", "m", slots=1), instance("b", "n", slots=1))
    s.handle(Arrived(request("r1")), 0.0)
    s.handle(Arrived(request("n1", models=("n",))), 0.0)
    assert s.handle(Arrived(request("r2")), 0.0) == []
    assert [type(each) for each in s.handle(Ended("n1", 1, OK, output_tokens=1), 1.0)] == [Finish]
    assert dispatched(s.handle(Ended("r1", 1, OK, output_tokens=1), 2.0)).request_id == "r2"


class Asked(Fixed):
    """A trained predictor of quality: it needs something to predict."""

    def qualities(self, request: Any, candidates: Any) -> Any:
        assert candidates
        return super().qualities(request, candidates)


def test_no_quality_is_predicted_of_a_model_without_an_instance():
    s = scheduler(instance("a"), predictor=Asked())
    out = s.handle(Arrived(request(models=("other",), min_quality=0.5)), 0.0)
    assert refused(out).code == "no_instance"


@pytest.mark.parametrize(
    ("fields", "first_token", "due", "code"),
    [
        ({"expires_at": 10.0}, False, 10.0, "ttft_timeout"),
        ({"expires_at": 10.0, "slo": Slo(e2e_s=3.0)}, False, 10.0, "ttft_timeout"),
        ({"slo": Slo(ttft_s=2.0, e2e_s=3.0), "hard": True}, False, 2.0, "ttft_timeout"),
        ({"slo": Slo(ttft_s=2.0), "hard": True}, False, 2.0, "ttft_timeout"),
        ({"slo": Slo(e2e_s=3.0), "hard": True}, False, 3.0, "deadline_exceeded"),
        ({"slo": Slo(e2e_s=3.0), "hard": True}, True, 3.0, "deadline_exceeded"),
        ({"slo": Slo(ttft_s=1.0, e2e_s=3.0), "hard": True}, True, 3.0, "deadline_exceeded"),
    ],
)
def test_time_passes(fields, first_token, due, code):
    outcome = Outcome.EXPIRED_MID_DECODE if first_token else Outcome.EXPIRED_BEFORE_FIRST_TOKEN
    a = instance("a")
    s = scheduler(a)
    s.handle(Arrived(request(**fields)), 0.0)
    if first_token:
        s.handle(FirstToken("r1", 1), 0.5)
        if s.wake_at < due:  # the timer set for the TTFT finds nothing to do
            assert s.handle(Tick(), s.wake_at) == []
    assert s.handle(Tick(), due - 0.01) == []
    assert s.wake_at == pytest.approx(due)
    refusal = refused(s.handle(Tick(), due))
    assert (refusal.status, refusal.code, refusal.outcome) == (504, code, outcome)
    assert not refusal.should_retry
    assert (a.in_flight, a.pending_prefill_tokens, a.context_tokens, s.live) == (0, 0, 0, 0)


def test_a_soft_slo_never_ends_a_request():
    s = scheduler(instance("a"))
    s.handle(Arrived(request(slo=Slo(ttft_s=0.001, e2e_s=0.002))), 0.0)
    s.handle(FirstToken("r1", 1), 5.0)
    assert s.handle(Tick(), 10_000.0) == []
    assert s.live == 1
    s = scheduler(instance("a"), instance("b"))
    s.handle(Arrived(request(slo=Slo(ttft_s=0.001, e2e_s=0.002))), 0.0)
    assert dispatched(s.handle(failed(), 5.0)).candidate.instance == "b"


def test_what_waits_too_long_is_refused_only_for_a_hard_slo():
    s = scheduler(instance("a", slots=1))
    s.handle(Arrived(request("r1")), 0.0)
    for name, hard in (("soft", False), ("hard", True)):
        s.handle(Arrived(request(name, slo=Slo(ttft_s=2.0), hard=hard)), 0.0)
    assert s.handle(Tick(), 1.94) == []
    assert refused(s.handle(Tick(), 1.95)).code == "slo_unattainable"  # an engine needs 0.05 s
    assert s.handle(Tick(), 2.0) == []
    assert dispatched(s.handle(Ended("r1", 1, OK), 3.0)).request_id == "soft"


@pytest.mark.parametrize(
    ("ended", "tpot_s"),
    [
        ({}, 0.1),
        ({"output_tokens": 1}, None),
        ({"held_up": True}, None),
        ({"how": EndedHow.FAILED, "failure": Failure(FailureKind.ERROR)}, None),
    ],
)
def test_predictors_learn_what_came_of_an_answer_that_ended_in_the_middle(ended, tpot_s):
    s = scheduler(instance("a"))
    s.handle(Arrived(request()), 0.0)
    s.handle(FirstToken("r1", 1), 1.0)
    s.handle(Ended("r1", 1, **{"how": EndedHow.CANCELLED, "output_tokens": 10} | ended), 1.95)
    s.catch_up()
    ((waited_s, decoding, tokens, told_s),) = s.predictor.losses
    assert (waited_s, decoding, tokens) == (1.95, True, ended.get("output_tokens", 10))
    assert told_s == (None if tpot_s is None else pytest.approx(tpot_s))


def test_expired_in_the_queue():
    s = scheduler(instance("a", slots=1))
    s.handle(Arrived(request("r1")), 0.0)
    s.handle(FirstToken("r1", 1), 0.1)
    s.handle(Arrived(request("r2", expires_at=5.0)), 0.0)
    refusal = refused(s.handle(Tick(), 5.0))
    assert refusal.outcome is Outcome.EXPIRED_IN_QUEUE
    assert s.queue_depth == 0


def test_a_request_whose_time_has_passed_at_its_arrival_is_not_sent() -> None:
    s = scheduler(instance("a"))
    settlement = finished(s.handle(Arrived(request(expires_at=5.0)), 5.0))
    assert (settlement.outcome, settlement.attempts) == (Outcome.EXPIRED_IN_QUEUE, ())
    assert settlement.refusal.code == "ttft_timeout"
    assert (settlement.queue_wait_s, settlement.e2e_s, s.live) == (5.0, 5.0, 0)


def test_a_hard_slo_is_taken_on_only_with_the_configured_confidence():
    predictor = Fixed({"a": 0.5, "b": 0.05})
    s = scheduler(instance("a"), instance("b"), predictor=predictor, confidence=0.9)
    s.instances["a"].released_at, s.instances["a"].ended = 0.0, 8  # enough is known of it, so it is not tried
    hard = {"slo": Slo(ttft_s=1.0), "hard": True}
    dispatched(s.handle(Arrived(request("r1", **hard)), 0.0))
    predictor.p_miss["b"] = 0.2
    refusal = refused(s.handle(Arrived(request("r2", **hard)), 0.0))
    assert (refusal.status, refusal.code, refusal.should_retry) == (429, "slo_unattainable", False)
    assert refusal.retry_after_s is not None
    dispatched(s.handle(Arrived(request("r3", slo=Slo(ttft_s=1.0))), 0.0))  # a soft one goes


def test_a_hard_slo_is_tried_where_little_is_known_and_it_is_likely_to_be_met() -> None:
    """Else a gateway that gets hard SLOs alone, and predicts too badly, would refuse all of them for ever."""
    predictor = Fixed({"a": 0.4, "b": 0.3})
    s = scheduler(instance("a"), instance("b"), predictor=predictor, confidence=0.9)
    names = (f"r{n}" for n in range(9))

    def hard() -> Arrived:
        return Arrived(request(next(names), slo=Slo(ttft_s=1.0), hard=True))

    assert dispatched(s.handle(hard(), 0.0)).candidate.instance == "b"
    sent = dispatched(s.handle(hard(), 0.0))
    assert sent.candidate.instance == "a"
    found = [each.reason for each in sent.decision.considered]
    assert found == [None, "would miss its hard SLO with probability 0.30"]
    refused(s.handle(hard(), 0.0))  # both have something to do
    s.handle(Ended("r1", 1, OK, 1), 5.0)
    assert dispatched(s.handle(hard(), 5.0)).candidate.instance == "a"
    s.handle(Ended("r3", 1, OK, 1), 6.0)
    s.instances["a"].ended = 8
    refused(s.handle(hard(), 35.9))
    assert dispatched(s.handle(hard(), 36.0)).candidate.instance == "a"
    s.handle(Ended("r0", 1, OK, 1), 40.0)
    predictor.p_miss["b"] = 0.51
    refused(s.handle(hard(), 100.0))


def test_a_hard_slo_with_hardly_a_chance_is_tried_again_after_a_long_time() -> None:
    """Else an engine that was slow for a while, as at its start, would get no request for ever if all that comes is hard."""
    s = scheduler(instance("a"), predictor=Fixed({"a": 0.99}, floor_s=0.05), confidence=0.9)
    s.handle(Arrived(request("r0")), 0.0)
    s.handle(Ended("r0", 1, OK, 1), 10.0)
    for at_s, slo in ((309.9, Slo(ttft_s=1.0)), (310.0, Slo(ttft_s=0.01)), (310.0, Slo(e2e_s=0.01))):
        refused(s.handle(Arrived(request("r1", slo=slo, hard=True)), at_s))
    dispatched(s.handle(Arrived(request("r3", slo=Slo(ttft_s=1.0), hard=True)), 310.0))


def test_the_time_to_decode_is_none_to_wait_in():
    class Long(Fixed):
        """Expects ten seconds of decoding, half of which is the least."""

        def predict(self, request, candidate, instance, now):
            return Prediction(ttft_s_p50=0.1, e2e_s_p50=10.1)

    s = scheduler(instance("a", slots=1), predictor=Long())
    s.handle(Arrived(request("r1")), 0.0)
    assert (
        refused(s.handle(Arrived(request("r2", slo=Slo(e2e_s=5.0), hard=True)), 0.0)).code
        == "slo_unattainable"
    )
    assert s.handle(Arrived(request("r3", slo=Slo(e2e_s=5.1), hard=True)), 0.0) == []


def test_one_that_is_late_at_its_arrival_waits_behind_those_in_time():
    s = scheduler(instance("a", slots=1))
    s.handle(Arrived(request("r1")), 0.0)
    s.handle(Arrived(request("late", slo=Slo(ttft_s=0.05))), 0.0)  # an engine needs that long
    s.handle(Arrived(request("early", slo=Slo(ttft_s=2.0))), 0.0)
    assert dispatched(s.handle(Ended("r1", 1, OK), 0.1)).request_id == "early"


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 100 + 256 + 1),
        ({"max_tokens": 50}, 100 + 50 + 1),
        ({"max_tokens": 500, "choices": 2}, 100 + 2 * 256 + 1),
        ({"decodes": False}, 100 + 1),
    ],
)
def test_the_work_that_a_waiting_request_counts_for(fields, tokens):
    s = scheduler(instance("a", slots=1))
    for name in ("r1", "r2"):
        s.handle(Arrived(request(name, **fields)), 0.0)
    assert s._queue.waiting["r2"].work_tokens == tokens


@pytest.mark.parametrize(("ttft_s", "waits"), [(0.01, False), (1.0, True)])
def test_a_dry_run_where_every_slot_is_taken_tells_what_a_hard_request_would_get(
    ttft_s: float, waits: bool
) -> None:
    s = scheduler(instance("a", slots=1), predictor=Fixed({"a": 0.5}, floor_s=0.05))
    s.handle(Arrived(request("r1")), 0.0)
    hard = request("r2", slo=Slo(ttft_s=ttft_s), hard=True)
    if waits:
        s.decide(hard, 0.0)
    else:
        with pytest.raises(Refusal, match="while the request is queued"):
            s.decide(hard, 0.0)
    assert (s.handle(Arrived(hard), 0.0) == []) is waits


def test_leaving_frees_the_slot_for_the_next():
    s = scheduler(instance("a", slots=1))
    s.handle(Arrived(request("r1")), 0.0)
    s.handle(Arrived(request("r2")), 0.0)
    s.handle(Arrived(request("r3")), 0.0)
    assert finished(s.handle(Left("r2"), 0.5)).outcome is Outcome.CLIENT_CANCELLED
    assert dispatched(s.handle(Left("r1"), 1.0)).request_id == "r3"
    assert s.handle(Left("nobody"), 1.0) == []


def test_ejection_by_probes_and_a_gradual_return():
    a = instance("a", slots=100)
    s = scheduler(a, eject_after=3, return_after=2)
    for at in range(3):
        s.handle(Probed("a", False), float(at))
    assert (a.healthy, a.ejections) == (False, 1)
    refusal = refused(s.handle(Arrived(request("r0")), 3.0))
    assert refusal.code == "no_instance"
    assert [(each.candidate.instance, each.reason) for each in refusal.decision.considered] == [
        ("a", "unhealthy")
    ]
    assert refused(s.handle(Arrived(request("r0", models=("nothing",))), 3.0)).decision is None
    s.handle(Probed("a", True), 4.0)
    assert not a.healthy
    s.handle(Probed("a", True), 5.0)
    assert a.healthy
    sent = sum(isinstance(i, Dispatch) for n in range(60) for i in s.handle(Arrived(request(f"a{n}")), 6.0))
    assert sent == 10  # one second into a ramp of ten, of 100 slots
    s.handle(Tick(), 10.0)
    assert a.in_flight == 50
    s.handle(Probed("a", True), 14.9)
    assert s.fleet.returning()
    s.handle(Probed("a", True), 15.0)
    assert not s.fleet.returning()


def test_a_dry_run_changes_nothing():
    policy = First()
    a = instance("a")
    s = scheduler(a, instance("b"), policy=policy)
    decision = s.decide(request(), 0.0)
    assert [c.candidate.instance for c in decision.considered] == ["a", "b"]
    assert all(c.prediction is not None for c in decision.considered)
    assert (a.in_flight, s.live, policy.taken_by) == (0, 0, [])
    with pytest.raises(Refusal):
        s.decide(request(models=("nothing",)), 0.0)


def test_an_instance_that_comes_back_keeps_what_is_under_way_there():
    a, b = instance("a"), instance("b")
    s = scheduler(a, b, eject_after=1)
    gone = []
    s.predictor.forget = gone.append
    s.handle(Arrived(request("r1")), 0.0)
    s.handle(Probed("a", False), 0.5)
    s.handle(FleetChanged((b,), s.settings), 1.0)
    assert (s.known_instances, gone) == ({"a": a, "b": b}, [{"a"}])
    s.handle(FleetChanged((a, b), s.settings), 2.0)
    assert (a.healthy, a.in_flight, len(gone)) == (True, 1, 1)
    s.handle(FleetChanged((b,), s.settings), 3.0)
    s.handle(Ended("r1", 1, OK, output_tokens=1), 4.0)
    s.handle(FleetChanged((b,), s.settings), 5.0)
    assert s.known_instances == {"b": b}


def test_what_others_tell_reaches_policies_and_predictors():
    policy, told = First(), []
    policy.cursor = SimpleNamespace(receive=told.append)
    policies, predictor = {"first": policy, "other": First()}, Fixed()
    s = Scheduler([instance("a")], policies, predictor, use_targets=told.append)
    targets, turns = {None: Targets(attainment=0.8)}, {"m": ("a", "m")}
    for event in (
        TargetsChanged(targets),
        PeerTurned("first", turns),
        PeerTurned("other", turns),
        PeerTurned("nobody", turns),
        QualityReported("m", PromptFeatures((), (), ()), 0.5, recorded=True),
        PeerObserved(b"an observation"),
        PredictorsChanged(SimpleNamespace(name="others")),
    ):
        assert s.handle(event, 1.0) == []
    assert told == [targets, turns]
    assert predictor.observed == [("quality", "m", 1, 0.5), ("message", "an observation", 1, 1.0)]
    assert predictor.name == "others"


def test_a_changed_fleet_serves_the_queue():
    a = instance("a", slots=1)
    s = scheduler(a)
    for name in ("r1", "r2", "r3"):
        s.handle(Arrived(request(name)), 0.0)
    sent = dispatched(s.handle(FleetChanged((a, instance("b", slots=1)), s.settings), 1.0))
    assert (sent.request_id, sent.candidate.instance) == ("r2", "b")
    out = s.handle(FleetChanged((), s.settings), 2.0)  # nobody is left to wait for
    assert (refused(out).code, s.queue_depth, s.live) == ("no_instance", 0, 2)


def test_changed_settings_hold_from_the_next_decision():
    s = scheduler(instance("a", slots=1), max_queue=0)
    s.handle(Arrived(request("r1")), 0.0)
    assert refused(s.handle(Arrived(request("r2")), 0.0)).code == "server_overloaded"
    s.handle(FleetChanged(tuple(s.instances.values()), SchedulerSettings(max_queue=1)), 1.0)
    assert s.handle(Arrived(request("r3", at=1.0)), 1.0) == []


def test_a_drained_instance_takes_nobody_until_its_drain_ends():
    a, b = instance("a", slots=1), instance("b", slots=1)
    s = scheduler(a, b)
    assert s.handle(DrainChanged("a", True), 0.0) == []
    assert s.handle(DrainChanged("nobody", True), 0.0) == []
    assert dispatched(s.handle(Arrived(request("r1")), 0.0)).candidate.instance == "b"
    s.handle(Arrived(request("r2")), 0.0)
    sent = dispatched(s.handle(DrainChanged("a", False), 1.0))
    assert (sent.request_id, sent.candidate.instance) == ("r2", "a")
    s.handle(Arrived(request("r3")), 1.0)
    # The last instance that could take it goes: it need not wait for its time to pass.
    s.handle(DrainChanged("a", True), 2.0)
    assert refused(s.handle(DrainChanged("b", True), 2.0)).code == "no_instance"


def test_stale_reports_of_old_attempts_are_ignored():
    s = scheduler(instance("a"), instance("b"))
    s.handle(Arrived(request()), 0.0)
    s.handle(failed("r1", 1), 0.1)
    assert s.handle(FirstToken("r1", 1), 0.2) == []
    assert s.handle(Ended("r1", 1, OK), 0.2) == []
    assert s.live == 1


def test_those_who_wait_come_before_newcomers_when_a_returning_instance_opens_slots():
    s = scheduler(instance("a", slots=100), eject_after=1, return_after=1)
    s.handle(Probed("a", False), 0.0)
    s.handle(Probed("a", True), 1.0)
    for n in range(3):
        s.handle(Arrived(request(f"r{n}", at=1.0)), 1.0)
    assert s.queue_depth == 2  # one slot so far
    assert s.wake_at == 1.5  # there may be another one then
    out = s.handle(Arrived(request("late", at=1.15)), 1.15)
    assert [i.request_id for i in out] == ["r1"]  # two slots now
    assert s.queue_depth == 2


def test_a_retry_keeps_its_own_time_limit():
    s = scheduler(instance("a"), instance("b"))
    s.handle(Arrived(request("old", expires_at=600.0, client_streams=False)), 0.0)
    s.handle(FirstToken("old", 1), 1.0)
    s.handle(Arrived(request("young", at=300.0, expires_at=900.0)), 300.0)
    s.handle(failed("old", output_tokens=1), 301.0)
    assert s.wake_at == 600.0
    assert refused(s.handle(Tick(), 600.0)).outcome is Outcome.EXPIRED_BEFORE_FIRST_TOKEN
    assert s.wake_at == 900.0


@pytest.mark.parametrize(("decodes", "context"), [(True, 101), (False, 100)])
def test_a_context_that_just_holds_the_prompt_and_a_token(decodes: bool, context: int):
    s = scheduler(instance("a", context_tokens=context))
    dispatched(s.handle(Arrived(request(decodes=decodes)), 0.0))


def test_a_context_that_holds_all_the_output_asked_for_is_preferred():
    s = scheduler(instance("a", context_tokens=1000), instance("b", context_tokens=8000))
    sent = dispatched(s.handle(Arrived(request("r1", max_tokens=2000)), 0.0))
    told = {each.candidate.instance: each.reason for each in sent.decision.considered}
    assert told == {"b": None, "a": "the context has room for the prompt, but not for max_tokens too"}
    assert dispatched(s.handle(Arrived(request("r2", max_tokens=500)), 0.0)).candidate.instance == "a"
    # Each of four prompts has its own context.
    four = request("four", prompt_tokens=1600, longest_prompt_tokens=400, choices=4, max_tokens=500)
    assert dispatched(s.handle(Arrived(four), 0.0)).candidate.instance == "a"
    # Nobody holds it: the engine has the last word.
    assert dispatched(s.handle(Arrived(request("r3", max_tokens=9000)), 0.0)).candidate.instance == "a"


def test_a_request_waits_for_a_context_that_holds_all_the_output_asked_for():
    s = scheduler(instance("a", context_tokens=1000), instance("b", context_tokens=8000, slots=1))
    s.handle(Arrived(request("r1", max_tokens=2000)), 0.0)
    assert s.handle(Arrived(request("r2", max_tokens=2000)), 0.0) == []
    assert dispatched(s.handle(Arrived(request("r3", max_tokens=500)), 0.0)).candidate.instance == "a"
    assert s.handle(Ended("r3", 1, OK, output_tokens=1), 0.1)[0].request_id == "r3"
    sent = dispatched(s.handle(Ended("r1", 1, OK, output_tokens=1), 0.2))
    assert (sent.request_id, sent.candidate.instance) == ("r2", "b")
    assert dispatched(s.handle(Arrived(request("r4", max_tokens=9000)), 0.3)).candidate.instance == "a"
