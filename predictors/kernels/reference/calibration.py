# cython: language_level=3, annotation_typing=False, nonecheck=True, auto_pickle=False
"""Online calibration of the quantiles of predicted times, and the accuracy of predictions.

Each quantile has an offset. The offset moves up a little with every actual value above the quantile and down with every
one below, in proportion to the share that should lie there (quantile tracking: Angelopoulos et al., Conformal PID
Control, arXiv 2307.16895; Gibbs & Candes, arXiv 2106.00072). So in the long run the right share lies below, whatever is
predicted. The step is small, since the predictions follow their instance by themselves; larger steps chase spells of load.
The errors of requests in one queue are alike, so steps are smaller while requests wait.

Actual values must be learned in order of dispatch, each as soon as it is known or overdue: the values that come first
are the quick ones.

`predictors.kernels.native` has this module compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictors.kernels.levels import TAUS

#: The largest part of a spread that an offset moves by.
STEP = 0.01
#: The number of waiting requests that halves the steps: our own rule, chosen after looking at three splits of the logs.
HALVING = 10.0
#: By quantile, the steps after an actual value at or below it, and above it.
_DOWN = [STEP * (tau - 1.0) for tau in TAUS]
_UP = [STEP * tau for tau in TAUS]
#: Observations over which accuracy averages.
MEMORY = 200


class Offsets:
    """Offsets of the quantiles of one time (TTFT or TPOT), shared by all instances of one kind."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [0.0] * len(TAUS)

    def learn(self, predicted: Sequence[float], actual: float, waiting: float = 0.0) -> None:
        """Learn from `actual`, while `waiting` requests wait for their first token. The first values of `predicted` are the
        quantiles that served. For an overdue request, pass any value larger than the quantiles that it has exceeded."""
        values, part = self.values, HALVING / (HALVING + waiting)
        for at in range(len(values)):
            quantile = predicted[at]
            values[at] += part * (_DOWN[at] if actual <= quantile else _UP[at])


def _rate(count: int) -> float:
    return 1.0 / (count if count < MEMORY else MEMORY)


class Coverage:
    """Exponential averages over about the last MEMORY observations, as plain numbers for metrics; None before the first."""

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

    def observe_ttft(self, residual: float, p50: float, p95: float) -> None:
        """Learn the log error of one TTFT, and its quantiles that were predicted."""
        self.ttfts += 1
        rate = _rate(self.ttfts)
        self.ttft_p50 += rate * ((residual <= p50) - self.ttft_p50)
        self.ttft_p95 += rate * ((residual <= p95) - self.ttft_p95)
        self.ttft_log_error += rate * (abs(residual - p50) - self.ttft_log_error)

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


class Accuracy:
    """Coverage and pinball loss of the TTFTs that serve where there is a latency model (`learned`), and of those of the
    physical estimate alone."""

    __slots__ = ("learned", "learned_loss", "physical", "physical_loss")

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

    def observe(
        self, residual: float, p50: float, p95: float, physical_p50: float, physical_p95: float
    ) -> None:
        """Learn one residual, and its median and 95 % quantile that served, and those of the physical estimate alone."""
        self.learned.observe_ttft(residual, p50, p95)
        self.physical.observe_ttft(residual, physical_p50, physical_p95)
        rate = _rate(self.learned.ttfts)
        self.learned_loss += rate * (_loss(residual, p50, p95) - self.learned_loss)
        self.physical_loss += rate * (_loss(residual, physical_p50, physical_p95) - self.physical_loss)


def _loss(residual: float, p50: float, p95: float) -> float:
    by50, by95 = residual - p50, residual - p95
    return 0.5 * abs(by50) + (0.95 * by95 if by95 > 0.0 else -0.05 * by95)


class GroupCalibration:
    """The calibration of one (model, hardware), and its accuracy. Offsets that all instances of one kind share correct the
    quantiles that serve. The bias of a single instance is already in the corrected physical estimate."""

    __slots__ = ("accuracy", "offsets")

    def __init__(self) -> None:
        self.offsets = Offsets(), Offsets()  # of TTFT and of TPOT
        self.accuracy = Accuracy()
