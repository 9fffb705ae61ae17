"""The time limits of open requests."""

from __future__ import annotations

from random import Random

import pytest

from router.core.money.account import RequestMoney
from router.core.open_requests import DeadlineHeap, OpenRequests
from router.core.request_state import RequestState
from router.core.types import Slo
from tests.unit.core.worlds import request


def waiting(id: str, expires_at: float) -> RequestState:
    one = request(id, expires_at=expires_at)
    return RequestState(one, 0, RequestMoney(one))


def test_a_request_that_is_deferred_again_keeps_one_time_limit() -> None:
    open_ = OpenRequests()
    late, early = waiting("late", 10.0), waiting("early", 5.0)
    open_.add(late)
    for _ in range(1000):
        open_.add(early)
    assert open_.next_at() == 5.0
    assert list(open_.overdue(6.0)) == [early]


def test_the_deadlines_of_requests_that_ended_are_swept_out() -> None:
    rng = Random(1)
    known: dict[str, float] = {}
    heap = DeadlineHeap(known)
    for number in range(1000):
        name, at = f"r{number}", rng.random()
        if number % 10 == 0:
            known[name] = at
        heap.add(at, name)
        assert len(heap._entries) <= max(64, 4 * len(known))
    due = [name for name, _ in heap.due(1.0) if name in known]
    assert due == sorted(known, key=known.__getitem__)


@pytest.mark.parametrize(
    ("slo", "decode_s", "due_s", "hard_s"),
    [
        (None, 1.0, 600.0, None),
        (Slo(tpot_s=0.1), 1.0, 600.0, None),
        (Slo(ttft_s=2.0), 1.0, 2.0, 2.0),
        (Slo(e2e_s=9.0), 4.0, 5.0, 9.0),
        (Slo(ttft_s=2.0, e2e_s=9.0), 4.0, 2.0, 2.0),
        (Slo(ttft_s=6.0, e2e_s=9.0), 4.0, 5.0, 6.0),
    ],
)
def test_when_a_first_token_is_due(
    slo: Slo | None, decode_s: float, due_s: float, hard_s: float | None
) -> None:
    one = request(at=10.0, slo=slo, hard=True)
    state = RequestState(one, 0, RequestMoney(one))
    assert state.slack_deadline(decode_s) == 10.0 + due_s
    assert state.hard_deadline() == (None if hard_s is None else 10.0 + hard_s)
    one.hard = False
    assert state.hard_deadline() is None
