"""A policy or a predictor that raises ends the request that was being placed, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.events import Arrived, Cancel, Dispatch, Ended, Finish, FirstToken, Tick
from router.core.types import EndedHow, Outcome, Prediction, Slo
from tests.unit.core.worlds import First, Fixed, dispatched, finished, instance, request, scheduler


class Faulty(First):
    """Fails on the requests named."""

    def __init__(self, *ids: str) -> None:
        super().__init__()
        self.ids = ids

    def choose(self, request: Any, options: Any, rng: Any) -> Any:
        if request.id in self.ids:
            raise ValueError(request.id)
        return super().choose(request, options, rng)


class Unlearned(Fixed):
    """Fails to learn."""

    def observe_dispatch(self, *_: Any) -> None:
        raise ValueError("dispatch")

    def observe_end(self, *_: Any) -> None:
        raise ValueError("end")


class Deaf(First):
    """Fails to hear what came of its choices."""

    def ended(self, *_: Any) -> None:
        raise ValueError("ended")


class Blind(First):
    predicts = False


class Hearing(Blind):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def ended(self, request: Any, *_: Any) -> None:
        self.heard.append(request.id)


class Late(Fixed):
    """Expects the first token by 0.5 s, and gains by a second attempt after that."""

    def predict(self, request: Any, candidate: Any, instance: Any, now: float) -> Prediction:
        return Prediction(output_tokens_p50=100.0, ttft_s_p50=0.1, ttft_s_p95=0.5, p_miss=0.04)


def faulty(*ids: str, slots: int | None = None, **settings: Any) -> tuple[Any, list[str]]:
    faults: list[str] = []
    s = scheduler(instance("a", slots=slots), instance("b", slots=slots), policy=Faulty(*ids), **settings)
    s.on_fault = lambda error: faults.append(str(error))
    return s, faults


def test_the_request_that_arrives_ends_with_an_internal_error() -> None:
    s, faults = faulty("r1")
    settlement = finished(s.handle(Arrived(request()), 0.0))
    assert (settlement.outcome, settlement.error_code) == (Outcome.BACKEND_ERROR, "internal_error")
    assert (faults, s.live) == (["r1"], 0)


def test_a_fault_in_the_queue_leaves_the_other_instructions() -> None:
    s, faults = faulty("r3", slots=1, max_queue=10)
    for name in ("r1", "r2", "r3", "r4"):
        s.handle(Arrived(request(name)), 0.0)
    assert s.queue_depth == 2
    out = s.handle(Ended("r1", 1, EndedHow.OK), 1.0)
    found = [(type(each), each.request_id) for each in out]
    assert found == [(Finish, "r1"), (Finish, "r3"), (Dispatch, "r4")]
    assert out[1].settlement.error_code == "internal_error"
    assert (faults, s.queue_depth, s.live) == (["r3"], 0, 2)


def test_a_fault_in_a_hedge_cancels_what_is_under_way() -> None:
    policy = Faulty()
    s = scheduler(instance("a"), instance("b"), policy=policy, predictor=Late(), hedge_share=1.0)
    faults: list[Exception] = []
    s.on_fault = faults.append
    s.handle(Arrived(request(slo=Slo(ttft_s=1.0))), 0.0)
    policy.ids = ("r1",)
    out = s.handle(Tick(), 0.5)
    assert [type(each) for each in out] == [Cancel, Finish]
    assert (finished(out).error_code, len(faults), s.live) == ("internal_error", 1, 0)


def test_without_a_driver_that_takes_faults_they_are_raised() -> None:
    s, _ = faulty("r1")
    s.on_fault = None
    with pytest.raises(ValueError, match="r1"):
        s.handle(Arrived(request()), 0.0)


# --- what is postponed ------------------------------------------------------------------------------------
def test_what_fails_to_learn_loses_no_instruction_of_the_event() -> None:
    s = scheduler(instance("a", slots=1), policy=Deaf(), predictor=Unlearned(), max_queue=10)
    faults: list[str] = []
    s.on_fault = lambda error: faults.append(str(error))
    for name in ("r1", "r2", "r3"):
        s.handle(Arrived(request(name, slo=Slo(ttft_s=9.0))), 0.0)
    out = s.handle(Ended("r1", 1, EndedHow.OK), 1.0)
    assert [(type(each), each.request_id) for each in out] == [(Finish, "r1"), (Dispatch, "r2")]
    assert finished(out[:1]).outcome is Outcome.OK
    assert (faults, s.live) == (["dispatch", "end", "ended", "dispatch"], 2)


def test_a_request_ends_in_a_tick_whoever_fails_to_learn_from_it() -> None:
    s = scheduler(instance("a"), policy=Deaf())
    s.late = True
    faults: list[str] = []
    s.on_fault = lambda error: faults.append(str(error))
    for name in ("r1", "r2"):
        s.handle(Arrived(request(name, expires_at=1.0)), 0.0)
    assert [type(each) for each in s.handle(Tick(), 1.0)] == [Cancel, Cancel]
    for name in ("r1", "r2"):
        finished(s.handle(Ended(name, 1, EndedHow.CANCELLED), 1.0))
    assert (faults, s.live) == (["ended", "ended"], 0)


def test_a_policy_without_predictions_does_without_one_that_fails() -> None:
    s = scheduler(instance("a"), policy=Blind())
    s.predictor.predict = lambda *_: 1 / 0  # type: ignore[method-assign]
    faults: list[Exception] = []
    s.on_fault = faults.append
    sent = dispatched(s.handle(Arrived(request()), 0.0))
    assert (sent.prediction, s.instances["a"].in_flight, len(faults)) == (Prediction(), 1, 1)
    assert finished(s.handle(Ended("r1", 1, EndedHow.OK, 5), 1.0)).outcome is Outcome.OK
    assert (s.instances["a"].in_flight, s.live) == (0, 0)


def test_instructions_come_before_what_they_do_not_need() -> None:
    policy, predictor = Blind(), Fixed()
    s = scheduler(instance("a"), policy=policy, predictor=predictor)
    sent = dispatched(s.respond(Arrived(request()), 0.0))
    assert (sent.prediction, predictor.observed) == (Prediction(), [])
    s.respond(FirstToken("r1", 1), 0.5)
    assert sent.prediction.output_tokens_p50 == 100.0
    assert predictor.observed == [("dispatch", "r1", 1, 0.0)]
    finished(s.respond(Ended("r1", 1, EndedHow.OK, 5), 1.0))
    s.catch_up()
    assert [each[0] for each in predictor.observed] == ["dispatch", "ttft", "end"]


def test_without_a_driver_that_takes_faults_the_rest_is_still_done_later() -> None:
    policy, predictor = Hearing(), Fixed()
    s = scheduler(instance("a"), policy=policy, predictor=predictor)
    s.policies["first"].placed = lambda *_: 1 / 0  # type: ignore[method-assign, index]
    s.predictor.predict = lambda *_: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        s.handle(Arrived(request()), 0.0)
    assert predictor.observed == [("dispatch", "r1", 1, 0.0)]
    predictor.observe_end = lambda *_: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        s.handle(Ended("r1", 1, EndedHow.OK, 5), 1.0)
    s.catch_up()
    assert policy.heard == ["r1"]
