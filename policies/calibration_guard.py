"""Checks whether P(miss) has been accurate lately, and sets the level at which a policy distrusts it.

Of the requests that were predicted to meet their SLO (P(miss) <= epsilon) at most a share of epsilon should miss it. The
guard tracks the missed share as a running mean over about 64 such requests. If it exceeds twice epsilon, the level rises
by one for the next 500 requests with an SLO, and for twice as many the next time. If these pass without a new alarm, the
level falls by one. Each policy defines what a level means.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_WINDOW = 64.0
_ALARM = 2.0  # epsilons
_FIRST_SPAN, _LONGEST_SPAN = 500, 64_000  # requests
_CALM_SPANS = 4  # after so many spans at level 0 the next span is half as long
_MAX_PENDING = 65_536
_MAX_LEVEL = 2


@dataclass(slots=True)
class CalibrationGuard:
    """One policy's guard. `level` goes from 0 (P(miss) is trusted) to 2."""

    epsilon: float
    level: int = 0
    _pending: dict[str, None] = field(default_factory=dict)  # still running, predicted to meet their SLO
    _missed: float = 0.0  # running share
    _remaining: int = 0  # requests until the level falls
    _span: int = _FIRST_SPAN
    _calm: int = 0  # requests at level 0

    def predicted(self, request_id: str, p_miss: float) -> None:
        """A request with an SLO was dispatched with this P(miss)."""
        if self.level:
            self._remaining -= 1
            if self._remaining <= 0:
                self.level -= 1
                self._remaining = self._span
        else:
            self._calm += 1
            if self._calm > _CALM_SPANS * self._span:
                self._calm, self._span = 0, max(self._span // 2, _FIRST_SPAN)
        if p_miss <= self.epsilon:
            if len(self._pending) >= _MAX_PENDING:
                del self._pending[next(iter(self._pending))]
            self._pending[request_id] = None

    def observed(self, request_id: str, met: bool | None) -> None:
        """The request ended. `met` is None if its end says nothing about the prediction."""
        if request_id not in self._pending:
            return
        del self._pending[request_id]
        if met is None:
            return
        self._missed += ((not met) - self._missed) / _WINDOW
        if self._missed > _ALARM * self.epsilon:
            self._missed, self._calm = 0.0, 0
            self._remaining = self._span
            self._pending.clear()  # dispatched before the alarm
            if self.level < _MAX_LEVEL:
                self.level += 1
                self._span = min(2 * self._span, _LONGEST_SPAN)
