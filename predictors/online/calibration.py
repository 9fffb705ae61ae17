"""What is learned online of the latency model's errors, by model and hardware, and whether it is believed.

Its quantiles are corrected by offsets that all instances of one kind share (`predictors.learned.latency.conformal`); what
an instance's own bias is, the corrected physical estimate has in it already.

`Trust` watches both predictions side by side: while the model's cover less than they should, or cost more in
pinball loss than the physical estimate's own, the physical estimate serves.
"""

# A branch costs half of a call of max() or min(), and this runs for each candidate of each request.
from __future__ import annotations

from typing import Protocol

from predictors.learned.latency.conformal import Offsets
from predictors.online.coverage import Coverage


class LogError(Protocol):
    """Distribution of ln(actual / physical estimate)."""

    def quantile(self, probability: float) -> float:
        """The log error not exceeded with this probability."""
        ...

    def exceed(self, residual: float) -> float:
        """P(log error > residual)."""
        ...


class Trust:
    """Whether the model is believed: coverage and pinball loss of its predictions, beside the physical ones.

    `believed` falls when of at least `_LEAST` recent ones fewer than `_ALARM` stayed below the 95 % quantile,
    or when the model's mean pinball loss is larger than the physical estimate's by more than `_LOSS_MARGIN`;
    it returns when both have recovered.
    """

    __slots__ = ("alarms", "believed", "learned", "learned_loss", "physical", "physical_loss")

    _LEAST = 60
    _ALARM, _RECOVERED = 0.86, 0.91
    _LOSS_MARGIN = 1.1
    _MEMORY = 200

    def __init__(self) -> None:
        self.believed = True
        self.alarms = 0
        self.learned = Coverage()
        self.physical = Coverage()
        self.learned_loss = 0.0  # mean pinball loss of log TTFT at .5 and .95
        self.physical_loss = 0.0

    def as_dict(self) -> dict[str, float | bool | None]:
        """Plain numbers for people and metrics."""
        seen = self.learned.ttfts > 0
        return {
            "believed": self.believed,
            "alarms": self.alarms,
            "observed": self.learned.ttfts,
            "ttft_within_p50": self.learned.ttft_p50 if seen else None,
            "ttft_within_p95": self.learned.ttft_p95 if seen else None,
            "ttft_abs_log_error": self.learned.ttft_log_error if seen else None,
            "ttft_loss": self.learned_loss if seen else None,
            "physical_ttft_within_p50": self.physical.ttft_p50 if seen else None,
            "physical_ttft_within_p95": self.physical.ttft_p95 if seen else None,
            "physical_ttft_abs_log_error": self.physical.ttft_log_error if seen else None,
            "physical_ttft_loss": self.physical_loss if seen else None,
        }

    def saw(self, residual: float, learned: tuple[float, float], physical: tuple[float, float]) -> None:
        """A residual came for which these were the (median, 95 % quantile) of the two predictions."""
        for coverage, (p50, p95) in ((self.learned, learned), (self.physical, physical)):
            coverage.saw_ttft(residual <= p50, residual <= p95, residual - p50)
        count = self.learned.ttfts
        rate = 1.0 / (count if count < self._MEMORY else self._MEMORY)
        self.learned_loss += rate * (_loss(residual, *learned) - self.learned_loss)
        self.physical_loss += rate * (_loss(residual, *physical) - self.physical_loss)
        if count < self._LEAST:
            return
        covered = self.learned.ttft_p95
        if self.believed:
            if covered < self._ALARM or self.learned_loss > self._LOSS_MARGIN * self.physical_loss:
                self.believed = False
                self.alarms += 1
        elif covered >= self._RECOVERED and self.learned_loss <= self.physical_loss:
            self.believed = True


def _loss(residual: float, p50: float, p95: float) -> float:
    by50, by95 = residual - p50, residual - p95
    return 0.5 * abs(by50) + (0.95 * by95 if by95 > 0.0 else -0.05 * by95)


class GroupCalibration:
    """What is learned of the model's errors for one (model, hardware)."""

    __slots__ = ("tpot", "trust", "ttft")

    def __init__(self) -> None:
        self.ttft = Offsets()
        self.tpot = Offsets()
        self.trust = Trust()
