# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""The analytic estimates of `predictors.kernels.reference.estimates`, compiled. See there for what is computed."""

from predictors.kernels.reference.estimates import CONSTANTS, MOST_PREFILL_SHARE, AnalyticEstimate, Estimate

from libc.math cimport exp, floor, log

from predictors.kernels.native.arithmetic cimport item
from predictors.kernels.native.residuals cimport ResidualWindow, Shrinkage, StratifiedResiduals


cdef extern from *:
    """
    #ifndef HEADWAY_SOURCE
    #define HEADWAY_SOURCE ""
    #endif
    """
    const char *HEADWAY_SOURCE

#: What this module was compiled from (`predictors.kernels.digest`).
SOURCE = HEADWAY_SOURCE.decode()

cdef double MOST_SHARE = MOST_PREFILL_SHARE
cdef object new_tuple = tuple.__new__

assert CONSTANTS == (
    "overhead_s", "floor_s", "token_s", "extra_s", "seq_s", "kv_token_s", "pair_s", "load_s", "kv_capacity_tokens",
    "batched_tokens", "seats",
)


cdef struct Costs:
    double overhead_s, floor_s, token_s, extra_s, seq_s, kv_token_s, pair_s, load_s, capacity_tokens, batched_tokens, seats


cdef struct Physical:
    double ttft_s, tpot_s, step_s, held
    int ttft_stratum, tpot_stratum


def analytic_estimates(list stats, candidates, instances, double request_tokens, list cached, list answers, double now):
    """See `estimates.analytic_estimates`."""
    cdef Py_ssize_t size = len(stats), n
    cdef double ratio, prompt_tokens, cached_tokens, pending_tokens, tpot_s, ttft_bias, tpot_bias, long_mean
    cdef Physical found
    cdef Costs costs
    cdef ResidualWindow ttft_errors, tpot_errors
    if not size == len(candidates) == len(instances) == len(cached) == len(answers):
        raise ValueError("columns of different lengths")
    estimates = []
    for n in range(size):
        of, instance, answer = stats[n], instances[n], answers[n]
        lengths, report = of.lengths, instance.report
        ratio = lengths.prompt_ratio
        prompt_tokens = request_tokens * ratio
        cached_tokens = <double>cached[n] * ratio
        pending_tokens = <double>instance.pending_prefill_tokens * ratio
        constants = of.costs.constants
        costs.overhead_s, costs.floor_s = item(constants, 0), item(constants, 1)
        costs.token_s, costs.extra_s, costs.seq_s = item(constants, 2), item(constants, 3), item(constants, 4)
        costs.kv_token_s, costs.pair_s, costs.load_s = item(constants, 5), item(constants, 6), item(constants, 7)
        costs.capacity_tokens, costs.batched_tokens = item(constants, 8), item(constants, 9)
        costs.seats = item(constants, 10)
        found = physical(
            &costs, instance, report, prompt_tokens, cached_tokens, pending_tokens, item(answer, MEAN),
            item(answer, USUAL_MEAN), lengths.mean_prompt_tokens, rate_of(of.prefills, now),
        )
        loaded = report.loaded_models
        if loaded is not None:
            model = candidates[n].upstream_model
            if model not in loaded and f"{model}:latest" not in loaded:
                found.ttft_s += costs.load_s
                found.ttft_stratum = 2
        ttft_errors = (<StratifiedResiduals?>of.ttft).windows[found.ttft_stratum]
        tpot_errors = (<StratifiedResiduals?>of.tpot).windows[found.tpot_stratum]
        tpot_s = (<Shrinkage?>of.shrinkage).shrunk(found.tpot_s)
        ttft_bias, tpot_bias, long_mean = ttft_errors.median, tpot_errors.median, item(answer, LONG_MEAN)
        estimate = new_tuple(Estimate, (
            found.ttft_s, tpot_s, found.ttft_stratum, found.tpot_stratum, ttft_bias, tpot_bias, ttft_errors.count,
            tpot_errors.count, prompt_tokens, cached_tokens, item(answer, USUAL_CAPPED), pending_tokens, found.step_s,
        ))
        estimates.append(new_tuple(AnalyticEstimate, (
            estimate, found.tpot_s, found.held, found.ttft_s * exp(ttft_bias) + tpot_s * exp(tpot_bias) * long_mean,
            ttft_errors, tpot_errors,
        )))
    return estimates


cdef enum:  # of `predictors.analytic.answer_length.AnswerLength`
    MEAN = 5
    LONG_MEAN = 8
    USUAL_MEAN = 9
    USUAL_CAPPED = 10


cdef double rate_of(prefills, double now) except? -1.0:
    """`PrefillRate.tokens_per_s`"""
    cdef double past_s = now - <double>prefills.updated_at, horizon_s = prefills.horizon_s, tokens = prefills.sum_tokens
    if past_s <= 0.0:
        return tokens / horizon_s
    return tokens * exp(-past_s / horizon_s) / horizon_s


