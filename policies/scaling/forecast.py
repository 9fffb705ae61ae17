"""A forecast of one model's arrivals: day cycle, level and trend.

The rate at a time of day is a mean of logarithms over days, by half hours, between whose middles it is interpolated
(the seasonal part of Holt-Winters smoothing in its multiplicative form; Hyndman and Athanasopoulos, "Forecasting:
principles and practice", 8.3). The level is the ratio of what arrived lately to what the cycle expected, and its trend
the difference of a fast and a slow mean of it; the further the forecast looks, the less both count (damped trend, 8.2).
A time of day is learned only after its first arrivals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Stretches of the day cycle.
_STRETCHES = 48
#: The least weight of a new day in the mean of its time of day.
_DAY_STEP = 0.3
#: Arrivals that each side of the level has from the start, so that a few arrivals change it little.
_PRIOR = 3.0
#: The rate before anything has come: no request in an hour.
_UNKNOWN_PER_S = 1e-4
#: The trend of the level is followed for no longer than this.
_TREND_S = 300.0


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """`fast_s` and `slow_s` are the time constants of the two levels, `persistence_s` that of the level in a forecast. A day
    has `day_s`."""

    day_s: float = 86400.0
    fast_s: float = 120.0
    slow_s: float = 600.0
    persistence_s: float = 7200.0


class _Level:
    """The ratio of arrivals to the cycle's expectation, with a time constant."""

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self._arrivals = self._expected = 0.0

    def add(self, seconds: float, arrivals: float, expected: float) -> None:
        kept = math.exp(-seconds / self.length_s)
        self._arrivals = kept * self._arrivals + arrivals
        self._expected = kept * self._expected + expected

    @property
    def log(self) -> float:
        return math.log((self._arrivals + _PRIOR) / (self._expected + _PRIOR))


class ArrivalForecast:
    def __init__(self, settings: ForecastSettings) -> None:
        self._settings = settings
        self._logs: list[float | None] = [None] * _STRETCHES
        self._days = [0] * _STRETCHES
        self._stretch: tuple[int, float, float] | None = None  # the present one: number, arrivals, seconds
        self._mean_rate: float | None = None  # without a cycle, since the first arrivals
        self._mean_s = 0.0
        self._fast, self._slow = _Level(settings.fast_s), _Level(settings.slow_s)

    def observe(self, now_s: float, seconds: float, arrivals: int) -> None:
        """`arrivals` came in the `seconds` before `now_s`."""
        if seconds <= 0:
            return
        middle_s = now_s - seconds / 2
        expected = self._cycle(middle_s) * seconds
        self._fast.add(seconds, arrivals, expected)
        self._slow.add(seconds, arrivals, expected)
        self._learn_cycle(middle_s, seconds, arrivals)

    def rate_per_s(self, now_s: float, ahead_s: float) -> float:
        """The expected rate `ahead_s` after `now_s`, the time of the last observation."""
        settings = self._settings
        slope = (self._fast.log - self._slow.log) / (settings.slow_s - settings.fast_s)
        # The fast mean itself lags behind by its time constant.
        rise = slope * min(ahead_s + settings.fast_s, _TREND_S)
        level = (self._fast.log + max(0.0, rise)) * math.exp(-ahead_s / settings.persistence_s)
        return self._cycle(now_s + ahead_s) * math.exp(level)

    def _cycle(self, at_s: float) -> float:
        """The rate of the day cycle; without one the mean of all."""
        length_s = self._settings.day_s / _STRETCHES
        place, share = divmod(at_s % self._settings.day_s / length_s - 0.5, 1.0)
        logs = [self._logs[int(place + step) % _STRETCHES] for step in (0, 1)]
        before, after = logs
        if before is None or after is None:
            known = before if after is None else after
            return math.exp(known) if known is not None else self._mean_rate or _UNKNOWN_PER_S
        return math.exp(before + share * (after - before))

    def _learn_cycle(self, at_s: float, seconds: float, arrivals: float) -> None:
        length_s = self._settings.day_s / _STRETCHES
        rate = arrivals / seconds
        if arrivals or self._mean_rate is not None:
            self._mean_s += seconds
            share = max(1 - math.exp(-seconds / self._settings.slow_s), seconds / self._mean_s)
            mean = self._mean_rate or 0.0
            self._mean_rate = mean + share * (rate - mean)
        number = int(at_s % self._settings.day_s // length_s)
        if self._stretch is not None and self._stretch[0] != number:
            ended, count, length = self._stretch
            old = self._logs[ended]
            if length > 0.5 * length_s and (count >= _PRIOR or old is not None):
                self._days[ended] += 1
                log = math.log((count + 0.5) / length)
                step = max(1 / self._days[ended], _DAY_STEP)
                self._logs[ended] = log if old is None else old + step * (log - old)
            self._stretch = None
        _, count, length = self._stretch or (number, 0.0, 0.0)
        self._stretch = (number, count + arrivals, length + seconds)
