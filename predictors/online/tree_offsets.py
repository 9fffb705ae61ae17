"""Offsets for the predictions of boosted trees: quantiles of their errors so far.

The 90 % quantile of the log errors is learned for each (model, hardware), with an empty and with a full queue, and
added to the predictions. So an engine that differs from its profile, or changes, is corrected.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from statistics import NormalDist
from typing import NamedTuple

from predictors.learned.trees import TAU

#: A larger log error cannot come from an engine's speed.
_MOST_LOG = 20.0


class TreeOffset:
    """The 90 % quantile of the last log errors (actual over predicted). At first the window has pseudo-errors whose
    quantile is 0; every observation replaces one."""

    __slots__ = ("_pseudo", "_recent", "_sorted", "value")

    WINDOW = 128
    #: The pseudo-errors: their number, and their log standard deviation. Chosen, not measured.
    _PRIOR, _PRIOR_SD = 8, 0.2

    def __init__(self) -> None:
        normal = NormalDist(-NormalDist().inv_cdf(TAU) * self._PRIOR_SD, self._PRIOR_SD)
        self._pseudo = [normal.inv_cdf((at + 0.5) / self._PRIOR) for at in (3, 4, 2, 5, 1, 6, 0, 7)]
        self._sorted = sorted(self._pseudo)
        self._recent: deque[float] = deque()
        self.value = 0.0

    @property
    def count(self) -> int:
        """The number of errors in the window."""
        return len(self._recent)

    def observe(self, error: float) -> None:
        """Learn one ln(actual / predicted by the forest alone)."""
        error = min(max(error, -_MOST_LOG), _MOST_LOG)
        ordered = self._sorted
        self._recent.append(error)
        insort(ordered, error)
        if self._pseudo:
            ordered.remove(self._pseudo.pop(0))
        elif len(self._recent) > self.WINDOW:
            del ordered[bisect_left(ordered, self._recent.popleft())]
        # With the (n + 1) of conformal prediction. Above the greatest error there is nothing.
        at = TAU * (len(ordered) + 1) - 1
        low = min(int(at), len(ordered) - 2)
        self.value = ordered[low] + min(at - low, 1.0) * (ordered[low + 1] - ordered[low])


class TreeGroup:
    """Offsets of one (model, hardware): of TTFT and TPOT with an empty queue, with a queue, and of all."""

    __slots__ = ("_all", "_by_queue")

    #: Errors after which the offset of a queue is used by itself.
    _LEAST = 16

    def __init__(self) -> None:
        self._all = TreeOffset(), TreeOffset()
        self._by_queue = (TreeOffset(), TreeOffset()), (TreeOffset(), TreeOffset())

    def value(self, time: int, queued: bool) -> float:
        """What to add to a log p90 of TTFT (`time` 0) or TPOT (1)."""
        own = self._by_queue[queued][time]
        return own.value if own.count >= self._LEAST else self._all[time].value

    def observe(self, time: int, queued: bool, error: float) -> None:
        """Learn one log error."""
        self._by_queue[queued][time].observe(error)
        self._all[time].observe(error)


class TreeForecast(NamedTuple):
    """What the forests predicted at a decision: log p90 seconds, without the offsets of `group`. `queued`: requests
    without a first token were ahead."""

    ttft: float
    tpot: float
    group: TreeGroup
    queued: bool