cdef double step_of(Costs *costs, double fixed_s, double tokens) noexcept:
    """Seconds of one step over so many tokens."""
    cdef double linear_s = tokens * costs.token_s
    return fixed_s + (linear_s if linear_s > costs.floor_s else costs.floor_s) + tokens * costs.extra_s


cdef Physical physical(
    Costs *costs, instance, report, double prompt_tokens, double cached_tokens, double pending_tokens, double output_tokens,
    double mean_output_tokens, double mean_prompt_tokens, double prefill_tokens_per_s,
) except *:
    """`estimates.physical_estimate`"""
    cdef Physical found
    cdef double in_flight = instance.in_flight, awaiting = instance.awaiting_first_token, running = in_flight
    cdef double own_decoding = in_flight - awaiting, decoding, seats = costs.seats, kv_tokens, fixed_s, ttft_s = 0.0, excess
    cdef double batch, step_s, kv_wait_s, new_tokens, budget, work_tokens, first, full_steps, others, linear_s, tpot_s, share
    cdef double prefill_s
    cdef int stratum = 0
    cdef bint waits
    reported = report.running
    if reported is not None:
        running = (
            <double>reported + <double>(report.waiting or 0) + <double>instance.dispatched_since_report
            - <double>instance.ended_since_report
        )
        if running < in_flight:
            running = in_flight
    decoding = running - awaiting
    if decoding < 0.0:
        decoding = 0.0
    kv_tokens = <double>instance.context_tokens - 0.5 * mean_output_tokens * own_decoding
    if kv_tokens < 0.0:
        kv_tokens = 0.0
    if decoding > own_decoding:
        kv_tokens += (decoding - own_decoding) * (mean_prompt_tokens + 0.5 * mean_output_tokens)
        usage = report.kv_usage
        if usage is not None:
            kv_tokens = <double>usage * <double>(report.kv_capacity_tokens or costs.capacity_tokens)
    fixed_s = costs.overhead_s + kv_tokens * costs.kv_token_s + decoding * costs.seq_s

    waits = running >= seats
    excess = kv_tokens + pending_tokens + prompt_tokens - costs.capacity_tokens
    if waits or (excess > 0.0 and decoding > 0.0):
        step_s = step_of(costs, fixed_s, running if running < seats else seats)
        if waits:
            ttft_s = (running - seats + 1) / seats * mean_output_tokens * step_s
            if decoding > seats - 1:
                decoding = seats - 1
        if excess > 0.0 and decoding > 0.0:
            kv_wait_s = excess / (kv_tokens if kv_tokens > 1.0 else 1.0) * mean_output_tokens * step_s
            if kv_wait_s > ttft_s:
                ttft_s = kv_wait_s
        stratum = 2

    new_tokens = prompt_tokens - cached_tokens
    if new_tokens < 1.0:
        new_tokens = 1.0
    budget = costs.batched_tokens - decoding
    if budget < 16.0:
        budget = 16.0
    work_tokens = new_tokens
    if running > 0.0:
        first = pending_tokens if pending_tokens < budget else budget
        ttft_s += 0.5 * step_of(costs, fixed_s, first + decoding)
        work_tokens += pending_tokens - first
    if work_tokens >= budget:
        full_steps = floor(work_tokens / budget)
        work_tokens -= full_steps * budget
        ttft_s += full_steps * step_of(costs, fixed_s, budget + decoding)
    if work_tokens:
        ttft_s += step_of(costs, fixed_s, work_tokens + decoding)
    ttft_s += new_tokens * (cached_tokens + 0.5 * (new_tokens + 1.0)) * costs.pair_s
    if pending_tokens:
        ttft_s += 0.5 * pending_tokens * pending_tokens / (awaiting if awaiting else 1.0) * costs.pair_s
        if not stratum:
            stratum = 1

    others = decoding + awaiting
    if others >= seats:
        others = seats - 1
    batch = others + 1
    linear_s = batch * costs.token_s
    if linear_s < costs.floor_s:
        linear_s = costs.floor_s
    tpot_s = (
        fixed_s + linear_s + batch * costs.extra_s + (batch - decoding) * costs.seq_s
        + (pending_tokens + prompt_tokens + 0.5 * output_tokens) * costs.kv_token_s
    )
    found.step_s = tpot_s
    found.held = (kv_tokens + pending_tokens + prompt_tokens + 0.5 * output_tokens) / costs.capacity_tokens
    if found.held > 1.0:
        found.held = 1.0
    if prefill_tokens_per_s:
        prefill_s = (batch + mean_prompt_tokens) * costs.token_s - linear_s
        if prefill_s < 0.0:
            prefill_s = 0.0
        share = prefill_tokens_per_s * (
            prefill_s / mean_prompt_tokens + costs.extra_s + 0.5 * mean_prompt_tokens * costs.pair_s
        )
        tpot_s /= 1.0 - (share if share < MOST_SHARE else MOST_SHARE)
    found.ttft_s, found.tpot_s, found.ttft_stratum = ttft_s, tpot_s, stratum
    found.tpot_stratum = 0 if batch <= 4.0 else (1 if batch <= 32.0 else 2)
    return found
