"""The error of a physical estimate, learned online as a distribution.

With r = ln(actual / physical) for one instance and model:

    r = bias + innovation

`bias` is an exponential mean (quick at first, later over about `memory` observations). It follows an unknown scale or a
drift. `innovation` is r minus the bias known just before it was observed: the error of the corrected estimate. A sorted
sliding window of innovations is the empirical distribution from which quantiles and P(actual > target) are read, with
the (n + 1) of conformal prediction in place of n. Beyond the observed values the tail falls as the square: hiccups are
rare, not impossible.

Until there is data, the window holds `PRIOR_SIZE` normal pseudo-observations: wide while nothing is known (`prior_sd`),
narrower once the bias has three observations (`noise_sd`). Every second observation replaces one of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import NormalDist

PRIOR_SIZE = 16
#: Observations after which the bias is known well enough for innovations to count.
BIAS_KNOWN = 3
#: The order in which pseudo-observations leave: spread out, so that the rest keeps its width.
_LEAVING = (7, 2, 12, 5, 10, 0, 15, 8, 3, 13, 6, 9, 1, 14, 4, 11)
#: Factors may lag behind by this share of the observations, and by at most this share of the memory.
LAG, MOST_LAG = 1 / 32, 1 / 8
_NORMAL = [NormalDist().inv_cdf((index + 0.5) / PRIOR_SIZE) for index in range(PRIOR_SIZE)]


def prior(sd: float) -> list[float]:
    """The pseudo-observations of this standard deviation; the last one leaves first."""
    return [_NORMAL[index] * sd for index in reversed(_LEAVING)]


class ResidualWindow:
    """The distribution of log residuals. `median` and `p95` are quantiles. `median_factor`, `p95_factor` and
    `mean_factor`, together `factors`, multiply a physical estimate. They are refreshed at each of the first
    observations, later now and then (`LAG`).

    `prior_sd` is the log standard deviation of the estimate's unknown bias, `noise_sd` that around the bias. The bias
    averages over `memory` observations; the window holds four times as many.
    """

    __slots__ = (
        "_bias_inertia", "_least_rate", "_most_lag", "_noise_sd", "_pseudo", "_recent", "_stale", "_window", "bias",
        "count", "factors", "mean_factor", "median", "median_factor", "p95", "p95_factor", "tail", "values",
    )  # fmt: skip

    def __init__(self, prior_sd: float, noise_sd: float, memory: int = 64) -> None:
        self.count = 0
        self._least_rate = 1.0 / memory
        self._window = 4 * memory
        self._most_lag = memory * MOST_LAG
        self.bias = 0.0
        self._noise_sd = noise_sd
        # The weight of the prior against one observation: variance of the noise over variance of the bias.
        self._bias_inertia = (noise_sd / prior_sd) ** 2
        self._recent: deque[float] = deque()
        self._pseudo = prior((prior_sd**2 + noise_sd**2) ** 0.5)
        self.values = sorted(self._pseudo)
        self._stale = 0
        self._summarise()

    def observe(self, residual: float) -> None:
        """Learn one r = ln(actual / physical)."""
        self.count = count = self.count + 1
        innovation = residual - self.bias
        rate = 1.0 / (count + self._bias_inertia)
        self.bias += innovation * (rate if rate > self._least_rate else self._least_rate)
        if count < BIAS_KNOWN:
            # While the bias is still being learned, its errors are not noise. The prior stands for the noise.
            self._summarise()
            return
        values = self.values
        if count == BIAS_KNOWN:
            self._pseudo = prior(self._noise_sd)
            self.values = values = sorted(self._pseudo)
        recent = self._recent
        recent.append(innovation)
        insort(values, innovation)
        if self._pseudo:
            if count % 2 == 0:
                del values[bisect_left(values, self._pseudo.pop())]
        elif len(recent) > self._window:
            del values[bisect_left(values, recent.popleft())]
        self._stale = stale = self._stale + 1
        if stale >= self._most_lag or stale > count * LAG:
            self._summarise()

    def correct(self, taken: float, actual: float) -> None:
        """The residual that was learned as `taken` is really `actual`."""
        by = actual - taken
        if abs(by) < 1e-12:
            return
        rate = 1.0 / (self.count + self._bias_inertia)
        self.bias += by * (rate if rate > self._least_rate else self._least_rate)
        recent = self._recent
        if not recent:
            return
        # Its innovation is the one nearest to its value then; the bias has moved little since.
        wanted = taken - self.bias
        at = min(range(len(recent)), key=lambda index: abs(recent[index] - wanted))
        before = recent[at]
        recent[at] = before + by
        del self.values[bisect_left(self.values, before)]
        insort(self.values, before + by)
        self._summarise()

    def quantiles(self, probabilities: Sequence[float]) -> list[float]:
        """The log residuals (bias included) not exceeded with these probabilities."""
        values, bias = self.values, self.bias
        last = len(values) - 1
        found = []
        for probability in probabilities:
            at = probability * (last + 2) - 1
            if at <= 0.0:
                found.append(bias + values[0])
                continue
            low = int(at)
            if low >= last:
                found.append(bias + values[last])
            else:
                value = values[low]
                found.append(bias + value + (at - low) * (values[low + 1] - value))
        return found

    def exceed(self, residual: float) -> float:
        """P(r > residual)."""
        values = self.values
        innovation = residual - self.bias
        at = bisect_left(values, innovation)
        size = len(values)
        if at == 0:
            return 1.0 - 1.0 / ((size + 1) * (1.0 + (values[0] - innovation) / self.tail) ** 2)
        if at == size:
            return 1.0 / ((size + 1) * (1.0 + (innovation - values[-1]) / self.tail) ** 2)
        low = values[at - 1]
        return 1.0 - (at + (innovation - low) / (values[at] - low)) / (size + 1)

    def least_factor(self) -> float:
        """The least actual / physical to be expected (the 1 % quantile, tail included)."""
        values = self.values
        return exp(self.bias + values[0] - (self.tail if len(values) < 2 * PRIOR_SIZE else 0.0))

    def _summarise(self) -> None:
        self._stale = 0
        values = self.values
        size = len(values)
        spread = values[(size * 3) // 4] - values[size // 4]
        self.tail = max(0.5 * spread, 0.02)
        self.median, self.p95 = median, p95 = self.quantiles((0.5, 0.95))
        self.median_factor = exp(median)
        self.p95_factor = exp(p95)
        # The mean of a log-normal with these two quantiles. It is bounded, since a wide prior would explode.
        sd = min((p95 - median) / 1.645, 1.0)
        self.mean_factor = exp(median + 0.5 * sd * sd)
        self.factors = self.median_factor, self.p95_factor, self.mean_factor


class StratifiedResiduals:
    """One pooled window, and one for each stratum of load, because errors of an idle instance say little about a full
    one. `windows` are those to read, by stratum: its own after `OWN_AFTER` observations, the pool before."""

    __slots__ = ("_observed", "pooled", "strata", "windows")

    OWN_AFTER = 16

    def __init__(self, strata: int, prior_sd: float, noise_sd: float, memory: int = 64) -> None:
        self.pooled = ResidualWindow(prior_sd, noise_sd, memory)
        # A stratum is read only once its bias is learned, so its prior does not matter.
        self.strata = [ResidualWindow(prior_sd, noise_sd, memory) for _ in range(strata)]
        self.windows = [self.pooled] * strata
        self._observed = 0

    def correct(self, stratum: int, taken: float, actual: float) -> None:
        """The residual of a stratum that was learned as `taken` is really `actual`."""
        self.strata[stratum].correct(taken, actual)
        if self.strata[stratum].count <= self.OWN_AFTER:
            self.pooled.correct(taken, actual)

    def observe(self, stratum: int, residual: float) -> None:
        """Learn one residual of a stratum."""
        own = self.strata[stratum]
        own.observe(residual)
        if own.count == self.OWN_AFTER:
            self.windows[stratum] = own
        self._observed += 1
        # When the strata are used, the pool only needs to be roughly right.
        if self._observed % 4 == 0 or own.count <= self.OWN_AFTER:
            self.pooled.observe(residual)


class Shrinkage:
    """How much of an estimate from the present load applies to a complete answer.

    TPOT is an average over the next seconds, in which the load moves back towards its mean, so an estimate from the
    present load varies too much. The slope of ln(actual) on ln(estimate) is learned (an exponential average over about
    `MEMORY` answers, with a prior slope of 1). The estimate is moved towards its own mean by this slope. Estimates
    beyond two standard deviations of the observed ones are not moved, because a new overload must be visible.
    """

    __slots__ = ("_count", "_covariance", "_mean_actual", "_variance", "mean", "reach", "slope")

    MEMORY = 512
    #: The weight of the prior slope, as log variance of the estimate (0.1 squared).
    PRIOR_VARIANCE = 0.01

    def __init__(self) -> None:
        self.slope = 1.0
        self._count = 0
        self.mean = 0.0  # of ln(estimate)
        self._mean_actual = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self.reach = 0.0  # two standard deviations

    def observe(self, estimate_s: float, actual_s: float) -> None:
        """An answer took `actual_s`. Its estimate before shrinking was `estimate_s`."""
        self._count += 1
        rate = 1.0 / (self._count if self._count < self.MEMORY else self.MEMORY)
        by = log(estimate_s) - self.mean
        by_actual = log(actual_s) - self._mean_actual
        self.mean += rate * by
        self._mean_actual += rate * by_actual
        self._variance = variance = (1.0 - rate) * (self._variance + rate * by * by)
        self._covariance = covariance = (1.0 - rate) * (self._covariance + rate * by * by_actual)
        slope = (covariance + self.PRIOR_VARIANCE) / (variance + self.PRIOR_VARIANCE)
        self.slope = 0.0 if slope < 0.0 else (1.0 if slope > 1.0 else slope)
        self.reach = 2.0 * sqrt(variance)

    def shrunk(self, estimate_s: float) -> float:
        """The estimate, moved towards the mean estimate."""
        if self.slope >= 1.0:
            return estimate_s
        within = log(estimate_s) - self.mean
        reach = self.reach
        if within > reach:
            within = reach
        elif within < -reach:
            within = -reach
        return estimate_s * exp((self.slope - 1.0) * within)
