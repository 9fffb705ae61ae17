"""The inputs of the latency model: one row for each event of an instance, one for each request that may join it.

Everything is relative to the instance's own scale: times are divided by the corrected estimate of the request or by one
engine step. So an engine that is a hundred times slower gives the same rows. Prompt tokens are rounded to quarters of a
factor of two, which is too coarse to recognise a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictors.analytic.estimate import Estimate

#: Two moments closer than this are the same moment: their difference is rounding.
_LEAST_GAP_S = 1e-6

EVENT_FEATURES = (
    "event.dispatched",
    "event.first_token",
    "event.ended",
    "event.lost",
    "event.reported",
    "event.gap",  # log steps since the event before
    "event.size",  # log tokens: prompt of a dispatch, answer of an end
    "event.steps",  # log steps: corrected TTFT of a dispatch, TTFT of a first token, TPOT of an end
    "event.cached",  # share of its prompt
    "event.error",  # ln(actual / corrected estimate) of TTFT or TPOT
    "event.in_flight",
    "event.awaiting",
    "event.pending_steps",
    "event.oldest_steps",
    "event.context_tokens",
    "event.running",
    "event.waiting",
    "event.kv_usage",
)
TARGET_FEATURES = (
    "ttft_steps",
    "tpot_steps",
    "ttft_bias",
    "ttft_count",
    "tpot_bias",
    "tpot_count",
    "queue_ahead",
    "seats_taken",
    "batch_middle",
    "batch_large",
    "prompt_tokens",
    "cached_share",
    "output_tokens",
    "in_flight",
    "awaiting",
    "pending_tokens",
    "context_tokens",
    "running",
    "waiting",
    "kv_usage",
    "report_age",
    "oldest_age",
    "middle_age",
    "first_token_age",
    "wait_by_8",
    "wait_by_32",
    "wait_by_ends",
    "arrival_gap",
    "arrivals_by_first_tokens",
    "first_tokens_by_ends",
    "ttft_seen",
    "ttft_last",
    "ttft_median",
    "ttft_low",
    "ttft_high",
    "ttft_other",
    "ttft_error_last",
    "ttft_error_median",
    "ttft_error_low",
    "ttft_error_high",
    "tpot_seen",
    "tpot_last",
    "tpot_median",
    "tpot_low",
    "tpot_high",
    "tpot_error_median",
    "tpot_error_last",
)
LATENCY_FEATURES = EVENT_FEATURES + TARGET_FEATURES


def target_rows(summaries: Sequence[np.ndarray], estimates: Sequence[Estimate], now: float) -> np.ndarray:
    """(N, target features): a row for each of N instances that a request may join, from the summary of its history
    (`predictors.learned.latency.history.InstanceHistory.summary`) and the request's estimate there."""
    seen = np.array(summaries).T
    moments, weights, ahead, counters = seen[:8], seen[8:16], seen[16], seen[17:23]
    not_cached, is_cached, of_tpot, errors = seen[23:28], seen[28:33], seen[33:38], seen[38:44]
    expected = np.array(estimates, float).T
    ttft_stratum, tpot_stratum = expected[2], expected[3]
    ttft_bias, tpot_bias, step_s = expected[4], expected[5], expected[12]
    prompt_tokens, cached_tokens, pending_tokens = expected[8], expected[9], expected[11]

    log_ttft, log_tpot, log_step = np.log(expected[[0, 1, 12]])
    ttft = log_ttft + ttft_bias  # log seconds of the corrected estimate
    by_ttft = np.exp(-ttft)
    # How long ago events were, and the mean gaps between the last few; 0 where there are none.
    gaps_s = np.maximum(now - moments, 0.0) * weights
    relative = np.empty_like(gaps_s)
    np.multiply(gaps_s[:4], by_ttft, out=relative[:4])
    np.multiply(gaps_s[4:7], ahead * by_ttft, out=relative[4:7])
    np.divide(gaps_s[7], step_s, out=relative[7])
    first_ended_arrival_s = gaps_s[5:8]
    known = first_ended_arrival_s > _LEAST_GAP_S
    first, ended, arrival = np.log(np.where(known, first_ended_arrival_s, 1.0))
    cached = cached_tokens / (prompt_tokens + 1.0)
    own = np.where(cached > 0.5, is_cached, not_cached)
    other = np.where(cached > 0.5, not_cached, is_cached)

    rows = np.empty((len(TARGET_FEATURES), len(estimates)))
    rows[0], rows[1] = log_ttft - log_step, log_tpot - log_step
    rows[2], rows[4] = ttft_bias, tpot_bias
    rows[3], rows[5] = np.log1p(expected[6:8])
    rows[6], rows[7] = ttft_stratum == 1.0, ttft_stratum == 2.0
    rows[8], rows[9] = tpot_stratum == 1.0, tpot_stratum == 2.0
    rows[10], rows[12] = 0.25 * np.rint(4.0 * np.log2(expected[[8, 10]] + 1.0))
    rows[11] = cached
    rows[13:15], rows[16:20] = counters[:2], counters[2:]
    rows[15] = np.log1p(pending_tokens)
    rows[20:28] = np.log1p(relative)
    rows[28] = np.where(known[2] & known[0], arrival - first, 0.0)
    rows[29] = np.where(known[0] & known[1], first - ended, 0.0)
    rows[30], rows[31:35] = own[0], (own[1:] - ttft) * own[0]
    rows[35] = (other[2] - ttft) * other[0]
    rows[36:40] = errors[:4]
    rows[40], rows[41:45] = of_tpot[0], (of_tpot[1:] - log_tpot - tpot_bias) * of_tpot[0]
    rows[45:47] = errors[4:]
    return rows.T
