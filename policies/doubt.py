"""Whether P(miss) has lately held: predictions that prove too hopeful are believed less, until they hold again.

Of the requests that were expected to keep their SLO (P(miss) <= epsilon) a share of at most epsilon should miss it.
If over some 64 of them it is more than twice that, doubt rises by one level, for the next 500 requests with an SLO;
twice as many the next time. If they pass without that, it falls by one level. What a level means is the policy's affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_WINDOW = 64.0
_DOUBTED = 2.0  # epsilons
_FIRST, _LONGEST = 500, 64_000
_QUIET = 4  # such spans without doubt halve the next one
_MOST_UNDER_WAY = 65_536


@dataclass(slots=True)
class Doubt:
    """Of one policy. `level` is from 0 (none) to `most`."""

    epsilon: float
    most: int
    level: int = 0
    _expected: dict[str, None] = field(
        default_factory=dict
    )  # those under way that were expected to keep their SLO
    _missed: float = 0.0  # running share
    _left: int = 0  # requests until doubt falls
    _longer: int = _FIRST
    _quiet: int = 0  # requests without doubt

    def expects(self, request_id: str, p_miss: float) -> None:
        """A request with an SLO has been sent where it is missed with this probability."""
        if self.level:
            self._left -= 1
            if self._left <= 0:
                self.level -= 1
                self._left = self._longer
        else:
            self._quiet += 1
            if self._quiet > _QUIET * self._longer:
                self._quiet, self._longer = 0, max(self._longer // 2, _FIRST)
        if p_miss <= self.epsilon:
            if len(self._expected) >= _MOST_UNDER_WAY:
                del self._expected[next(iter(self._expected))]
            self._expected[request_id] = None

    def heard(self, request_id: str, met: bool | None) -> None:
        """It has ended; `met` None: that says nothing."""
        if request_id not in self._expected:
            return
        del self._expected[request_id]
        if met is None:
            return
        self._missed += ((not met) - self._missed) / _WINDOW
        if self._missed > _DOUBTED * self.epsilon:
            self._missed, self._quiet = 0.0, 0
            self._left = self._longer
            self._expected.clear()  # they were sent before it was doubted
            if self.level < self.most:
                self.level += 1
                self._longer = min(2 * self._longer, _LONGEST)
