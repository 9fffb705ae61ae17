"""Candidates that can surely take a request are not looked at one by one: the result is the same."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from router.core import eligibility
from router.core.money.account import RequestMoney
from router.core.options import Roster
from router.core.state import Instance
from router.core.types import Candidate, Capability, LoadReport, Need, Price, Request

NEED = Need(Capability.ECHO, "echo")


@st.composite
def members(draw: Any) -> tuple[Candidate, Instance]:
    name = draw(st.sampled_from("abcdef"))
    candidate = Candidate(
        name, "m", "m", Price(draw(st.sampled_from([0.0, 9.0])), 9.0), draw(st.sampled_from([None, 100, 400])),
        draw(st.sampled_from([None, 0.2, 0.9])),
    )  # fmt: skip
    instance = Instance(name, "vllm", {"m": candidate}, draw(st.sampled_from([None, None, 2])))
    instance.healthy, instance.draining, instance.starting = (
        draw(st.sampled_from([True, True, True, False])),
        draw(st.sampled_from([False, False, False, True])),
        draw(st.sampled_from([False, False, False, True])),
    )
    instance.unsupported = draw(st.sampled_from([frozenset(), frozenset({Capability.ECHO})]))
    instance.ejected_for = draw(st.sampled_from([{}, {}, {"key": 1}]))
    instance.returned_at = draw(st.sampled_from([None, None, 1.0]))
    instance.in_flight = draw(st.integers(0, 6))
    instance.takes_report(LoadReport(waiting=draw(st.sampled_from([None, 0, 3, 6]))), 1.0)
    return candidate, instance


@st.composite
def requests(draw: Any) -> Request:
    return Request(
        "r", 0.0, "p", ("m",), prompt_tokens=draw(st.sampled_from([50, 200, 500])),
        max_tokens=draw(st.sampled_from([None, 60, 300])), needs=draw(st.sampled_from([(), (), (NEED,)])),
        max_cost_usd=draw(st.sampled_from([None, None, 1e-9, 1e-3])), owner=draw(st.sampled_from([None, "key"])),
        min_quality=draw(st.sampled_from([None, None, 0.5])), decodes=draw(st.booleans()),
    )  # fmt: skip


def told(found: Any) -> Any:
    refusal = found.refusal and (found.refusal.code, found.refusal.message)
    return list(found.free), found.busy, found.passed_over, refusal


@given(st.lists(members(), max_size=8), requests(), st.sets(st.tuples(st.sampled_from("abc"), st.just("m"))))
def test_each_candidate_is_found_where_a_look_at_all_finds_it(
    found: list[tuple[Candidate, Instance]], request: Request, tried: set[tuple[str, str]]
) -> None:
    of = request, ("m",), Roster.of(found), RequestMoney(request), tried, 4.0
    with patch.object(eligibility, "doubtful", lambda instances: range(len(instances))):
        theirs = told(eligibility.eligible(*of))
    assert told(eligibility.eligible(*of)) == theirs
