"""A prediction that remembers what it was made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from predictors.latency.features import Estimate
from router.core.types import Prediction

#: Log errors of TTFT and of TPOT, each at `predictors.latency.features.TAUS`.
Quantiles = list[list[float]]


class PhysicalPrediction(Prediction):
    """A `Prediction` that remembers what it was made of, so that its error can be learned: the `estimate`,
    when (`made_at`), TPOT before shrinking (`raw_tpot_s`), and the latency model's `quantiles` (None: not
    asked or not there) of log errors to the physical estimate as they serve, `raw_quantiles` of those to the
    corrected estimate as the model told them.

    It is made for each candidate of each request, and to fill a frozen dataclass takes longer than all of
    the arithmetic; so this one can be written to, which nobody does once it is made.
    """

    __slots__ = ("estimate", "made_at", "quantiles", "raw_quantiles", "raw_tpot_s")

    estimate: Estimate
    made_at: float
    quantiles: Quantiles | None
    raw_quantiles: np.ndarray | None
    raw_tpot_s: float

    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __init__(
        self: Any,  # the fields are read-only in the base
        output_tokens_p50: float,
        output_tokens_p90: float,
        output_tokens_mean: float,
        ttft_s_p50: float,
        ttft_s_p95: float,
        tpot_s: float | None,
        e2e_s_mean: float,
        e2e_s_p50: float,
        e2e_s_p95: float,
        quality: float | None,
        cost_usd: float,
        p_miss: float | None,
        engine_ttft_s: float,
        quality_sd: float | None,
        memory_ratio: float | None,
        estimate: Estimate,
        raw_tpot_s: float,
        quantiles: Quantiles | None,
        raw_quantiles: np.ndarray | None,
        made_at: float,
    ) -> None:
        self.output_tokens_p50 = output_tokens_p50
        self.output_tokens_p90 = output_tokens_p90
        self.output_tokens_mean = output_tokens_mean
        self.ttft_s_p50 = ttft_s_p50
        self.ttft_s_p95 = ttft_s_p95
        self.tpot_s = tpot_s
        self.e2e_s_mean = e2e_s_mean
        self.e2e_s_p50 = e2e_s_p50
        self.e2e_s_p95 = e2e_s_p95
        self.quality = quality
        self.cost_usd = cost_usd
        self.p_miss = p_miss
        self.engine_ttft_s = engine_ttft_s
        self.quality_sd = quality_sd
        self.memory_ratio = memory_ratio
        self.estimate = estimate
        self.raw_tpot_s = raw_tpot_s
        self.quantiles = quantiles
        self.raw_quantiles = raw_quantiles
        self.made_at = made_at
