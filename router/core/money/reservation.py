"""What one request has reserved in its key's budgets, and when it needs more.

The cost of an answer is unknown until it ends, and a reservation for the worst case would refuse other requests without
need. So a reservation starts with the cost of a usual answer and grows while the answer streams. It is increased before
the money is needed, one step at a time. The steps double up to a limit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: The reservation is increased when less than this share of a step is left.
_AHEAD = 0.25
#: A step grows up to this many times the first one: more would reserve money without need.
_MOST_STEPS = 8.0
#: Rounding error of a sum of amounts: a millionth of a cent.
SLACK_USD = 1e-8


class Funding(NamedTuple):
    """The budgets' grant for a request at its start, in USD.

    `reserved_usd` is reserved. `left_usd` is the most that the request can have in total, as far as is known (None: no
    bound). `step_usd` is the first step of growth, `most_usd` the highest cost by its quote.
    """

    reserved_usd: float
    left_usd: float | None
    step_usd: float
    most_usd: float


class Allowance(NamedTuple):
    """What an attempt may cost for now, in USD. When its cost exceeds `report_at_usd`, the driver reports it
    (`Metered`). When its cost would exceed `covered_usd`, the driver also waits for another allowance, or ends the
    answer if this one is `final`."""

    covered_usd: float
    report_at_usd: float
    final: bool = False


class Reservation:
    """The money reserved for one request. `reserved_usd` is the amount in each of its key's budgets. `left_usd` as in
    `Funding`."""

    __slots__ = ("_most_usd", "_requested_usd", "_step_usd", "_steps", "left_usd", "refused", "reserved_usd")

    def __init__(self, funding: Funding) -> None:
        self.reserved_usd, self.left_usd, self._step_usd, self._most_usd = funding
        self._steps = 1.0
        self._requested_usd: float | None = None
        self.refused = False  # the budgets gave nothing to the last request

    def covers(self, cost_usd: float) -> bool:
        """Whether this total cost of all attempts is reserved."""
        return self.reserved_usd - cost_usd >= -SLACK_USD

    def request_more(self, cost_usd: float) -> float | None:
        """USD to request now, for this total cost of all attempts; None if nothing is needed, or while an answer is
        pending."""
        if self._requested_usd is not None:
            return None
        rest_usd = self.reserved_usd - cost_usd
        if self.covers(cost_usd) and (rest_usd >= self._ahead_usd() or not self._may_grow()):
            return None
        step_usd = self._step_usd * self._steps
        self._steps = min(2.0 * self._steps, _MOST_STEPS)
        if self.reserved_usd >= self._most_usd:
            self._most_usd = math.inf  # the engine ignores its bound, so the quote does not hold
        self._requested_usd = max(min(step_usd, self._most_usd - self.reserved_usd), -rest_usd)
        return self._requested_usd

    def granted(self, reserved_usd: float, left_usd: float | None) -> None:
        """The budgets' answer to `request_more`: the additional reservation, and what they had left before it."""
        self._requested_usd = None
        if left_usd is not None:
            self.left_usd = self.reserved_usd + max(0.0, left_usd)
        self.reserved_usd += reserved_usd
        self.refused = not reserved_usd

    def allowance(self, others_usd: float, *, final: bool = False) -> Allowance:
        """What one attempt may cost while the others cost `others_usd`."""
        covered_usd = self.reserved_usd - others_usd + SLACK_USD
        if final or self._requested_usd is not None or not self._may_grow():
            return Allowance(covered_usd, covered_usd, final)
        return Allowance(covered_usd, covered_usd - self._ahead_usd())

    def _may_grow(self) -> bool:
        return not self.refused and self.reserved_usd < self._most_usd

    def _ahead_usd(self) -> float:
        return _AHEAD * self._step_usd
