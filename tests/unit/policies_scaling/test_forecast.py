"""Forecasts of arrivals whose rates are known."""

from __future__ import annotations

import math
from random import Random

import pytest

from policies.scaling.forecast import ArrivalForecast, ForecastSettings

DAY_S, STEP_S = 86400.0, 60.0


def poisson(random, mean):
    """Normal for large means, which is near enough here."""
    return max(0, round(random.gauss(mean, math.sqrt(mean))))


def after(rate, days, *, factor=lambda at_s: 1.0):
    """A forecast that has seen `days` of arrivals with this rate (requests/s)."""
    random = Random(1)
    forecast = ArrivalForecast(ForecastSettings())
    for step in range(1, round(days * DAY_S / STEP_S) + 1):
        at_s = step * STEP_S
        forecast.observe(at_s, STEP_S, poisson(random, STEP_S * rate(at_s - STEP_S / 2) * factor(at_s)))
    return forecast, days * DAY_S


def cycle(at_s):
    return 5.0 - 4.0 * math.cos(2 * math.pi * at_s / DAY_S)


@pytest.mark.parametrize("ahead_h", [0.0, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("hour", [2.0, 8.0, 15.0])
def test_it_learns_the_day_cycle(hour, ahead_h):
    forecast, now_s = after(cycle, 3 + hour / 24)
    assert forecast.rate_per_s(now_s, ahead_h * 3600) == pytest.approx(
        cycle(now_s + ahead_h * 3600), rel=0.15
    )


def test_a_day_above_the_cycle_is_followed():
    forecast, now_s = after(cycle, 3.5, factor=lambda at_s: 1.5 if at_s > 3.25 * DAY_S else 1.0)
    assert forecast.rate_per_s(now_s, 600.0) == pytest.approx(1.5 * cycle(now_s + 600.0), rel=0.15)
    # In half a day it is believed less.
    assert forecast.rate_per_s(now_s, 12 * 3600.0) < 1.2 * cycle(now_s + 12 * 3600.0)


def test_without_a_day_it_follows_the_level():
    forecast, now_s = after(lambda at_s: 3.0, 0.1)
    assert forecast.rate_per_s(now_s, 120.0) == pytest.approx(3.0, rel=0.15)
    forecast, now_s = after(lambda at_s: 3.0 if at_s < 7200 else 12.0, 0.1)
    assert forecast.rate_per_s(now_s, 120.0) == pytest.approx(12.0, rel=0.2)


def test_a_rise_goes_on():
    def rising(at_s):
        return 1.0 + max(0.0, at_s - 7200.0) / 300.0

    forecast, now_s = after(rising, 0.1)
    assert forecast.rate_per_s(now_s, 120.0) > rising(now_s)


def test_nothing_at_all():
    forecast, now_s = after(lambda at_s: 1e-9, 1.2)
    assert forecast.rate_per_s(now_s, 600.0) < 1e-3
    forecast.observe(now_s, 0.0, 5)  # no time, no rate


@pytest.mark.parametrize("quiet_s", [0.0, 3600.0])
def test_the_first_load_is_followed_at_once(quiet_s):
    forecast, now_s = after(lambda at_s: 0.0 if at_s < quiet_s else 2.0, (quiet_s + 1800.0) / DAY_S)
    assert forecast.rate_per_s(now_s, 120.0) == pytest.approx(2.0, rel=0.2)
