"""A prediction that keeps its inputs, so that its errors can be learned."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from predictors.analytic.answer_length import AnswerLength
from predictors.kernels.reference.estimates import Estimate
from predictors.online.tree_offsets import TreeForecast
from router.core.types import Prediction

#: Log errors of TTFT and of TPOT, each at `predictors.kernels.levels.TAUS`.
Quantiles = list[list[float]]


class OnlinePrediction(Prediction):
    """The prediction of `predictors.online.predictor.OnlinePredictor`.

    It keeps the `estimate`, the time at which it was made (`made_at`), TPOT before shrinking (`raw_tpot_s`) and the
    answer's length (None: nothing is decoded). `quantiles` are the calibrated quantiles of the latency model, of log
    errors to the physical estimate; `raw_quantiles` are the model's own, of log errors to the corrected estimate. Both
    are None if the model did not predict. `of_ttft` and `of_tpot` are the factors (median, 95 % quantile, mean) of
    actual to physical times.

    One is made for each candidate of each request. Filling a frozen dataclass would take longer than all of the
    arithmetic, so this class is writable; but no code changes it later. Values that are rarely read are properties.
    """

    __slots__ = (
        "_quantiles", "_raw", "_row", "answer", "estimate", "made_at", "of_tpot", "of_ttft", "raw_tpot_s", "trees", "waited_s",
    )  # fmt: skip

    _quantiles: np.ndarray  # (rows, 2, TAUS): of all candidates of the request, as is `_raw`
    _raw: np.ndarray
    _row: int | None
    answer: AnswerLength | None
    estimate: Estimate
    made_at: float
    of_tpot: Sequence[float]
    of_ttft: Sequence[float]
    raw_tpot_s: float
    trees: TreeForecast | None  # set if the policy is `predicted_latency`
    waited_s: float  # since the request's arrival

    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __init__(
        self: Any,  # the fields are read-only in the base
        estimate: Estimate,
        answer: AnswerLength | None,
        of_ttft: Sequence[float],
        of_tpot: Sequence[float],
        waited_s: float,
        cost_usd: float,
        quality: tuple[float | None, float | None],
        p_miss: float | None,
        memory_ratio: float,
        raw_tpot_s: float,
        quantiles: np.ndarray,
        raw: np.ndarray,
        row: int | None,
        made_at: float,
    ) -> None:
        self.estimate = estimate
        self.answer = answer
        self.of_ttft = of_ttft
        self.of_tpot = of_tpot
        self.waited_s = waited_s
        self.cost_usd = cost_usd
        self.quality, self.quality_sd = quality
        self.p_miss = p_miss
        self.memory_ratio = memory_ratio
        self.raw_tpot_s = raw_tpot_s
        self._quantiles = quantiles
        self._raw = raw
        self._row = row
        self.made_at = made_at
        self.trees = None
        ttft_s, tpot_s = estimate[:2]
        self.ttft_s_p50 = waited_s + ttft_s * of_ttft[0]
        self.e2e_s_mean = waited_s + ttft_s * of_ttft[2]
        if answer is None:
            self.tpot_s = None
            return
        self.tpot_s = tpot_s * of_tpot[0]
        if answer.long_mean > 1.0:
            self.e2e_s_mean += tpot_s * of_tpot[2] * (answer.long_mean - 1.0)

    @property
    def quantiles(self) -> Quantiles | None:
        if self._row is None:
            return None
        quantiles: Quantiles = self._quantiles[self._row].tolist()
        return quantiles

    @property
    def raw_quantiles(self) -> np.ndarray | None:
        return None if self._row is None else self._raw[self._row]

    @property
    def output_tokens_p50(self) -> float:
        return 0.0 if self.answer is None else self.answer.p50 * self.answer.choices

    @property
    def output_tokens_p90(self) -> float:
        return 0.0 if self.answer is None else self.answer.p90 * self.answer.choices

    @property
    def output_tokens_mean(self) -> float:
        return 0.0 if self.answer is None else self.answer.mean * self.answer.choices

    @property
    def engine_ttft_s(self) -> float:
        return self.estimate.ttft_s * self.of_ttft[0]

    @property
    def ttft_s_p95(self) -> float:
        return self.waited_s + self.estimate.ttft_s * self.of_ttft[1]

    @property
    def e2e_s_p50(self) -> float:
        return self.waited_s + self.engine_ttft_s + self._decode_s_p50

    @property
    def e2e_s_p95(self) -> float:
        # Upper deviations of independent parts add as squares.
        by_ttft_s = self.estimate.ttft_s * (self.of_ttft[1] - self.of_ttft[0])
        if self.answer is None:
            return self.e2e_s_p50 + by_ttft_s
        median, p95, _ = self.of_tpot
        by_tpot_s = (p95 / median - 1.0) * self._decode_s_p50
        by_length_s = (self.answer.long_p95 - self.answer.long_p50) * self.estimate.tpot_s * median
        return self.e2e_s_p50 + sqrt(
            by_ttft_s * by_ttft_s + by_tpot_s * by_tpot_s + by_length_s * by_length_s
        )

    @property
    def _decode_s_p50(self) -> float:
        if self.answer is None or self.answer.long_p50 <= 1.0:
            return 0.0
        return self.estimate.tpot_s * self.of_tpot[0] * (self.answer.long_p50 - 1.0)
