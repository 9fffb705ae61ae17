"""What is kept for one (instance, model), and for each attempt there that has no first token yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import exp

from predictors.analytic.physical import GENERIC_PROFILE, TPOT_STRATA, TTFT_STRATA, PrefillRate, StepCosts
from predictors.learned.latency.conformal import Distribution
from predictors.learned.latency.features import TAUS, Estimate, Track
from predictors.online.calibration import GroupCalibration, LogError
from predictors.online.coverage import Coverage
from predictors.online.model_lengths import ModelLengths
from predictors.online.prediction import PhysicalPrediction, Quantiles
from predictors.online.residuals import Shrinkage, StratifiedResiduals
from router.core.profile import EngineProfile

#: Log standard deviations before anything is seen: of a profiled estimate's bias, of the generic one's,
#: and of single observations. A choice, wide on purpose: P(miss) shall not be sure of what nobody has seen.
_PROFILED_SD = 0.35
_GENERIC_SD = 1.2
_TTFT_NOISE_SD = 0.5
_TPOT_NOISE_SD = 0.25
#: Observations over which a bias averages. Errors of TPOT come in spells (answers that decode together see
#: the same arrivals) and are known seconds late, so following them closely would chase the last spell.
_TTFT_MEMORY = 64
_TPOT_MEMORY = 256


#: Observations of an instance before the latency model is heard on it.
_LEAST_SEEN = 2
#: Places of the median and of the 95 % quantile among TAUS.
P50, P95 = TAUS.index(0.5), TAUS.index(0.95)


class Open:
    """An attempt that has no first token yet, as it was predicted at its dispatch; log residuals are relative
    to the physical TTFT. `taken` is the residual that was learned before the actual one was known."""

    __slots__ = (
        "actual", "dispatched_at", "lost", "overdue_at", "physical", "prediction", "taken", "void",
    )  # fmt: skip

    def __init__(
        self,
        prediction: PhysicalPrediction,
        dispatched_at: float,
        physical: tuple[float, float],
    ) -> None:
        self.prediction = prediction
        self.dispatched_at = dispatched_at
        self.physical = physical  # median and 95 % quantile
        late = physical[1]
        if prediction.quantiles is not None:
            late = max(late, prediction.quantiles[0][P95])
        self.overdue_at = dispatched_at + prediction.estimate.ttft_s * exp(min(late, 20.0))
        self.actual: float | None = None
        self.lost = False  # given up, at `overdue_at` at the latest
        self.void = False  # it ended whole without a first token (embeddings): it tells nothing
        self.taken: float | None = None


class Pair:
    """What is kept for one (instance, model)."""

    __slots__ = (
        "costs", "coverage", "group", "group_name", "lengths", "name", "open", "prefills", "profile", "shrinkage", "tpot", "tpot_bias",
        "track", "ttft", "ttft_bias",
    )  # fmt: skip

    def __init__(
        self,
        name: tuple[str, str],
        profile: EngineProfile | None,
        fixed_slots: bool,
        speed: float,
        lengths: ModelLengths,
        prefills: PrefillRate,
        coverage: Coverage,
        track: Track | None,
        group_name: tuple[str, str],
        group: GroupCalibration,
    ) -> None:
        self.name = name  # instance and model
        self.profile = profile
        self.costs = StepCosts(profile or GENERIC_PROFILE, fixed_slots, speed)
        self.lengths = lengths
        self.prefills = prefills  # of the instance, whatever the model
        self.coverage = coverage  # likewise
        self.track = track  # likewise; None without a latency model
        bias_sd = _GENERIC_SD if profile is None else _PROFILED_SD
        self.ttft = StratifiedResiduals(TTFT_STRATA, bias_sd, _TTFT_NOISE_SD, _TTFT_MEMORY)
        self.shrinkage = Shrinkage()
        self.tpot = StratifiedResiduals(TPOT_STRATA, bias_sd, _TPOT_NOISE_SD, _TPOT_MEMORY)
        self.group_name = group_name  # model and hardware
        self.group = group  # what is learned of them
        self.open: deque[Open] = deque()  # without a first token, in order of dispatch

    def learn_ttft(
        self, stratum: int, residual: float, physical: tuple[float, float], told: Sequence[float] | None
    ) -> tuple[float, float]:
        """Learn one log error of the physical TTFT. `physical` are its median and 95 % quantile as foretold, `told` the
        latency model's quantiles (None: not asked, or it had not seen enough). The two quantiles that served."""
        self.ttft.observe(stratum, residual)
        served = physical
        if told is not None:
            self.group.ttft.learn(told, residual)
            learned = told[P50], told[P95]
            if self.group.trust.believed:
                served = learned
            self.group.trust.saw(residual, learned, physical)
        return served

    def learn_tpot(
        self, stratum: int, residual: float, raw_s: float, actual_s: float, told: Sequence[float] | None
    ) -> None:
        """Learn one log error of the physical TPOT, which was `raw_s` before shrinking; `told` as above."""
        if told is not None:
            self.group.tpot.learn(told, residual)
        self.tpot.observe(stratum, residual)
        self.shrinkage.observe(raw_s, actual_s)

    def ttft_told(self, known: Estimate) -> bool:
        """Whether enough was seen here for the latency model to say more of TTFT than the physical estimate: before
        that it cannot know a profile that fits from one that does not."""
        return known.ttft_count >= _LEAST_SEEN

    def tpot_told(self, known: Estimate) -> bool:
        """The same of TPOT, and only where no profile tells how a step grows with its batch. What is learned from logs
        of how answers went on includes the requests that came later; a decision wants to know what this one adds."""
        return self.profile is None and known.tpot_count >= _LEAST_SEEN

    def ttft_error(self, known: Estimate, quantiles: Quantiles | None) -> LogError:
        """Distribution of ln(actual / physical TTFT)."""
        if quantiles is None or not self.ttft_told(known):
            return self.ttft.window(known.ttft_stratum)
        return Distribution(quantiles[0])

    def tpot_error(self, known: Estimate, quantiles: Quantiles | None) -> LogError:
        """Distribution of ln(actual / physical TPOT)."""
        if quantiles is None or not self.tpot_told(known):
            return self.tpot.window(known.tpot_stratum)
        return Distribution(quantiles[1])
