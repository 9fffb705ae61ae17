"""The latency model's and the memory model's predictions for the candidates of one request."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from predictors.kernels import Estimates, ResidualWindow, memory_rows, p_miss, served_quantiles, target_rows
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.answer_length import AnswerLength
from predictors.kernels.reference.model_weights import PREDICTIONS
from predictors.learned.models import Models
from predictors.online.candidate_stats import CandidateStats
from predictors.online.prediction import ModelOutputs
from router.core.state import Instance
from router.core.types import Request, Slo

#: The latency model predicts for at most this many candidates, those that the analytic estimate ranks first. The others
#: keep the analytic estimate with its own errors.
_MOST_MODELLED = 64
#: Observations of an instance before the latency model decides there. Before that it cannot distinguish a profile that fits
#: from one that does not.
_LEAST_OBSERVED = 2

_NO_ROWS = np.empty((0, 2, len(PREDICTIONS), len(TAUS)))
_NO_FACTORS = np.empty((0, 2, 3))


def model_outputs(
    models: Models,
    request: Request,
    stats: Sequence[CandidateStats],
    estimates: Estimates,
    instances: Sequence[Instance],
    now: float,
) -> ModelOutputs:
    """The outputs for each candidate's analytic estimate at its instance."""
    model, memory, size = models.latency, models.memory, len(estimates)
    rows, decides_ttft, decides_tpot = [-1] * size, [False] * size, [False] * size
    if model is None or not request.decodes:
        return ModelOutputs(rows, _NO_ROWS, _NO_FACTORS, [], decides_ttft, decides_tpot)
    places = estimates.soonest(_MOST_MODELLED)
    of_places = [stats[at] for at in places]
    known = [estimates.estimate(at) for at in places]
    offsets = [(each.group.offsets[0].values, each.group.offsets[1].values) for each in of_places]
    states, summaries = [], []
    for row, (at, of, estimate) in enumerate(zip(places, of_places, known, strict=True)):
        rows[at] = row
        if of.history is not None:  # with a latency model there is one
            states.append(of.history.state)
            summaries.append(of.history.summary(instances[at]))
        decides_ttft[at] = estimate.ttft_count >= _LEAST_OBSERVED
        decides_tpot[at] = estimate.tpot_count >= _LEAST_OBSERVED and of.profile is None
    targets = target_rows(summaries, known, now)
    quantiles, factors = served_quantiles(
        model.quantiles(states, targets), estimates, places, [each.weights for each in of_places], offsets
    )
    ratios = [estimates.memory_ratio(at) for at in places]
    if memory is not None:
        reported = [instances[at].report.kv_usage for at in places]
        ratios = memory.predict(memory_rows(ratios, reported, targets)).tolist()
    return ModelOutputs(rows, quantiles, factors, ratios, decides_ttft, decides_tpot)


def misses(
    slo: Slo,
    decodes: bool,
    waited_s: float,
    estimates: Estimates,
    answers: Sequence[AnswerLength],
    outputs: ModelOutputs,
) -> list[float]:
    """P(an SLO is missed) by candidate."""
    if not decodes:
        return [
            _p_miss_without_decode(slo, waited_s, each.estimate.ttft_s, each.ttft_errors)
            for each in estimates
        ]
    return p_miss(
        slo,
        waited_s,
        estimates,
        answers,
        outputs.decides_ttft,
        outputs.decides_tpot,
        outputs.quantiles[:, :, 0],
        outputs.rows,
    )


def _p_miss_without_decode(slo: Slo, waited_s: float, ttft_s: float, ttft_error: ResidualWindow) -> float:
    """P(an SLO is missed) of a request that decodes nothing (embeddings)."""
    targets = [target for target in (slo.ttft_s, slo.e2e_s) if target is not None]
    if not targets:
        return 0.0
    left_s = min(targets) - waited_s
    return ttft_error.exceed(log(left_s / ttft_s)) if left_s > 0.0 else 1.0
