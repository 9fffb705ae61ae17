"""Requests wait for an instance that is starting."""

from __future__ import annotations

from router.core.events import Arrived, FleetChanged, Probed
from tests.unit.core.worlds import dispatched, instance, refused, request, scheduler


def starting(name):
    one = instance(name)
    one.healthy, one.starting = False, True
    return one


def test_a_request_waits_until_the_instance_answers_a_probe():
    one = starting("a")
    s = scheduler(one, eject_after=1, return_after=3)
    assert s.handle(Arrived(request("r")), 0.0) == []
    assert s.handle(Probed("a", False), 1.0) == []
    assert (s.queue_depth, one.starting, one.ejections) == (1, True, 0)
    assert dispatched(s.handle(Probed("a", True), 30.0)).candidate.instance == "a"
    assert (one.starting, one.healthy, one.returned_at) == (False, True, None)


def test_a_healthy_instance_is_used_meanwhile():
    s = scheduler(starting("a"), instance("b"))
    assert dispatched(s.handle(Arrived(request("r")), 0.0)).candidate.instance == "b"


def test_a_request_is_refused_when_the_instance_is_given_up():
    s = scheduler(starting("a"))
    s.handle(Arrived(request("r")), 0.0)
    assert refused(s.handle(FleetChanged((), s.settings), 1.0)).code == "no_instance"


def test_a_draining_instance_is_not_waited_for():
    one = starting("a")
    one.draining = True
    assert refused(scheduler(one).handle(Arrived(request("r")), 0.0)).code == "no_instance"
