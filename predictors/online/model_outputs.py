"""The latency model's and the memory model's predictions for the candidates of one request."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import NamedTuple

import numpy as np

from predictors.analytic.log_errors import LogErrors
from predictors.analytic.misses import p_miss, p_miss_without_decode
from predictors.analytic.quantiles import TAUS, factors_of
from predictors.learned.latency.features import target_rows
from predictors.learned.memory import feature_rows
from predictors.online.analytic_estimate import AnalyticEstimate
from predictors.online.fleet_stats import FleetStats
from predictors.online.offsets import calibrated
from predictors.online.prediction import Quantiles
from predictors.online.residuals import ResidualWindow
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
    quantiles: list[Quantiles]
    raw: np.ndarray
    factors: list[list[list[float]]]
    memory_ratios: list[float]
    serves_ttft: list[bool]
    serves_tpot: list[bool]


_NOTHING = ModelOutputs({}, [], np.empty((0, 2, len(TAUS))), [], [], [], [])


def model_outputs(
    fleet: FleetStats,
    request: Request,
    estimates: Sequence[AnalyticEstimate],
    instances: Sequence[Instance],
    now: float,
) -> ModelOutputs:
    """The outputs for each candidate's analytic estimate at its instance."""
    model, memory = fleet.models.latency, fleet.models.memory
    if model is None or not request.decodes:
        return _NOTHING
    serves_ttft, serves_tpot = [False] * len(estimates), [False] * len(estimates)
    modelled: Sequence[int] = range(len(estimates))
    if len(estimates) > _MOST_MODELLED:
        ranks = [each.e2e_s for each in estimates]
        modelled = sorted(nsmallest(_MOST_MODELLED, modelled, key=ranks.__getitem__))
        estimates, instances = [estimates[at] for at in modelled], [instances[at] for at in modelled]
    histories = [fleet.history(instance.name) for instance in instances]
    summaries = [history.summary(instance) for history, instance in zip(histories, instances, strict=True)]
    rows = target_rows(summaries, [each.estimate for each in estimates], now)
    raw = model.quantiles(np.array([history.encoding for history in histories]), rows)
    groups = [each.stats.group for each in estimates]
    quantiles = calibrated(raw, np.array([(each.ttft.values, each.tpot.values) for each in groups]))
    biases = [(each.estimate.ttft_bias, each.estimate.tpot_bias) for each in estimates]
    quantiles += np.array(biases)[:, :, None]
    ratios = [each.memory_ratio for each in estimates]
    if memory is not None:
        reported = [instance.report.kv_usage for instance in instances]
        ratios = memory.predict(feature_rows(ratios, reported, rows)).tolist()
    for at, each in zip(modelled, estimates, strict=True):
        stats = each.stats
        if stats.group.trust.believed:
            serves_ttft[at], serves_tpot[at] = (
                stats.models_ttft(each.estimate),
                stats.models_tpot(each.estimate),
            )
    places = {at: row for row, at in enumerate(modelled)}
    return ModelOutputs(
        places, quantiles.tolist(), raw, factors_of(quantiles).tolist(), ratios, serves_ttft, serves_tpot
    )


def misses(
    slo: Slo, decodes: bool, waited_s: float, estimates: Sequence[AnalyticEstimate], outputs: ModelOutputs
) -> list[float]:
    """P(an SLO is missed) by candidate."""
    if not decodes:
        return [
            p_miss_without_decode(slo, waited_s, each.estimate.ttft_s, each.ttft_errors) for each in estimates
        ]
    windows: list[ResidualWindow | None] = [each.ttft_errors for each in estimates]
    windows += [each.tpot_errors for each in estimates]
    quantiles = []
    for time, serves in enumerate((outputs.serves_ttft, outputs.serves_tpot)):
        for at, row in outputs.rows.items():
            if serves[at]:
                windows[time * len(estimates) + at] = None
                quantiles.append(outputs.quantiles[row][time])
    errors = LogErrors(windows, np.array(quantiles).reshape(-1, len(TAUS)))
    times_s = np.array([each.estimate[:2] for each in estimates]).T
    missed = p_miss(slo, waited_s, times_s, errors, [each.answer for each in estimates])
    found: list[float] = missed.tolist()
    return found
