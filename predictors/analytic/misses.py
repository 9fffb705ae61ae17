"""P(an SLO is missed) of N candidates, from the joint distribution of TTFT, TPOT and the answer's length."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import inf, log

import numpy as np

from predictors.analytic.answer_length import AnswerLength
from predictors.analytic.length_table import BINS, EDGES
from predictors.analytic.log_errors import LogError, LogErrors
from router.core.types import Slo

#: Under an E2E target, these equally likely points stand for the distributions of TTFT and TPOT.
_POINTS = np.array([1 / 6, 1 / 2, 5 / 6])
_EQUALLY = np.full(len(_POINTS) ** 2, 1.0 / len(_POINTS) ** 2)
_EDGES = np.array(EDGES)


def p_miss_without_decode(slo: Slo, waited_s: float, ttft_s: float, ttft_error: LogError) -> float:
    """P(an SLO is missed) of a request that decodes nothing (embeddings)."""
    targets = [target for target in (slo.ttft_s, slo.e2e_s) if target is not None]
    if not targets:
        return 0.0
    left_s = min(targets) - waited_s
    return ttft_error.exceed(log(left_s / ttft_s)) if left_s > 0.0 else 1.0


def p_miss(
    slo: Slo, waited_s: float, times_s: np.ndarray, errors: LogErrors, answers: Sequence[AnswerLength]
) -> np.ndarray:
    """(N,): P(an SLO is missed) of each candidate. `times_s` (2, N) are the physical estimates of TTFT and TPOT from the
    dispatch on, `errors` the log errors relative to them. All answers have the same number of choices."""
    size = len(answers)
    ttft_left_s = inf if slo.ttft_s is None else slo.ttft_s - waited_s
    e2e_left_s = inf if slo.e2e_s is None else slo.e2e_s - waited_s
    if ttft_left_s <= 0.0 or e2e_left_s <= 0.0:
        return np.ones(size)
    met = np.ones((2, size))
    if slo.ttft_s is not None or slo.tpot_s is not None:
        # A target that is not set is always met. So is the TPOT target of an answer of one token.
        targets_s = np.full((2, size), inf)
        targets_s[0] = ttft_left_s
        if slo.tpot_s is not None:
            targets_s[1] = [slo.tpot_s if answer.cap is None or answer.cap > 1 else inf for answer in answers]
        targets_s /= times_s
        # A target of 0 s is never met. To silence the warning costs as much as ten logarithms, so it is done only then.
        with np.errstate(divide="ignore") if slo.tpot_s == 0.0 else nullcontext():
            residuals = np.log(targets_s)
        met -= errors.exceed(residuals.ravel()).reshape(2, size)
    found: np.ndarray = met[0] * met[1]
    if slo.e2e_s is not None:
        sampled = errors.quantiles(met.reshape(-1, 1) * _POINTS).reshape(2, size, len(_POINTS))
        points_s = times_s[:, :, None] * np.exp(sampled)
        found *= _ended(e2e_left_s - points_s[0], points_s[1], answers).reshape(size, -1) @ _EQUALLY
    return np.maximum(1.0 - found, 0.0)  # rounding: shares add up to slightly more than 1


def _ended(decode_s: np.ndarray, tpot_s: np.ndarray, answers: Sequence[AnswerLength]) -> np.ndarray:
    """(N, points of TTFT, points of TPOT): P(an answer has ended `decode_s` after its first token)."""
    tokens = 1.0 + np.maximum(decode_s, 0.0)[:, :, None] / tpot_s[:, None, :]
    places: dict[int, int] = {}
    curves: list[np.ndarray] = []
    for answer in answers:
        if places.setdefault(id(answer.table), len(places)) == len(curves):
            curves.append(answer.table.curve)
    values = np.array(curves).ravel()
    at = _EDGES.searchsorted(tokens, "right") - 1  # never -1: one token lies above the first edge
    place = at + np.array([places[id(answer.table)] * 2 * (BINS + 1) for answer in answers])[:, None, None]
    shares: np.ndarray = values[place] + (tokens - _EDGES[at]) * values[place + (BINS + 1)]
    if answers[0].choices > 1:
        shares **= answers[0].choices
    caps = np.array([inf if answer.cap is None else answer.cap for answer in answers])
    shares[tokens >= caps[:, None, None]] = 1.0
    shares *= (decode_s > 0.0)[:, :, None]
    return shares
