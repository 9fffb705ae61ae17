"""The calibration guard: when it distrusts P(miss), and when it trusts it again."""

from __future__ import annotations

from policies.calibration_guard import CalibrationGuard


def outcomes(guard: CalibrationGuard, count: int, met: bool = False) -> None:
    for number in range(count):
        guard.predicted(f"m{number}", 0.01)
        guard.observed(f"m{number}", met)


def test_more_misses_than_predicted_raise_the_level_for_a_while() -> None:
    guard = CalibrationGuard(0.1)
    outcomes(guard, 10)
    assert guard.level == 0
    outcomes(guard, 10)
    assert guard.level == 1
    outcomes(guard, 500, met=True)
    assert guard.level == 0


def test_risky_requests_and_other_ends_do_not_count() -> None:
    guard = CalibrationGuard(0.1)
    for number in range(200):
        guard.predicted(f"risky{number}", 0.5)
        guard.observed(f"risky{number}", False)
        guard.predicted(f"left{number}", 0.0)
        guard.observed(f"left{number}", None)
        guard.observed(f"unknown{number}", False)
    assert guard.level == 0


def test_each_alarm_lasts_longer_until_predictions_hold_again() -> None:
    guard = CalibrationGuard(0.1)

    def lasts() -> int:
        outcomes(guard, 20)
        assert guard.level == 1
        count = 0
        while guard.level:
            outcomes(guard, 1, met=True)
            count += 1
        return count

    first, second = lasts(), lasts()
    assert second > 1.8 * first
    outcomes(guard, 20_000, met=True)
    assert lasts() < 1.2 * first


def test_the_highest_level_falls_in_two_steps() -> None:
    guard = CalibrationGuard(0.1)
    outcomes(guard, 20)
    outcomes(guard, 100)
    assert guard.level == 2
    lasted = {2: 0, 1: 0}
    while guard.level:
        lasted[guard.level] += 1
        outcomes(guard, 1, met=True)
    assert lasted[1] > 900 < lasted[2]


def test_each_request_counts_once_and_not_if_it_is_older_than_the_alarm() -> None:
    guard = CalibrationGuard(0.1)
    for number in range(100):
        guard.predicted(f"old{number}", 0.01)
    for _ in range(100):
        guard.observed("old0", False)
    assert guard.level == 0
    outcomes(guard, 20)
    for number in range(100):
        guard.observed(f"old{number}", False)
    assert guard.level == 1
