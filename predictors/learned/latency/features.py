"""The inputs of the latency model: one row for each event of an instance, one for each request that may join it.

Everything is relative to the instance's own scale: times are divided by the corrected estimate of the request or by one
engine step. So an engine that is a hundred times slower gives the same rows. Prompt tokens are rounded to quarters of a
factor of two, which is too coarse to recognise a prompt.
"""

from __future__ import annotations

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
    *("ttft_steps", "tpot_steps", "ttft_bias", "ttft_count", "tpot_bias", "tpot_count"),
    *("queue_ahead", "seats_taken", "batch_middle", "batch_large"),
    *("prompt_tokens", "cached_share", "output_tokens"),
    *("in_flight", "awaiting", "pending_tokens", "context_tokens"),
    *("running", "waiting", "kv_usage", "report_age"),
    *("oldest_age", "middle_age", "first_token_age", "wait_by_8", "wait_by_32", "wait_by_ends"),
    *("arrival_gap", "arrivals_by_first_tokens", "first_tokens_by_ends"),
    *("ttft_seen", "ttft_last", "ttft_median", "ttft_low", "ttft_high", "ttft_other"),
    *("ttft_error_last", "ttft_error_median", "ttft_error_low", "ttft_error_high"),
    *(
        "tpot_seen",
        "tpot_last",
        "tpot_median",
        "tpot_low",
        "tpot_high",
        "tpot_error_median",
        "tpot_error_last",
    ),
)
LATENCY_FEATURES = EVENT_FEATURES + TARGET_FEATURES
