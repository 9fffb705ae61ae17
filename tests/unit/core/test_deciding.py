"""One decision: exploration with its propensity, dry runs, deferral and quality floors in the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from router.core.deciding import EXPLORED, Decider
from router.core.errors import Refusal
from router.core.events import (
    Arrived,
    Dispatch,
    Ended,
    Finish,
    FirstToken,
    FleetChanged,
    Left,
    LoadReported,
    Probed,
    Tick,
)
from router.core.interfaces import Choice, Option, Policy
from router.core.scheduler import Scheduler
from router.core.settings import SchedulerSettings
from router.core.state import Instance
from router.core.types import Candidate, EndedHow, LoadReport, Request, Slo
from tests.unit.core.worlds import Fixed, dispatched, failed, finished, instance, refused, request, scheduler

OK = EndedHow.OK


class Choosy(Policy):
    """Takes the first option, holds all others for as good; defers while told to. Hears what came of it."""

    name = "first"
    predicts = True

    def __init__(self) -> None:
        self.defers = False
        self.alternatives = True
        self.asked = 0
        self.heard: list[tuple[str, str, bool | None]] = []
        self.placements: list[tuple[str, Sequence[Option], Choice]] = []
        self.refusals: list[tuple[str, list[float | None]]] = []

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        self.asked += 1
        others = range(1, len(options))
        reasons = [None, *("not first" for _ in others)]
        alternatives = others if self.alternatives else ()
        scores = [None] * len(options)
        return Choice(0, scores, reasons, alternatives=alternatives, defer=self.defers, memo=request.id)

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        self.placements.append((request.id, options, choice))

    def refused(self, request: Request, options: Sequence[Option]) -> None:
        p_misses = [each.prediction.p_miss if each.prediction else None for each in options]
        self.refusals.append((request.id, p_misses))

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        self.heard.append((request.id, candidate.instance, met))


def options(*names: str) -> list[Option]:
    return [Option(each.candidates["m"], each) for each in map(instance, names)]


def test_exploration_takes_others_as_often_as_its_propensity_says():
    decider = Decider({"first": Choosy()}, Fixed(), Random(1))
    taken: Counter[str] = Counter()
    for n in range(6000):
        decided = decider.decide(request(f"r{n}"), options("a", "b", "c"), 0.0, explore=0.3)
        name = decided.option.candidate.instance
        taken[name] += 1
        assert decided.decision.propensity == pytest.approx(0.8 if name == "a" else 0.1)
        reasons = [each.reason for each in decided.decision.considered]
        assert reasons.count(None) == 1
        assert reasons[decided.decision.chosen] is None
        assert (EXPLORED in reasons) is (name != "a")
    for name, share in (("a", 0.8), ("b", 0.1), ("c", 0.1)):
        assert taken[name] / 6000 == pytest.approx(share, abs=0.02)


def test_a_dry_run_does_not_explore_nor_does_a_policy_without_alternatives():
    policy = Choosy()
    s = world(policy, instance("a"), instance("b"), explore=1.0)
    for _ in range(50):
        assert s.decide(request(), 0.0).chosen == 0
    policy.alternatives = False
    decider = Decider({"first": policy}, Fixed(), Random(1))
    decided = decider.decide(request(), options("a", "b"), 0.0, explore=1.0)
    assert (decided.option.candidate.instance, decided.decision.propensity) == ("a", 1.0)


def test_a_seeded_request_explores_or_not_by_its_seed():
    decider = Decider({"first": Choosy()}, Fixed(), Random(1))
    for seed in range(20):
        first = decider.decide(request(seed=seed), options("a", "b", "c"), 0.0, explore=0.5)
        for _ in range(3):
            again = decider.decide(request(seed=seed), options("a", "b", "c"), 0.0, explore=0.5)
            assert again.option.candidate == first.option.candidate


# --- in the scheduler ---------------------------------------------------------------------------------
def world(policy: Choosy, *instances: Instance, **settings: Any) -> Scheduler:
    return scheduler(*instances, policy=policy, **settings)


def test_a_policy_sees_what_was_placed_with_the_options_that_were_decided_on_also_when_exploring():
    policy = Choosy()
    s = world(policy, instance("a"), instance("b"), instance("c"), explore=0.5)
    sent = [s.handle(Arrived(request(f"r{n}")), 0.0)[0] for n in range(60)]
    assert len({each.candidate.instance for each in sent}) > 1
    for each, (request_id, options_, choice) in zip(sent, policy.placements, strict=True):
        assert (request_id, choice.memo) == (each.request_id, each.request_id)
        assert options_[choice.index].candidate == each.candidate
        assert choice.propensity == each.decision.propensity
        assert [option.prediction for option in options_] == [c.prediction for c in each.decision.considered]


def test_a_dry_run_and_a_deferred_request_place_nothing():
    policy = Choosy()
    s = world(policy, instance("a"))
    s.decide(request("dry"), 0.0)
    policy.defers = True
    assert s.decide(request("dry"), 0.0).chosen == 0
    with pytest.raises(Refusal, match="scarce"):
        s.decide(request("hard", slo=Slo(ttft_s=1.0), hard=True), 0.0)
    assert s.handle(Arrived(request("r")), 0.0) == []
    assert policy.placements == []


def test_a_deferred_request_waits_until_its_policy_sends_it():
    policy = Choosy()
    s = world(policy, instance("a"))
    policy.defers = True
    assert s.handle(Arrived(request("r", slo=Slo(ttft_s=1.0))), 0.0) == []
    assert s.queue_depth == 1
    wake_at = s.wake_at
    assert 0.0 < wake_at < 1.0
    assert s.handle(Tick(), wake_at) == []
    policy.defers = False
    wake_at = s.wake_at
    assert wake_at is not None
    (sent,) = s.handle(Tick(), wake_at)
    assert (sent.request_id, s.queue_depth) == ("r", 0)


def test_deferred_ones_are_not_thought_over_at_every_event():
    policy = Choosy()
    policy.defers = True
    s = world(policy, instance("a"))
    for n in range(20):
        s.handle(Arrived(request(f"r{n}")), 0.0)
    for begin in (0.0, 0.05):
        s.handle(Tick(), begin)
        asked = policy.asked
        for n in range(100):
            s.handle(LoadReported("a", LoadReport()), begin + n * 1e-5)
        assert policy.asked == asked


def test_one_that_waited_for_a_slot_may_be_deferred():
    policy = Choosy()
    s = world(policy, instance("a", slots=1))
    for name in ("r0", "r1"):
        s.handle(Arrived(request(name)), 0.0)
    policy.defers = True
    finished(s.handle(Ended("r0", 1, OK), 1.0))
    asked = policy.asked
    s.handle(LoadReported("a", LoadReport()), 1.01)
    assert (policy.asked, s.queue_depth) == (asked, 1)
    policy.defers = False
    assert dispatched(s.handle(Tick(), s.wake_at)).request_id == "r1"


def test_deferred_ones_of_other_models_are_thought_over_apart_and_older_ones_first():
    policy = Choosy()
    policy.defers = True
    s = world(policy, instance("a", "m"), instance("b", "k"))
    for name, model in (("m0", "m"), ("m1", "m"), ("k0", "k")):
        assert s.handle(Arrived(request(name, models=(model,))), 0.0) == []
    for n in range(10):  # further arrivals do not put it off
        s.handle(Arrived(request(f"late{n}", models=("m",))), 0.01 * n)
    policy.defers = False
    sent = s.handle(Arrived(request("new", models=("m",))), 0.1)
    assert [each.request_id for each in sent][:3] == ["m0", "m1", "k0"]
    assert sent[-1].request_id == "new"


def test_in_a_full_queue_a_light_key_takes_the_place_of_a_heavy_one():
    s = world(Choosy(), instance("a", slots=1), max_queue=2)
    for n in range(3):
        s.handle(Arrived(request(f"h{n}", key="heavy")), 0.0)
    (finish,) = out = s.handle(Arrived(request("l", key="light")), 0.1)
    assert (finish.request_id, refused(out).code) == ("h2", "server_overloaded")
    (finish,) = s.handle(Arrived(request("h3", key="heavy")), 0.1)
    assert finish.request_id == "h3"
    served = [dispatched(s.handle(Ended(name, 1, OK, 1), 1.0)).request_id for name in ("h0", "h1")]
    assert served == ["h1", "l"]


def test_a_hard_slo_that_its_policy_gives_up_is_refused_and_every_candidate_has_a_reason() -> None:
    policy = Choosy()
    policy.defers = True
    s = world(policy, instance("a"), instance("b"))
    asked = request("r", slo=Slo(ttft_s=1.0), hard=True)
    with pytest.raises(Refusal) as dry:
        s.decide(asked, 0.0)
    refusal = refused(s.handle(Arrived(asked), 0.0))
    for each in (dry.value, refusal):
        assert (each.status, each.code) == (429, "slo_unattainable")
        assert "scarce" in each.message
        assert each.decision.chosen is None
        assert [one.reason for one in each.decision.considered] == [
            "the hard SLO is given up: the request would take the time of several others",
            "not first",
        ]
    assert (policy.placements, policy.refusals, s.queue_depth) == ([], [], 0)


def test_a_policy_hears_which_hard_slos_nobody_meets() -> None:
    policy = Choosy()
    s = world(policy, instance("a"), instance("b"), predictor=Fixed({"a": 0.7, "b": 0.6}))
    asked = request("r", slo=Slo(ttft_s=1.0), hard=True)
    with pytest.raises(Refusal):
        s.decide(asked, 0.0)
    assert policy.refusals == []
    refused(s.handle(Arrived(asked), 0.0))
    assert policy.refusals == [("r", [0.7, 0.6])]


def test_a_request_is_not_deferred_for_more_than_half_its_time():
    policy = Choosy()
    policy.defers = True
    s = world(policy, instance("a"))
    assert s.handle(Arrived(request("r", expires_at=10.0)), 0.0) == []
    assert s.handle(Tick(), 4.9) == []
    assert [type(each) for each in s.handle(Tick(), 5.0)] == [Dispatch]


@pytest.mark.parametrize("max_queue", [0, 1])
def test_what_could_be_sent_is_not_deferred_where_the_queue_has_no_place(max_queue: int) -> None:
    policy = Choosy()
    policy.defers = True
    s = world(policy, instance("a"), max_queue=max_queue)
    for n in range(max_queue):
        assert s.handle(Arrived(request(f"r{n}")), 0.0) == []
    assert [type(each) for each in s.handle(Arrived(request("r")), 0.0)] == [Dispatch]


def test_a_shorter_queue_after_a_reload_refuses_nobody_who_waits():
    policy = Choosy()
    s = world(policy, instance("a", slots=1), max_queue=8)
    for n in range(6):
        s.handle(Arrived(request(f"r{n}")), 0.0)
    s.handle(FleetChanged(tuple(s.instances.values()), SchedulerSettings(max_queue=2)), 0.5)
    policy.defers = True  # who was only waiting for a slot is held back now
    assert [type(each) for each in s.handle(Ended("r0", 1, OK, 1), 1.0)] == [Finish]
    assert s.queue_depth == 5


def test_a_policy_that_learns_hears_what_came_of_its_choices():
    policy = Choosy()
    s = world(policy, instance("a"))
    slo = Slo(e2e_s=1.0)
    for name, fields in (
        ("none", {}),
        *((name, {"slo": slo}) for name in ("kept", "late", "left", "broken")),
    ):
        s.handle(Arrived(request(name, **fields)), 0.0)
    s.handle(Arrived(request("nowhere", models=("other",), slo=slo)), 0.0)
    s.handle(Ended("kept", 1, OK, 3), 0.5)
    s.handle(Ended("late", 1, OK, 3), 1.5)
    s.handle(Ended("none", 1, OK, 3), 1.5)
    s.handle(Left("left"), 1.5)
    s.handle(failed("broken"), 1.5)
    assert policy.heard == [
        ("kept", "a", True),
        ("late", "a", False),
        ("none", "a", None),
        ("left", "a", None),
        ("broken", "a", False),
    ]


def with_a_full_engine(report: LoadReport) -> Scheduler:
    """Four requests that have no first token are at instance `a`, which reports this."""
    s = world(Choosy(), instance("a"))
    for number in range(4):
        assert len(s.handle(Arrived(request(f"r{number}")), 0.0)) == 1
    s.handle(LoadReported("a", report), 0.1)
    return s


def test_a_first_token_makes_room_in_an_engines_queue_for_the_first_in_ours():
    s = with_a_full_engine(LoadReport(running=1, waiting=9))
    assert s.handle(Arrived(request("r4")), 0.2) == []
    assert s.handle(Arrived(request("r5")), 0.3) == []
    (sent,) = s.handle(FirstToken("r0", 1), 0.4)
    assert sent.request_id == "r4"


def test_an_engine_whose_memory_fills_may_have_a_queue_before_it_reports_one():
    s = with_a_full_engine(LoadReport(running=0, waiting=0, kv_usage=0.4))
    assert len(s.handle(Arrived(request("r4")), 0.2)) == 1
    s.handle(LoadReported("a", LoadReport(running=0, waiting=0, kv_usage=0.6)), 0.3)
    for number in range(5, 9):
        assert len(s.handle(Arrived(request(f"r{number}")), 0.4)) == 1
    assert s.handle(Arrived(request("r9")), 0.5) == []


def test_an_old_report_or_the_queue_of_other_clients_holds_nothing_back():
    s = with_a_full_engine(LoadReport(running=1, waiting=9))
    assert s.handle(Arrived(request("r4")), 0.2) == []
    assert len(s.handle(Arrived(request("r5")), 30.0)) == 1
    s = world(Choosy(), instance("a"))
    s.handle(LoadReported("a", LoadReport(running=1, waiting=9)), 0.0)
    for number in range(4):
        assert len(s.handle(Arrived(request(f"r{number}")), 0.1)) == 1
    assert s.handle(Arrived(request("r4")), 0.2) == []


def test_a_probe_serves_the_queue_when_the_last_report_is_too_old():
    s = with_a_full_engine(LoadReport(running=1, waiting=9))
    assert s.handle(Arrived(request("r4")), 0.2) == []
    assert s.handle(Probed("a", healthy=True), 10.0) == []
    (sent,) = s.handle(Probed("a", healthy=True), 10.2)
    assert sent.request_id == "r4"


class Judging(Fixed):
    """Expects a quality by instance, whatever the prior."""

    def qualities(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        return [{"a": 0.4, "b": 0.8}.get(each.instance) for each in candidates]


def test_a_quality_floor_is_held_against_what_is_predicted():
    fleet = [instance("a", quality=0.9), instance("b", quality=0.1), instance("c", quality=0.9)]
    s = scheduler(*fleet, policy=Choosy(), predictor=Judging())
    (sent,) = s.handle(Arrived(request("r", min_quality=0.7)), 0.0)
    assert sent.candidate.instance == "b"
    refusal = refused(s.handle(Arrived(request("r2", min_quality=0.85)), 0.0))
    assert (refusal.status, refusal.code) == (400, "quality_unattainable")
    with pytest.raises(Refusal):
        s.decide(request("r3", min_quality=0.85), 0.0)
