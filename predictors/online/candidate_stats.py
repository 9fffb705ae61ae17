"""The data of one candidate, an (instance, model), and of each attempt there without a first token."""

from __future__ import annotations

from collections import deque

from predictors.kernels import (
    Coverage,
    GroupCalibration,
    InstanceHistory,
    ModelWeight,
    Shrinkage,
    StratifiedResiduals,
)
from predictors.kernels.step_costs import GENERIC_PROFILE, TPOT_STRATA, TTFT_STRATA, PrefillRate, step_costs
from predictors.online.model_lengths import ModelLengths
from predictors.online.prediction import OnlinePrediction
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Request

#: Log standard deviations before anything is observed: of the bias with a profile, of the bias with the generic profile,
#: and of single observations. They are chosen wide, so that P(miss) is not certain without data.
_PROFILED_SD = 0.35
_GENERIC_SD = 1.2
_TTFT_NOISE_SD = 0.5
_TPOT_NOISE_SD = 0.25
#: Observations over which a bias averages. Errors of TPOT are correlated (answers that decode together see the same
#: arrivals) and are known seconds late, so following them closely would be wrong.
_TTFT_MEMORY = 64
_TPOT_MEMORY = 256
#: An attempt is overdue so much later than the predicted 95 % quantile that rounding does not count it as within.
_LATE = 1.0001


class PendingTtft:
    """An attempt without a first token, with the prediction made at its dispatch. `ttft_s` is set when the first token
    arrives. Log residuals are relative to the physical TTFT. `taken` is the residual that was learned when the attempt
    became overdue."""

    __slots__ = (
        "actual", "dispatched_at", "lost", "median", "overdue_at", "p95", "prediction", "request", "stats", "taken", "ttft_s",
        "void",
    )  # fmt: skip

    ttft_s: float

    def __init__(
        self, request: Request, stats: CandidateStats, prediction: OnlinePrediction, dispatched_at: float
    ) -> None:
        self.request = request
        self.stats = stats
        self.prediction = prediction
        self.dispatched_at = dispatched_at
        OnlinePrediction.complete(prediction)
        estimate = prediction.estimate
        window = stats.ttft.windows[estimate.ttft_stratum]
        self.median, self.p95 = window.median, window.p95  # of the residual, by the physical estimate
        late = _LATE * max(window.p95_factor, prediction.of_ttft[1])
        self.overdue_at = dispatched_at + estimate.ttft_s * late
        self.actual: float | None = None
        self.lost = False  # cancelled or failed; learned at `overdue_at` at the latest
        self.void = False  # it ended without a first token (embeddings), so it shows nothing
        self.taken: float | None = None


class CandidateStats:
    """The data of one (instance, model). The models of an instance share `history`, `prefills` and `coverage`, the
    instances of a model share `lengths`, and all candidates of one model and hardware share `group`."""

    __slots__ = (
        "costs", "coverage", "group", "group_key", "history", "instance", "key", "lengths", "pending", "prefills", "profile",
        "shrinkage", "tpot", "ttft", "weights",
    )  # fmt: skip

    def __init__(
        self,
        key: tuple[str, str],
        instance: Instance,
        profile: EngineProfile | None,
        lengths: ModelLengths,
        prefills: PrefillRate,
        coverage: Coverage,
        history: InstanceHistory | None,
        group_key: tuple[str, str],
        group: GroupCalibration,
    ) -> None:
        self.key = key  # instance and model
        self.instance = instance  # with its counters, as of the last event
        self.profile = profile
        self.costs = step_costs(profile or GENERIC_PROFILE, instance.fixed_slots, instance.speed)
        self.lengths = lengths
        self.prefills = prefills
        self.coverage = coverage
        self.history = history  # None without a latency model
        self.forget_errors()
        self.weights = ModelWeight(), ModelWeight()  # of the latency model, for TTFT and for TPOT
        self.group_key = group_key  # model and hardware
        self.group = group
        self.pending: deque[PendingTtft] = deque()  # in order of dispatch

    def forget_errors(self) -> None:
        """Nothing is known of the physical estimate's errors, as at the start."""
        bias_sd = _GENERIC_SD if self.profile is None else _PROFILED_SD
        self.ttft = StratifiedResiduals(TTFT_STRATA, bias_sd, _TTFT_NOISE_SD, _TTFT_MEMORY)
        self.tpot = StratifiedResiduals(TPOT_STRATA, bias_sd, _TPOT_NOISE_SD, _TPOT_MEMORY)
        self.shrinkage = Shrinkage()
