"""The analytic estimate of a request at one instance, before any trained model is applied."""

from __future__ import annotations

from typing import NamedTuple


class Estimate(NamedTuple):
    """The analytic estimate of TTFT and TPOT in seconds, and its online correction.

    The corrected estimate is `ttft_s * exp(ttft_bias)` and `tpot_s * exp(tpot_bias)`. Each bias is the median log error
    of `*_count` observations under a load of the same stratum. Tokens are as the engine would count them. `step_s` is
    one decoding step of the engine at its present load.
    """

    ttft_s: float
    tpot_s: float
    ttft_stratum: int
    tpot_stratum: int
    ttft_bias: float
    tpot_bias: float
    ttft_count: int
    tpot_count: int
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float
    pending_tokens: float
    step_s: float
