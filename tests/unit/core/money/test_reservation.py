"""A reservation asks for more ahead of the need, in growing steps, one answer at a time."""

from __future__ import annotations

import pytest

from router.core.money.reservation import SLACK_USD, Allowance, Funding, Reservation

FUNDING = Funding(reserved_usd=4.0, left_usd=100.0, step_usd=3.0, most_usd=100.0)


def reservation(**fields: float | None) -> Reservation:
    return Reservation(FUNDING._replace(**fields))


def test_it_asks_before_it_is_used_up_and_for_twice_as_much_each_time() -> None:
    one = reservation()
    assert one.request_more(3.25) is None  # a quarter of a step is left
    asked = []
    for _ in range(6):
        usd = one.request_more(one.reserved_usd)
        assert usd is not None
        assert one.request_more(one.reserved_usd) is None  # one answer at a time
        one.granted(usd, None)
        asked.append(usd)
    assert asked == [3.0, 6.0, 12.0, 24.0, 24.0, 24.0]


def test_it_asks_for_no_more_than_the_request_can_cost() -> None:
    one = reservation(most_usd=5.0)
    assert one.request_more(4.0) == 1.0
    one.granted(1.0, 95.0)
    assert one.request_more(5.0) is None
    assert reservation(most_usd=5.0).request_more(4.5) == 1.0
    # An engine that ignores its bound: the quote does not hold any more.
    assert one.request_more(5.5) == pytest.approx(6.0)


def test_it_asks_for_all_that_is_missing() -> None:
    assert reservation().request_more(20.0) == 16.0


def test_after_a_refusal_it_asks_only_when_it_must() -> None:
    one = reservation()
    assert one.request_more(4.0) == 3.0
    one.granted(0.0, 0.0)
    assert one.refused
    assert one.request_more(4.0) is None
    assert one.request_more(4.1) is not None  # what others hold may have come back
    one.granted(1.0, 1.0)
    assert not one.refused
    assert one.request_more(5.0) is not None


def test_what_the_request_can_have_in_all_follows_the_answers() -> None:
    one = reservation()
    assert one.left_usd == 100.0
    one.request_more(4.0)
    one.granted(3.0, 50.0)  # of the 50 it has reserved 3
    assert (one.reserved_usd, one.left_usd) == (7.0, 54.0)
    one.request_more(7.0)
    one.granted(0.0, -2.0)  # overdrawn by others
    assert (one.reserved_usd, one.left_usd) == (7.0, 7.0)
    one.request_more(8.0)
    one.granted(0.0, None)
    assert one.left_usd == 7.0


@pytest.mark.parametrize(
    ("asked", "refused", "most_usd", "report_at_usd"),
    [
        (False, False, 100.0, 4.0 - 0.25 * 3.0),
        (True, False, 100.0, 4.0),  # the answer to the last request is on its way
        (False, True, 100.0, 4.0),
        (False, False, 4.0, 4.0),  # all that it can cost is reserved
    ],
)
def test_an_allowance_wants_a_report_where_more_can_be_had(
    asked: bool, refused: bool, most_usd: float, report_at_usd: float
) -> None:
    one = reservation(most_usd=most_usd)
    if asked or refused:
        one.request_more(4.0)
    if refused:
        one.granted(0.0, 0.0)
    assert one.allowance(0.0) == pytest.approx(Allowance(4.0, report_at_usd, False), abs=2 * SLACK_USD)
    assert one.allowance(1.5).covered_usd == pytest.approx(2.5)  # the others have taken the rest
    assert one.allowance(0.0, final=True) == pytest.approx(Allowance(4.0, 4.0, True), abs=2 * SLACK_USD)
