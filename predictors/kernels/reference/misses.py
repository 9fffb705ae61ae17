"""P(an SLO is missed) of N candidates, from the joint distribution of TTFT, TPOT and the answer's length."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import inf

import numpy as np

from predictors.kernels.length_bins import BINS, EDGES
from predictors.kernels.levels import TAUS
from predictors.kernels.reference.answer_length import AnswerLength
from predictors.kernels.reference.estimates import AnalyticEstimate
from predictors.kernels.reference.quantiles import Distributions
from predictors.kernels.reference.residuals import ResidualWindow
from router.core.types import Slo

#: Under an E2E target, these equally likely points stand for the distributions of TTFT and TPOT.
_POINTS = np.array([1 / 6, 1 / 2, 5 / 6])
_EQUALLY = np.full(len(_POINTS) ** 2, 1.0 / len(_POINTS) ** 2)
_EDGES = np.array(EDGES)
#: So many seconds times or divided by any predicted time are finite.
_HUGE_S = 1e200


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
    candidate's row of `quantiles` (N, 2, TAUS) says. All `answers` have the same number of choices.
    """
    size = len(answers)
    if not len(estimates) == len(decides_ttft) == len(decides_tpot) == len(rows) == size:
        raise ValueError("columns of different lengths")
    if not size:
        return []
    times_s = np.array([each.estimate[:2] for each in estimates], float).T
    windows: list[tuple[ResidualWindow | None, ResidualWindow | None]] = [
        (None if by_ttft else each.ttft_errors, None if by_tpot else each.tpot_errors)
        for each, by_ttft, by_tpot in zip(estimates, decides_ttft, decides_tpot, strict=True)
    ]
    modelled = [
        quantiles[row, time]
        for time in range(2)
        for row, both in zip(rows, windows, strict=True)
        if both[time] is None
    ]
    errors = LogErrors(
        [both[time] for time in range(2) for both in windows], np.array(modelled).reshape(-1, len(TAUS))
    )
    ttft_left_s = inf if slo.ttft_s is None else slo.ttft_s - waited_s
    e2e_left_s = inf if slo.e2e_s is None else slo.e2e_s - waited_s
    if ttft_left_s <= 0.0 or e2e_left_s <= 0.0:
        return [1.0] * size
    met = np.ones((2, size))
    tpot_s = inf if slo.tpot_s is None else slo.tpot_s
    usual = all(1.0 / _HUGE_S < each < _HUGE_S or each == inf for each in (ttft_left_s, tpot_s, e2e_left_s))
    # A target may be 0 s, or a share of a time that rounds to 0 or to infinity. To silence the warnings costs as much as ten
    # logarithms, so it is done only then.
    with nullcontext() if usual else np.errstate(all="ignore"):
        if slo.ttft_s is not None or slo.tpot_s is not None:
            # A target that is not set is always met. So is the TPOT target of an answer of one token.
            targets_s = np.full((2, size), inf)
            targets_s[0] = ttft_left_s
            if slo.tpot_s is not None:
                targets_s[1] = [tpot_s if answer.cap is None or answer.cap > 1 else inf for answer in answers]
            met -= errors.exceed(np.log(targets_s / times_s).ravel()).reshape(2, size)
        found = met[0] * met[1]
        if slo.e2e_s is not None:
            sampled = errors.quantiles(met.reshape(-1, 1) * _POINTS).reshape(2, size, len(_POINTS))
            points_s = times_s[:, :, None] * np.exp(sampled)
            found *= _ended(e2e_left_s - points_s[0], points_s[1], answers).reshape(size, -1) @ _EQUALLY
    missed: list[float] = np.maximum(
        1.0 - found, 0.0
    ).tolist()  # rounding: shares add up to slightly more than 1
    return missed


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


class LogErrors:
    """`windows` (2 N,) are those of TTFT, then those of TPOT; None where the latency model serves. `quantiles`
    (candidates that it serves, TAUS) are the model's, in the same order."""

    __slots__ = ("_modelled", "_quantiles", "_read", "_windows")

    def __init__(self, windows: Sequence[ResidualWindow | None], quantiles: np.ndarray) -> None:
        self._quantiles = Distributions(quantiles)
        self._modelled = [at for at, window in enumerate(windows) if window is None]
        self._windows = [(at, window) for at, window in enumerate(windows) if window is not None]
        self._read = [at for at, _ in self._windows]

    def exceed(self, residuals: np.ndarray) -> np.ndarray:
        """(2 N,): P(r > residual) of each distribution, for one residual each."""
        if not self._windows:
            return self._quantiles.exceed(residuals)
        given = residuals.tolist()
        read = [window.exceed(given[at]) for at, window in self._windows]
        if not self._modelled:
            return np.array(read)
        found = np.empty(residuals.shape)
        found[self._modelled] = self._quantiles.exceed(residuals[self._modelled])
        found[self._read] = read
        return found

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """(2 N, K): the log errors not exceeded with these probabilities (2 N, K)."""
        if not self._windows:
            return self._quantiles.quantiles(shares)
        given = shares.tolist()
        read = [window.quantiles(given[at]) for at, window in self._windows]
        if not self._modelled:
            return np.array(read)
        found = np.empty(shares.shape)
        found[self._modelled] = self._quantiles.quantiles(shares[self._modelled])
        found[self._read] = read
        return found
