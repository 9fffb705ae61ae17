"""The accuracy of predictions at an instance: running shares and errors, as plain numbers for metrics."""

from __future__ import annotations

_MEMORY = 200


def _rate(count: int) -> float:
    return 1 / (count if count < _MEMORY else _MEMORY)


class Coverage:
    """Exponential averages over about the last `_MEMORY` observations; None before the first."""

    __slots__ = (
        "output_p90", "outputs", "tpot_log_error", "tpots", "ttft_log_error", "ttft_p50", "ttft_p95", "ttfts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ttfts = 0
        self.tpots = 0
        self.outputs = 0
        self.ttft_p50 = 0.0  # share of TTFTs at or below the predicted median
        self.ttft_p95 = 0.0
        self.output_p90 = 0.0
        self.ttft_log_error = 0.0  # mean |ln(actual / predicted median)|
        self.tpot_log_error = 0.0

    def observe_ttft(self, within_p50: bool, within_p95: bool, log_error: float) -> None:
        """Learn one TTFT: whether it was at or below the predicted quantiles, and ln(actual / predicted median)."""
        self.ttfts += 1
        rate = _rate(self.ttfts)
        self.ttft_p50 += rate * (within_p50 - self.ttft_p50)
        self.ttft_p95 += rate * (within_p95 - self.ttft_p95)
        self.ttft_log_error += rate * (abs(log_error) - self.ttft_log_error)

    def observe_tpot(self, log_error: float) -> None:
        """Learn one TPOT: ln(actual / predicted median)."""
        self.tpots += 1
        self.tpot_log_error += _rate(self.tpots) * (abs(log_error) - self.tpot_log_error)

    def observe_output(self, within_p90: bool) -> None:
        """Learn one length: whether it was at or below the predicted 90 % quantile."""
        self.outputs += 1
        self.output_p90 += _rate(self.outputs) * (within_p90 - self.output_p90)

    def as_dict(self) -> dict[str, float | None]:
        """The share of actual values within predicted quantiles, and mean absolute log errors."""
        return {
            "ttft_within_p50": self.ttft_p50 if self.ttfts else None,
            "ttft_within_p95": self.ttft_p95 if self.ttfts else None,
            "ttft_abs_log_error": self.ttft_log_error if self.ttfts else None,
            "tpot_abs_log_error": self.tpot_log_error if self.tpots else None,
            "output_within_p90": self.output_p90 if self.outputs else None,
            "observed": float(self.ttfts),
        }
