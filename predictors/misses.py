"""P(an SLO is missed), from distributions of TTFT, TPOT and the answer's length, judged jointly."""

from __future__ import annotations

from math import exp, log

from predictors.answer_length import AnswerLength
from predictors.calibration import LogError
from router.core.types import Slo

#: Equally likely values of TTFT and TPOT that stand for their distributions under an E2E target.
_TTFT_POINTS = (1 / 6, 1 / 2, 5 / 6)
_TPOT_POINTS = (1 / 6, 1 / 2, 5 / 6)


def p_miss_without_decode(slo: Slo, waited_s: float, ttft_s: float, ttft_error: LogError) -> float:
    """P(an SLO is missed) of a request that only prefills (embeddings)."""
    targets = [target for target in (slo.ttft_s, slo.e2e_s) if target is not None]
    if not targets:
        return 0.0
    left_s = min(targets) - waited_s
    return ttft_error.exceed(log(left_s / ttft_s)) if left_s > 0.0 else 1.0


def p_miss(
    slo: Slo,
    waited_s: float,
    ttft_s: float,
    tpot_s: float,
    ttft_error: LogError,
    tpot_error: LogError,
    answer: AnswerLength,
) -> float:
    """P(an SLO is missed); times are physical estimates from the dispatch on, their errors relative to them."""
    cap, choices = answer.cap, answer.choices
    ttft_met = tpot_met = 1.0
    if slo.ttft_s is not None:
        left_s = slo.ttft_s - waited_s
        if left_s <= 0.0:
            return 1.0
        ttft_met = 1.0 - ttft_error.exceed(log(left_s / ttft_s))
    if slo.tpot_s is not None and (cap is None or cap > 1):
        tpot_met = 1.0 - tpot_error.exceed(log(slo.tpot_s / tpot_s)) if slo.tpot_s > 0.0 else 0.0
    if ttft_met <= 0.0 or tpot_met <= 0.0:
        return 1.0
    if slo.e2e_s is None:
        return 1.0 - ttft_met * tpot_met
    left_s = slo.e2e_s - waited_s
    if left_s <= 0.0:
        return 1.0
    tpots = [tpot_s * exp(tpot_error.quantile(share * tpot_met)) for share in _TPOT_POINTS]
    in_time = 0.0
    below = answer.table.below
    for share in _TTFT_POINTS:
        decode_s = left_s - ttft_s * exp(ttft_error.quantile(share * ttft_met))
        if decode_s <= 0.0:
            break
        for point_s in tpots:
            tokens = 1.0 + decode_s / point_s
            if cap is not None and tokens >= cap:
                in_time += 1.0
            elif choices == 1:
                in_time += below(tokens)
            else:
                in_time += below(tokens) ** choices
    return 1.0 - ttft_met * tpot_met * in_time / (len(_TTFT_POINTS) * len(_TPOT_POINTS))
