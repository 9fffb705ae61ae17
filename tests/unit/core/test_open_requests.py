"""The time limits of open requests."""

from __future__ import annotations

from router.core.money.account import RequestMoney
from router.core.open_requests import OpenRequests
from router.core.request_state import RequestState
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
