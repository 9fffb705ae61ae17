"""Learners of the errors of predicted TTFT and TPOT, by candidate.

An error is ln(actual / physical estimate). It corrects the physical estimate of the candidate (`residuals`). Where the
latency model predicted too, it also changes the model's weight (`predictors.kernels.reference.quantiles`), calibrates the quantiles that serve
and counts their accuracy (`predictors.kernels.reference.calibration`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log
from typing import Annotated

from pydantic import Field

from predictors.kernels.levels import P50, P95
from predictors.kernels.step_costs import TPOT_STRATA, TTFT_STRATA
from predictors.online.candidate_stats import CandidateStats, PendingTtft
from predictors.online.learner import EndEvent, Learner, LossEvent
from predictors.online.observation import CandidateKey, Log, Quantiles, Seconds
from router.compiled import compiled_init

#: Two events at the same moment count as this far apart.
LEAST_S = 1e-6

TtftStratum = Annotated[int, Field(ge=0, lt=TTFT_STRATA)]
TpotStratum = Annotated[int, Field(ge=0, lt=TPOT_STRATA)]


@compiled_init
@dataclass(slots=True)
class TtftError:
    """A log error of the physical TTFT. `median` and `p95` are the physical estimate's predictions of it. `quantiles` are
    those of all predictions, where the latency model predicted."""

    candidate: CandidateKey
    stratum: TtftStratum
    residual: Log
    median: Log
    p95: Log
    quantiles: Quantiles

    def for_other_models(self) -> TtftError:
        return replace(self, quantiles=()) if self.quantiles else self


@dataclass(slots=True)
class TtftCorrection:
    """A log error of TTFT that was learned as `taken`, while the attempt was overdue, turned out to be `residual`."""

    candidate: CandidateKey
    stratum: TtftStratum
    taken: Log
    residual: Log


@compiled_init
@dataclass(slots=True)
class TpotError:
    """A log error of the physical TPOT, whose estimate was `raw_s` before shrinking. `quantiles` as in `TtftError`."""

    candidate: CandidateKey
    stratum: TpotStratum
    residual: Log
    raw_s: Seconds
    actual_s: Seconds
    quantiles: Quantiles

    def for_other_models(self) -> TpotError:
        return replace(self, quantiles=()) if self.quantiles else self


class TtftErrors(Learner[TtftError | TtftCorrection]):
    """Learns TTFT in order of dispatch, each as soon as it is known or overdue, because otherwise fast first tokens
    would be counted first. An overdue TTFT is learned as if the first token came now, and corrected when it arrives."""

    observations = (TtftError, TtftCorrection)

    def observe_due(self, stats: CandidateStats, now: float) -> TtftError | None:
        """The next attempt of a candidate, in order of dispatch, whose TTFT is known or overdue. It leaves the queue."""
        pending = stats.pending
        while pending:
            entry = pending[0]
            estimate = entry.prediction.estimate
            if entry.void:
                pending.popleft()
                continue
            if entry.actual is not None:
                pending.popleft()
                residual = entry.actual
            elif now >= entry.overdue_at:
                pending.popleft()
                until = entry.overdue_at if entry.lost else now
                waited_s = max(until - entry.dispatched_at, LEAST_S)
                if entry.lost and waited_s < estimate.ttft_s * exp(entry.median):
                    continue  # it ended too early for a first token, so it shows nothing
                # The least value that is still possible: a larger guess would reinforce itself.
                entry.taken = residual = log(waited_s / estimate.ttft_s)
            else:
                return None
            return TtftError(
                stats.key,
                estimate.ttft_stratum,
                residual,
                entry.median,
                entry.p95,
                entry.prediction.quantiles(0),
            )
        return None

    def observe_first_token(self, attempt: PendingTtft) -> TtftCorrection | None:
        taken, actual, stats = attempt.taken, attempt.actual, attempt.stats
        if taken is None or actual is None or self.stats.candidates.get(stats.key) is not stats:
            return None
        return TtftCorrection(stats.key, attempt.prediction.estimate.ttft_stratum, taken, actual)

    def apply(self, observation: TtftError | TtftCorrection, now: float) -> None:
        stats = self.stats.candidates[observation.candidate]
        if isinstance(observation, TtftCorrection):
            stats.ttft.correct(observation.stratum, observation.taken, observation.residual)
            return
        residual, quantiles = observation.residual, observation.quantiles
        stats.ttft.observe(observation.stratum, residual)
        if quantiles:
            group = stats.group
            stats.weights[0].learn(quantiles, residual)
            group.offsets[0].learn(quantiles, residual, stats.instance.awaiting_first_token)
            group.accuracy.observe(
                residual, quantiles[P50], quantiles[P95], observation.median, observation.p95
            )


def served(error: TtftError) -> tuple[float, float]:
    """The predicted (median, 95 % quantile) of a log error that were used."""
    if error.quantiles:
        return error.quantiles[P50], error.quantiles[P95]
    return error.median, error.p95


class TpotErrors(Learner[TpotError]):
    """Learns the TPOT of each answer when it ends, also in the middle."""

    observations = (TpotError,)

    def observe_end(self, event: EndEvent | LossEvent) -> TpotError | None:
        stats, prediction, tpot_s = event.stats, event.prediction, event.tpot_s
        if stats is None or prediction is None or tpot_s is None or tpot_s <= 0.0:
            return None
        estimate = prediction.estimate
        return TpotError(
            stats.key,
            estimate.tpot_stratum,
            log(tpot_s / estimate.tpot_s),
            prediction.raw_tpot_s,
            tpot_s,
            prediction.quantiles(1),
        )

    def observe_loss(self, event: LossEvent) -> TpotError | None:
        return self.observe_end(event)

    def apply(self, observation: TpotError, now: float) -> None:
        stats = self.stats.candidates[observation.candidate]
        if observation.quantiles:
            stats.weights[1].learn(observation.quantiles, observation.residual)
            stats.group.offsets[1].learn(observation.quantiles, observation.residual)
        stats.tpot.observe(observation.stratum, observation.residual)
        stats.shrinkage.observe(observation.raw_s, observation.actual_s)
