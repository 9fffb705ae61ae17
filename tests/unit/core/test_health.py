"""Who takes an instance out, and for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import health
from router.core.events import Arrived, Ended, FailureKind, FirstToken, Probed
from router.core.types import EndedHow
from tests.unit.core.worlds import dispatched, failed, instance, refused, request, scheduler

#: What happens at one instance, with eject_after=3 and return_after=2: an owner's request fails, `ok` is an answer,
#: `refused` a connection that cannot be made, `good` and `bad` are probes.
CASES = [
    ("no connection, whoever asks", ["refused"] * 3, False, set()),
    ("bad probes", ["bad"] * 3, False, set()),
    ("too few", ["a", "b"], True, set()),
    ("two owners", ["a", "b", "a"], False, set()),
    ("one owner is out by itself", ["a", "a", "a"], True, {"a"}),
    ("one owner, for ever", ["a"] * 50, True, {"a"}),
    ("of one owner two count", ["a", "a", "b"], False, set()),
    ("each one a little", ["a", "b", "c"], False, set()),
    ("an answer between", ["a", "b", "ok", "a", "b"], True, set()),
    ("without keys all are one", [None, None, None], False, set()),
    ("connections are no requests", ["refused", "refused", "a", "a"], True, set()),
    ("an owner comes back by probes", ["a", "a", "a", "good", "good"], True, set()),
    ("not by one", ["a", "a", "a", "good"], True, {"a"}),
    ("in a row", ["a", "a", "a", "good", "bad", "good"], True, {"a"}),
    ("and is counted anew", ["a", "a", "a", "good", "good", "a", "a"], True, set()),
    ("all come back", ["refused"] * 3 + ["good", "good"], True, set()),
    ("by good probes in a row", ["refused"] * 3 + ["good", "bad", "good"], False, set()),
    ("whatever old requests do", ["refused"] * 3 + ["good", "refused", "a", "b", "a", "good"], True, set()),
    ("good probes before do not count", ["good", "good"] + ["refused"] * 3 + ["good"], False, set()),
    ("one owner too", ["refused"] * 3 + ["a"] * 3, False, set()),
    ("to a clean slate", ["refused"] * 3 + ["good", "good", "refused", "a", "a"], True, set()),
    ("bad probes between good ones", ["bad", "bad", "good", "bad"], True, set()),
]


def happen(one, event, now=0.0):
    if event == "refused":
        health.connection_failed(one, 3)
    elif event in {"good", "bad"}:
        health.probed(one, event == "good", 3, 2, now)
    elif event == "ok":
        health.answered(one)
    else:
        health.request_failed(one, event, 3, 2)


@pytest.mark.parametrize(
    ("events", "healthy", "out_for"), [each[1:] for each in CASES], ids=[c[0] for c in CASES]
)
def test_who_is_out(events, healthy, out_for):
    one = instance("i")
    for event in events:
        happen(one, event)
    assert (one.healthy, set(one.ejected_for)) == (healthy, out_for)


def test_the_first_failure_of_a_second_owner_may_be_enough():
    one = instance("i")
    health.request_failed(one, "a", eject_after=1, return_after=2)
    assert (one.healthy, one.ejected_for) == (True, {"a": 2})
    health.request_failed(one, "b", eject_after=1, return_after=2)
    assert (one.healthy, one.ejected_for) == (False, {})


@given(st.lists(st.sampled_from(["a", "ok", "good"])), st.integers(1, 5))
def test_one_owner_never_takes_it_out_for_others(events, eject_after):
    one = instance("i")
    for event in events:
        if event == "a":
            health.request_failed(one, "a", eject_after, 2)
        else:
            happen(one, event)
    assert one.healthy
    assert len(one.request_failures) <= 1


# --- whose fault it is --------------------------------------------------------------------------------------
@pytest.mark.parametrize("owner", [None, "a"])
def test_a_request_that_fails_everywhere_is_blamed_itself(owner):
    several = [instance(name) for name in "abc"]
    s = scheduler(*several, eject_after=1, max_attempts=3)
    for number in range(20):
        id = f"poison-{number}"
        dispatched(s.handle(Arrived(request(id, owner=owner)), 0.0))
        for attempt in (1, 2):
            dispatched(s.handle(failed(id, attempt), 0.1))
        assert refused(s.handle(failed(id, 3), 0.2)).code == "upstream_error"
    assert all(each.healthy and not each.ejected_for for each in several)


def test_an_answer_elsewhere_tells_whose_fault_it_was():
    a, b = instance("a"), instance("b")
    s = scheduler(a, b, eject_after=2)
    for number in (1, 2):
        id = f"r{number}"
        assert dispatched(s.handle(Arrived(request(id)), 0.0)).candidate.instance == "a"
        assert dispatched(s.handle(failed(id, 1), 0.1)).candidate.instance == "b"
        assert a.healthy  # not before it is known
        s.handle(FirstToken(id, 2), 0.2)
        assert a.healthy is (number == 1)
        s.handle(Ended(id, 2, EndedHow.OK, output_tokens=3), 0.3)


def test_an_answer_elsewhere_tells_it_of_all_at_which_the_request_failed():
    several = [instance(name) for name in "abc"]
    s = scheduler(*several, eject_after=1)
    s.handle(Arrived(request()), 0.0)
    s.handle(failed(attempt=1), 0.1)
    s.handle(failed(attempt=2), 0.2)
    s.handle(Ended("r1", 3, EndedHow.OK, output_tokens=3), 0.3)
    assert [each.healthy for each in several] == [False, False, True]


def test_an_instance_that_answers_between_failures_is_well():
    a = instance("a")
    s = scheduler(a, eject_after=2)
    for number in range(6):
        id = f"r{number}"
        s.handle(Arrived(request(id)), 0.0)
        s.handle(failed(id) if number % 2 else Ended(id, 1, EndedHow.OK, output_tokens=3), 0.1)
    assert a.healthy


def test_a_poison_that_only_one_kind_of_engine_takes_hurts_its_own_key_only():
    a, b = instance("a"), instance("b")
    s = scheduler(a, b, eject_after=2, return_after=1)
    for number in range(5):
        id = f"poison-{number}"
        at = dispatched(s.handle(Arrived(request(id, owner="evil")), 0.0)).candidate.instance
        assert at == ("a" if number < 2 else "b")
        if at == "a":
            dispatched(s.handle(failed(id, 1), 0.1))
        s.handle(Ended(id, 2 if at == "a" else 1, EndedHow.OK, output_tokens=1), 0.2)
    assert (a.healthy, set(a.ejected_for)) == (True, {"evil"})
    assert dispatched(s.handle(Arrived(request("good", owner="good")), 1.0)).candidate.instance == "a"
    s.handle(Probed("a", True), 2.0)
    assert dispatched(s.handle(Arrived(request("back", owner="evil")), 3.0)).candidate.instance == "a"


def test_a_stream_that_breaks_counts_when_nobody_can_tell():
    a = instance("a")
    s = scheduler(a, eject_after=2)
    for owner in ("one", "two"):
        s.handle(Arrived(request(owner, owner=owner)), 0.0)
        s.handle(FirstToken(owner, 1), 0.1)
        s.handle(failed(owner, 1), 0.2)
    assert not a.healthy


@pytest.mark.parametrize(
    ("kind", "status", "blamed"),
    [
        (FailureKind.ERROR, None, True),
        (FailureKind.ERROR, 500, True),
        (FailureKind.ERROR, 503, False),  # it has too much to do
        (FailureKind.ERROR, 429, False),
        *((FailureKind.ERROR, status, False) for status in (408, 413, 414, 415, 431, 501)),
        (FailureKind.UNREACHABLE, None, True),
        (FailureKind.REJECTED, 400, False),
        (FailureKind.TOO_LARGE, None, False),
        (FailureKind.NO_SOCKET, None, False),
    ],
)
def test_which_failures_count_against_an_instance(kind, status, blamed):
    a = instance("a")
    s = scheduler(a, eject_after=2)
    for number in range(4):
        s.handle(Arrived(request(f"r{number}")), 0.0)
        if number < 2 or not blamed:
            s.handle(failed(f"r{number}", 1, kind, status=status), 0.1)
    assert a.healthy is not blamed
