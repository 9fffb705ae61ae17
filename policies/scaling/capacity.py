"""What one instance carries while its requests keep their SLO, from its engine profile.

In a steady state with n sequences that decode, requests of P prompt and O output tokens come and go at the rate
n / (O * step_s), where each step also prefills n * P / O tokens: the roofline step of `router.core.profile` with
chunked prefill, as Sarathi-Serve describes it (Agrawal et al., OSDI 2024). The step is the TPOT. For the TTFT the
prompts queue for the prefill: its 95th percentile is taken as three mean waits of an M/G/1 queue
(Pollaczek-Khinchine) whose service times vary as log-normal prompts do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from policies.scaling.types import ScalingPool
from router.core.types import Slo

#: Squared coefficient of variation of prompt lengths, of the Azure conversation trace of 2023 (1.1) and ServeGen (2 to 3).
_PROMPT_CV2 = 2.0
#: The 95th percentile of an exponential wait, in means.
_P95_OF_MEAN = 3.0


#: Steps of the bisection; the last interval is a thousandth of the first.
_STEPS = 10


class Capacity(NamedTuple):
    """`rate_per_s` of requests that one instance carries, with `concurrency` of them under way, for `service_s` each."""

    rate_per_s: float
    concurrency: float
    service_s: float


def slo_capacity(pool: ScalingPool, prompt_tokens: float, output_tokens: float) -> Capacity:
    """The largest rate at which the pool's SLO holds, for requests of these mean lengths. Where no load keeps it, that of
    an instance that has one request at a time."""
    lengths = prompt_tokens, output_tokens
    low, high = 0.0, float(pool.concurrency)
    best = None
    for _ in range(_STEPS):  # more sequences at a time are never faster
        middle = (low + high) / 2
        found = _kept(pool, middle, *lengths)
        if found is None or found.concurrency > pool.concurrency:
            high = middle
        else:
            low, best = middle, found
    if best is not None:
        return best
    alone_s = pool.profile.prefill_s(max(1, round(prompt_tokens))) + output_tokens * _step_s(
        pool, 1.0, *lengths
    )
    return Capacity(1 / alone_s, 1.0, alone_s)


def _step_s(pool: ScalingPool, sequences: float, prompt_tokens: float, output_tokens: float) -> float:
    """The mean step with this many sequences that decode."""
    prefilled = sequences * prompt_tokens / output_tokens
    context = prompt_tokens + output_tokens / 2
    pairs = prefilled * (prompt_tokens + 1) / 2
    return pool.profile.step_s(round(prefilled), max(1, round(sequences)), sequences * context, pairs)


def _kept(pool: ScalingPool, sequences: float, prompt_tokens: float, output_tokens: float) -> Capacity | None:
    """The load with this many sequences that decode; None if the SLO does not hold there."""
    profile = pool.profile
    step_s = _step_s(pool, sequences, prompt_tokens, output_tokens)
    decode_s = output_tokens * step_s
    rate_per_s = sequences / decode_s
    prefill_s = profile.prefill_s(max(1, round(prompt_tokens)))
    busy = rate_per_s * prefill_s
    if busy >= 1 or sequences * (prompt_tokens + output_tokens / 2) > profile.kv_capacity_tokens:
        return None
    wait_s = busy / (1 - busy) * prefill_s * (1 + _PROMPT_CV2) / 2
    ttft_s = prefill_s + step_s + wait_s
    service_s = ttft_s + decode_s
    late_s = ttft_s + (_P95_OF_MEAN - 1) * wait_s
    slo = pool.slo or Slo()
    keeps = (
        (slo.tpot_s is None or step_s <= slo.tpot_s)
        and (slo.ttft_s is None or late_s <= slo.ttft_s)
        and (slo.e2e_s is None or late_s + decode_s <= slo.e2e_s)
    )
    return Capacity(rate_per_s, rate_per_s * service_s, service_s) if keeps else None


def needed_rate(rate_per_s: float, service_s: float, margin: float) -> float:
    """The rate to provide for: the mean and `margin` standard deviations of the load in the time of one request. That is
    square-root staffing, a + margin * sqrt(a) for an offered load of a requests at a time (Halfin and Whitt, 1981)."""
    return rate_per_s + margin * math.sqrt(rate_per_s / service_s)
