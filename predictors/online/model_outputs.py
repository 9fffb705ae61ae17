"""The latency model's and the memory model's predictions for the candidates of one request."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from predictors import kernels
from predictors.kernels import Estimates, ModelOutputs, ResidualWindow, Sources, p_miss
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.answer_length import AnswerLength
from predictors.kernels.reference.model_outputs import NO_MEMORY_ROWS
from predictors.kernels.reference.model_weights import PREDICTIONS
from predictors.learned.models import Models
from predictors.online.candidate_stats import CandidateStats
from router.core.state import Instance
from router.core.types import Request, Slo

_NO_ROWS = np.empty((0, 2, len(PREDICTIONS), len(TAUS)))
_NO_FACTORS = np.empty((0, 2, 3))


def model_outputs(
    models: Models,
    request: Request,
    stats: Sources[CandidateStats],
    estimates: Estimates,
    instances: Sequence[Instance],
    now: float,
) -> ModelOutputs:
    """The outputs for each candidate's analytic estimate at its instance."""
    latency, size = models.latency, len(estimates)
    if latency is None or not request.decodes:
        return ModelOutputs(
            [-1] * size, _NO_ROWS, _NO_FACTORS, None, NO_MEMORY_ROWS, [False] * size, [False] * size
        )
    memory = None if models.memory is None else models.memory.network
    return kernels.model_outputs(latency.head, memory, stats, estimates, instances, now)


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
    share = (min(targets) - waited_s) / ttft_s
    return ttft_error.exceed(log(share)) if share > 0.0 else 1.0
