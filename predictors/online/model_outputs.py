"""The latency model's and the memory model's predictions for the candidates of one request."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from math import log
from typing import NamedTuple

import numpy as np

from predictors.analytic.answer_length import AnswerLength
from predictors.kernels import AnalyticEstimate, memory_rows, p_miss, served_quantiles, target_rows
from predictors.kernels.interfaces import LogError
from predictors.kernels.levels import TAUS
from predictors.learned.models import Models
from predictors.online.candidate_stats import CandidateStats
from router.core.state import Instance
from router.core.types import Request, Slo

#: The latency model predicts for at most this many candidates, those that the analytic estimate ranks first. The others
#: keep the analytic estimate with its own errors.
_MOST_MODELLED = 64


class ModelOutputs(NamedTuple):
    """`rows` maps candidates, in ascending order, to rows; candidates without a prediction are missing. By row: the
    quantiles of log errors after and before calibration (2, TAUS); the factors for the calibrated ones (2, 3: median,
    95 % quantile, mean); and the mean share of KV memory in use.

    `serves_ttft` and `serves_tpot` say, for each candidate with a row, whether the latency model's quantiles are used.
    """

    rows: dict[int, int]
    quantiles: np.ndarray
    raw: np.ndarray
    factors: list[list[list[float]]]
    memory_ratios: list[float]
    serves_ttft: list[bool]
    serves_tpot: list[bool]


_NO_ROWS = np.empty((0, 2, len(TAUS)))


def model_outputs(
    models: Models,
    request: Request,
    stats: Sequence[CandidateStats],
    estimates: Sequence[AnalyticEstimate],
    instances: Sequence[Instance],
    now: float,
) -> ModelOutputs:
    """The outputs for each candidate's analytic estimate at its instance."""
    model, memory = models.latency, models.memory
    serves_ttft, serves_tpot = [False] * len(estimates), [False] * len(estimates)
    if model is None or not request.decodes:
        return ModelOutputs({}, _NO_ROWS, _NO_ROWS, [], [], serves_ttft, serves_tpot)
    modelled: Sequence[int] = range(len(estimates))
    if len(estimates) > _MOST_MODELLED:
        ranks = [each.e2e_s for each in estimates]
        modelled = sorted(nsmallest(_MOST_MODELLED, modelled, key=ranks.__getitem__))
        estimates, instances = [estimates[at] for at in modelled], [instances[at] for at in modelled]
        stats = [stats[at] for at in modelled]
    histories = [
        each.history for each in stats if each.history is not None
    ]  # with a latency model there is one
    summaries = [history.summary(instance) for history, instance in zip(histories, instances, strict=True)]
    groups = [each.group for each in stats]
    rows = target_rows(summaries, [each.estimate for each in estimates], now)
    raw = model.quantiles([history.state for history in histories], rows)
    quantiles, factors = served_quantiles(
        raw,
        [(group.ttft.values, group.tpot.values) for group in groups],
        [(each.estimate.ttft_bias, each.estimate.tpot_bias) for each in estimates],
    )
    ratios = [each.memory_ratio for each in estimates]
    if memory is not None:
        reported = [instance.report.kv_usage for instance in instances]
        ratios = memory.predict(memory_rows(ratios, reported, rows)).tolist()
    for at, of, each in zip(modelled, stats, estimates, strict=True):
        if of.group.trust.believed:
            serves_ttft[at], serves_tpot[at] = of.models_ttft(each.estimate), of.models_tpot(each.estimate)
    places = {at: row for row, at in enumerate(modelled)}
    return ModelOutputs(places, quantiles, raw, factors.tolist(), ratios, serves_ttft, serves_tpot)


def misses(
    slo: Slo,
    decodes: bool,
    waited_s: float,
    estimates: Sequence[AnalyticEstimate],
    answers: Sequence[AnswerLength],
    outputs: ModelOutputs,
) -> list[float]:
    """P(an SLO is missed) by candidate."""
    if not decodes:
        return [
            _p_miss_without_decode(slo, waited_s, each.estimate.ttft_s, each.ttft_errors)
            for each in estimates
        ]
    windows = [
        (None if of_ttft else each.ttft_errors, None if of_tpot else each.tpot_errors)
        for each, of_ttft, of_tpot in zip(estimates, outputs.serves_ttft, outputs.serves_tpot, strict=True)
    ]
    return p_miss(
        slo,
        waited_s,
        [each.estimate for each in estimates],
        answers,
        windows,
        outputs.quantiles,
        [outputs.rows.get(at, 0) for at in range(len(estimates))],
    )


def _p_miss_without_decode(slo: Slo, waited_s: float, ttft_s: float, ttft_error: LogError) -> float:
    """P(an SLO is missed) of a request that decodes nothing (embeddings)."""
    targets = [target for target in (slo.ttft_s, slo.e2e_s) if target is not None]
    if not targets:
        return 0.0
    left_s = min(targets) - waited_s
    return ttft_error.exceed(log(left_s / ttft_s)) if left_s > 0.0 else 1.0
