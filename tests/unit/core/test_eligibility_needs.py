"""What a request needs of an engine decides who may take it, before anything else."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.eligibility import Eligible, eligible
from router.core.errors import Refusal
from router.core.events import Arrived, Ended
from router.core.fleet import Fleet
from router.core.money.account import RequestMoney
from router.core.state import Instance
from router.core.types import Candidate, Capability, EndedHow, Need, Outcome
from tests.unit.core.worlds import dispatched, failed, instance, refused, request, scheduler

SEVERAL = Need(Capability.SEVERAL_ANSWERS, "n")
ECHO = Need(Capability.ECHO, "echo")


def lacking(name: str, *unsupported: Capability, **settings: Any) -> Instance:
    made = instance(name, **settings)
    made.unsupported = frozenset(unsupported)
    return made


def sorted_out(*instances: Instance, **fields: Any) -> Eligible:
    wanted = request(**fields)
    roster = Fleet(instances).roster(("m",))
    return eligible(wanted, ["m"], roster, RequestMoney(wanted), frozenset(), 0.0)


@pytest.mark.parametrize(
    ("unsupported", "needs", "reason"),
    [
        ((), (), None),
        ((), (SEVERAL, ECHO), None),
        ((Capability.SEVERAL_ANSWERS,), (), None),
        ((Capability.SEVERAL_ANSWERS,), (ECHO,), None),
        ((Capability.SEVERAL_ANSWERS,), (SEVERAL,), "cannot give several answers"),
        ((Capability.ECHO,), (SEVERAL, ECHO), "cannot echo a prompt"),
        (tuple(Capability), (SEVERAL, ECHO), "cannot give several answers or echo a prompt"),
    ],
)
def test_who_cannot_do_it_is_passed_over(
    unsupported: tuple[Capability, ...], needs: tuple[Need, ...], reason: str | None
) -> None:
    found = sorted_out(lacking("a", *unsupported), instance("b"), needs=needs)
    assert found.refusal is None
    assert [each.instance.name for each in found.free] == (["a", "b"] if reason is None else ["b"])
    assert [(each.instance, why) for each, why in found.passed_over] == ([("a", reason)] if reason else [])


@pytest.mark.parametrize(
    ("unsupported", "needs", "message", "param"),
    [
        ([(SEVERAL,)], (SEVERAL,), "give several answers", "n"),
        (
            [(SEVERAL, ECHO)],
            (Need(Capability.SEVERAL_ANSWERS, "best_of"), ECHO),
            "give several answers and echo a prompt",
            "best_of",
        ),
        ([(ECHO,), (SEVERAL,)], (SEVERAL, ECHO), "give several answers and echo a prompt", "n"),
        ([(ECHO,)], (SEVERAL, ECHO), "echo a prompt", "echo"),
    ],
)
def test_if_nobody_can_it_is_the_clients_mistake(
    unsupported: list[tuple[Need, ...]], needs: tuple[Need, ...], message: str, param: str
) -> None:
    instances = [
        lacking(f"i{at}", *(need.capability for need in some), context_tokens=10, price=None)
        for at, some in enumerate(unsupported)
    ]
    refusal = sorted_out(*instances, needs=needs, min_quality=0.9, max_cost_usd=1e-9).refusal
    assert (refusal.status, refusal.code, refusal.param) == (400, "invalid_request", param)
    assert refusal.outcome is Outcome.REJECTED_INVALID
    assert refusal.message == f"No instance that serves m can {message}."


def test_without_any_candidate_nobody_lacks_anything() -> None:
    assert sorted_out(needs=(ECHO,)).refusal.code == "no_instance"


def test_of_those_who_can_the_other_checks_tell() -> None:
    """Who cannot do it has room; who can has none."""
    roomy = lacking("a", Capability.ECHO)
    found = sorted_out(roomy, instance("b", context_tokens=10), needs=(ECHO,))
    assert found.refusal.code == "context_length_exceeded"
    away = instance("b")
    away.healthy = False
    found = sorted_out(roomy, away, needs=(ECHO,))
    assert (found.refusal.status, found.refusal.code) == (503, "no_instance")
    full = instance("b", slots=1)
    full.in_flight = 1
    found = sorted_out(roomy, full, needs=(ECHO,))
    assert (found.refusal, [each.instance.name for each in found.busy]) == (None, ["b"])


def test_it_waits_for_one_that_can_and_is_tried_again_there_only() -> None:
    s = scheduler(lacking("a", Capability.SEVERAL_ANSWERS), instance("b", slots=1), instance("c", slots=1))
    (first,) = s.handle(Arrived(request("r1", needs=(SEVERAL,))), 0.0)
    (second,) = s.handle(Arrived(request("r2", needs=(SEVERAL,))), 0.0)
    assert s.handle(Arrived(request("r3", needs=(SEVERAL,))), 0.0) == []
    (plain,) = s.handle(Arrived(request("r4")), 0.0)  # does not wait behind it: `a` has a slot
    assert [each.candidate.instance for each in (first, second, plain)] == ["b", "c", "a"]
    third = dispatched(s.handle(Ended("r1", 1, EndedHow.OK, 10, 100), 1.0))
    assert (third.request_id, third.candidate.instance) == ("r3", "b")
    s.handle(Ended("r2", 1, EndedHow.OK, 10, 100), 1.0)
    assert dispatched(s.handle(failed("r3", 1), 2.0)).candidate.instance == "c"
    assert refused(s.handle(failed("r3", 2), 3.0)).code == "upstream_error"


def test_a_fallback_that_can_is_better_than_a_400() -> None:
    other = Instance("b", "vllm", {"f": Candidate("b", "f", "up/f")})
    s = scheduler(lacking("a", Capability.ECHO), other)
    decision = s.decide(request(needs=(ECHO,), fallbacks=("f",)), 0.0)
    found = [(each.candidate.instance, each.reason) for each in decision.considered]
    assert found == [("b", None), ("a", "cannot echo a prompt")]
    with pytest.raises(Refusal) as refused:
        s.decide(request(needs=(ECHO,)), 0.0)
    assert refused.value.param == "echo"
