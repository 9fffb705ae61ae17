"""What a scheduler makes of what other replicas of the router tell."""

from __future__ import annotations

from router.core.events import Arrived, Dispatch, Ended, FirstToken, PeerLoadReported, Probed
from router.core.health import OWN_WORD_S
from router.core.state import Work
from router.core.types import EndedHow
from tests.unit.core.worlds import instance, request, scheduler


def test_the_work_of_others_counts_and_goes_as_it_came():
    a = instance("a", slots=10)
    s = scheduler(a)
    s.handle(Arrived(request("mine")), 0.0)
    s.handle(PeerLoadReported({"a": Work(3, 2, 700, 900), "gone": Work(1, 0, 0, 9)}), 0.1)
    assert a.work == Work(4, 3, 800, 900)
    assert a.own == Work(1, 1, 100, 0)
    s.handle(FirstToken("mine", 1), 0.2)
    s.handle(PeerLoadReported({"a": Work(1, 0, 0, 300)}), 0.3)
    assert (a.in_flight, a.awaiting_first_token, a.pending_prefill_tokens) == (2, 0, 0)
    s.handle(Ended("mine", 1, EndedHow.OK, output_tokens=5), 0.4)
    s.handle(PeerLoadReported({}), 0.5)
    assert a.work == a.own == Work()


def test_a_queued_request_goes_when_another_replica_frees_the_slot():
    s = scheduler(instance("a", slots=1))
    s.handle(PeerLoadReported({"a": Work(1)}), 0.0)
    assert s.handle(Arrived(request("waits", at=0.1)), 0.1) == []
    assert s.handle(PeerLoadReported({"a": Work(1, 0, 0, 50)}), 0.2) == []
    (dispatch,) = s.handle(PeerLoadReported({}), 0.3)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.request_id == "waits"


def test_what_another_ejects_is_out_until_our_own_probes_say_otherwise():
    a, b = instance("a"), instance("b")
    s = scheduler(a, b, return_after=2)
    s.handle(PeerLoadReported({}, frozenset({"a", "unknown"})), 1.0)
    assert (a.healthy, b.healthy, a.ejections) == (False, True, 0)
    (dispatch,) = s.handle(Arrived(request("r", at=1.1)), 1.1)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.candidate.instance == "b"
    s.handle(Probed("a", True), 2.0)
    assert not a.healthy
    s.handle(Probed("a", True), 3.0)
    assert a.healthy


def test_after_our_own_probes_another_replicas_word_counts_no_more_for_a_while():
    a = instance("a")
    s = scheduler(a, eject_after=2, return_after=1)
    s.handle(PeerLoadReported({}, frozenset({"a"})), 0.0)
    s.handle(Probed("a", True), 1.0)
    for at in (2.0, 10.0, OWN_WORD_S - 1.0):
        s.handle(PeerLoadReported({}, frozenset({"a"})), at)
        assert a.healthy, at
    s.handle(Probed("a", False), OWN_WORD_S - 0.9)
    s.handle(Probed("a", False), OWN_WORD_S - 0.8)
    assert (a.healthy, a.ejections) == (False, 1)  # our own failures always count
    s.handle(Probed("a", True), OWN_WORD_S - 0.7)
    s.handle(PeerLoadReported({}, frozenset({"a"})), OWN_WORD_S + 1.0)
    assert not a.healthy
