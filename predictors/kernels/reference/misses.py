"""P(an SLO is missed) of N candidates, from the joint distribution of TTFT, TPOT and the answer's length."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log

import numpy as np

from predictors.kernels.reference.estimates import AnalyticEstimate
from predictors.kernels.reference.lengths import AnswerLength
from predictors.kernels.reference.quantiles import QuantileErrors
from predictors.kernels.reference.residuals import ResidualWindow
from router.core.types import Slo

#: Under an E2E target, these equally likely points stand for the distributions of TTFT and TPOT.
_POINTS = 1 / 6, 1 / 2, 5 / 6
#: Log errors are cut here, so that their exponentials are neither 0 nor too large.
_MOST_LOG = 700.0


def p_miss(
    slo: Slo,
    waited_s: float,
    estimates: Sequence[AnalyticEstimate],
    answers: Sequence[AnswerLength],
    decides_ttft: Sequence[bool],
    decides_tpot: Sequence[bool],
    quantiles: np.ndarray,
    rows: Sequence[int],
) -> list[float]:
    """P(an SLO is missed) of each candidate.

    The log errors of an estimate are distributed as its windows say; where the latency model serves TTFT or TPOT, as the
    candidate's row of `quantiles` (N, 2, PREDICTIONS, TAUS) says. All `answers` have the same number of choices.
    """
    ttft_left_s = inf if slo.ttft_s is None else slo.ttft_s - waited_s
    e2e_left_s = inf if slo.e2e_s is None else slo.e2e_s - waited_s
    if ttft_left_s <= 0.0 or e2e_left_s <= 0.0:
        return [1.0] * len(answers)
    missed = []
    for each, answer, by_ttft, by_tpot, row in zip(
        estimates, answers, decides_ttft, decides_tpot, rows, strict=True
    ):
        ttft_s, tpot_s = each.estimate[:2]
        of_ttft = QuantileErrors(quantiles[row, 0, 0].tolist()) if by_ttft else each.ttft_errors
        of_tpot = QuantileErrors(quantiles[row, 1, 0].tolist()) if by_tpot else each.tpot_errors
        met_ttft = _met(of_ttft, ttft_left_s / ttft_s)
        # The TPOT target of an answer of one token is always met.
        several = answer.cap is None or answer.cap > 1
        met_tpot = _met(of_tpot, slo.tpot_s / tpot_s) if slo.tpot_s is not None and several else 1.0
        met = met_ttft * met_tpot
        if slo.e2e_s is not None:
            decodes_s = [e2e_left_s - ttft_s * factor for factor in _factors(of_ttft, met_ttft)]
            tpots_s = [tpot_s * factor for factor in _factors(of_tpot, met_tpot)]
            ended = sum(_ended(answer, decode_s, tpot_s) for decode_s in decodes_s for tpot_s in tpots_s)
            met *= ended / len(_POINTS) ** 2
        missed.append(max(1.0 - met, 0.0))  # rounding: shares add up to slightly more than 1
    return missed


def _met(errors: ResidualWindow | QuantileErrors, factor: float) -> float:
    """P(actual / estimated <= factor). The factor may have been rounded to 0 or to infinity."""
    return 1.0 - errors.exceed(log(factor) if factor > 0.0 else -inf)


def _factors(errors: ResidualWindow | QuantileErrors, met: float) -> list[float]:
    """Equally likely points of actual / estimated, where the target that is met with this probability is met."""
    return [
        exp(max(-_MOST_LOG, min(each, _MOST_LOG)))
        for each in errors.quantiles([met * point for point in _POINTS])
    ]


def _ended(answer: AnswerLength, decode_s: float, tpot_s: float) -> float:
    """P(an answer has ended `decode_s` after its first token)."""
    if decode_s <= 0.0:
        return 0.0
    tokens = 1.0 + decode_s / tpot_s
    if tokens >= (inf if answer.cap is None else answer.cap):
        return 1.0
    return answer.table.share_of(tokens) ** max(answer.choices, 1)
