"""Online calibration of the latency model: what it says is corrected by what comes, or not believed.

The model gives quantiles of the log residual r = ln(actual / corrected physical estimate). They are read as a
distribution with a median m and a spread to either side; then, in order of dispatch,

    z = (r - m) / spread

and the distribution of z is a window for each (model, hardware) and stratum of load, which instances of one kind
share; what an instance's own bias is, the corrected estimate has in it already. Quantiles are read back through
the window, so they hold whatever the model says (conformal prediction on a sliding window; Vovk et al.,
Algorithmic Learning in a Random World, 2005). It moves slowly, and a share of it is the model's own word for
good: errors come in spells, and a window that follows them closely is narrow when the next one begins. It keeps
its share of late ones because requests are taken in order of dispatch, and one that is overdue is taken as later
than now, not left out.

`Trust` watches both predictions side by side: while the model's cover less than they should, or cost more in
pinball loss than the physical estimate's own, the physical estimate serves.
"""

# A branch costs half of a call of max() or min(), and this runs for each candidate of each request.
# ruff: noqa: PLR1730
from __future__ import annotations

from math import exp

from predictors.coverage import Coverage
from predictors.residuals import ResidualWindow, StratifiedResiduals

#: z = 1 at the model's 10 % and 95 % quantiles, in normal standard deviations.
_LOWER_Z, _UPPER_Z = 1.2816, 1.6449
_LEAST_SPREAD = 0.005
_MOST_Z = 20.0
#: Log factors are cut here: what is a million times slower than expected has no better estimate.
_MOST_LOG = 14.0
#: Standard deviation of the mean of z before anything is seen, and of z around it.
_PRIOR_SD, _NOISE_SD = 0.1, 1.0
_MEMORY = 512
#: Observations that the model's own quantiles weigh, for good.
_LASTING = 128


class Error:
    """Distribution of a log residual r that serves: `shift` + spread x a window's value. The physical
    estimate's own has shift 0 and spread 1."""

    __slots__ = ("lower", "shift", "upper", "window")

    def __init__(
        self, window: ResidualWindow, shift: float = 0.0, lower: float = 1.0, upper: float = 1.0
    ) -> None:
        self.window = window
        self.shift = shift
        self.lower = lower
        self.upper = upper

    def quantile(self, probability: float) -> float:
        """The log residual not exceeded with this probability."""
        z = self.window.quantile(probability)
        return self.shift + (self.upper if z > 0.0 else self.lower) * z

    def exceed(self, residual: float) -> float:
        """P(r > residual)."""
        by = residual - self.shift
        return self.window.exceed(by / (self.upper if by > 0.0 else self.lower))

    def z_of(self, residual: float) -> float:
        """The window's value that a residual stands for, within what a window should ever hold."""
        by = residual - self.shift
        z = by / (self.upper if by > 0.0 else self.lower)
        return _MOST_Z if z > _MOST_Z else (-_MOST_Z if z < -_MOST_Z else z)

    def factors(self) -> tuple[float, float, float]:
        """(median, 95 % quantile, mean) of exp(r)."""
        window = self.window
        if self.shift == 0.0 and self.upper == 1.0:
            return window.median_factor, window.p95_factor, window.mean_factor
        z50, z95 = window.median, window.p95
        median = self.shift + (self.upper if z50 > 0.0 else self.lower) * z50
        p95 = self.shift + (self.upper if z95 > 0.0 else self.lower) * z95
        sd = (p95 - median) / 1.645
        if sd > 1.0:
            sd = 1.0
        if p95 > _MOST_LOG:
            p95 = _MOST_LOG
            if median > _MOST_LOG:
                median = _MOST_LOG
        return exp(median), exp(p95), exp(median + 0.5 * sd * sd)


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

    def __init__(self, ttft_strata: int, tpot_strata: int) -> None:
        self.ttft = StratifiedResiduals(ttft_strata, _PRIOR_SD, _NOISE_SD, _MEMORY, _LASTING)
        self.tpot = StratifiedResiduals(tpot_strata, _PRIOR_SD, _NOISE_SD, _MEMORY, _LASTING)
        self.trust = Trust()


def learned_error(strata: StratifiedResiduals, stratum: int, base: float, quantiles: list[float]) -> Error:
    """The error distribution that the model's quantiles (at `predictors.latency.features.TAUS`, relative to
    the corrected estimate) stand for, relative to the physical one; `base` is the log median factor between
    the two."""
    low, median, _, high, _ = quantiles
    lower = (median - low) / _LOWER_Z
    upper = (high - median) / _UPPER_Z
    return Error(
        strata.window(stratum),
        base + median,
        lower if lower > _LEAST_SPREAD else _LEAST_SPREAD,
        upper if upper > _LEAST_SPREAD else _LEAST_SPREAD,
    )
