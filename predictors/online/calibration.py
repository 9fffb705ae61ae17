"""Online calibration of predicted times by model and hardware, and their accuracy.

Offsets that all instances of one kind share correct the quantiles that serve (`predictors.online.offsets`). The bias of a
single instance is already in the corrected physical estimate.
"""

from __future__ import annotations

from predictors.online.coverage import Coverage
from predictors.online.offsets import Offsets


class Accuracy:
    """Coverage and pinball loss of the TTFTs that serve where there is a latency model (`learned`), and of those of the
    physical estimate alone."""

    __slots__ = ("learned", "learned_loss", "physical", "physical_loss")

    _MEMORY = 200

    def __init__(self) -> None:
        self.learned = Coverage()
        self.physical = Coverage()
        self.learned_loss = 0.0  # mean pinball loss of log TTFT at .5 and .95
        self.physical_loss = 0.0

    def as_dict(self) -> dict[str, float | None]:
        """Plain numbers for people and metrics."""
        seen = self.learned.ttfts > 0
        return {
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

    def observe(self, residual: float, learned: tuple[float, float], physical: tuple[float, float]) -> None:
        """Learn one residual. `learned` and `physical` are the two predictions of its (median, 95 % quantile)."""
        for coverage, (p50, p95) in ((self.learned, learned), (self.physical, physical)):
            coverage.observe_ttft(residual <= p50, residual <= p95, residual - p50)
        count = self.learned.ttfts
        rate = 1.0 / (count if count < self._MEMORY else self._MEMORY)
        self.learned_loss += rate * (_loss(residual, *learned) - self.learned_loss)
        self.physical_loss += rate * (_loss(residual, *physical) - self.physical_loss)


def _loss(residual: float, p50: float, p95: float) -> float:
    by50, by95 = residual - p50, residual - p95
    return 0.5 * abs(by50) + (0.95 * by95 if by95 > 0.0 else -0.05 * by95)


class GroupCalibration:
    """The calibration of one (model, hardware), and its accuracy."""

    __slots__ = ("accuracy", "offsets")

    def __init__(self) -> None:
        self.offsets = Offsets(), Offsets()  # of TTFT and of TPOT
        self.accuracy = Accuracy()
