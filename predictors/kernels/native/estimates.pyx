# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True, nonecheck=True, auto_pickle=False
"""The analytic estimates of `predictors.kernels.reference.estimates`, compiled. See there for what is computed."""

import numpy as np

from predictors.kernels.reference.estimates import MOST_PREFILL_SHARE, AnalyticEstimate, Estimate
from predictors.kernels.step_costs import CONSTANTS

from cpython.dict cimport PyDict_GetItemWithError
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.math cimport exp, floor, sqrt

from predictors.kernels.native.arithmetic cimport item, row_of
from predictors.kernels.native.residuals cimport MOST_STRATA, ResidualWindow, Shrinkage, StratifiedResiduals
from predictors.kernels.native.source cimport HEADWAY_SOURCE
from router.native.fields cimport Field, number, read, write, write_all

SOURCE = HEADWAY_SOURCE.decode()

cdef double MOST_SHARE = MOST_PREFILL_SHARE
cdef object new_tuple = tuple.__new__

assert CONSTANTS == (
    "overhead_s", "floor_s", "token_s", "extra_s", "seq_s", "kv_token_s", "pair_s", "load_s", "kv_capacity_tokens",
    "batched_tokens", "seats",
)


cdef extern from "Python.h":
    object PyType_GenericAlloc(type kind, Py_ssize_t items)


cdef dict WRITTEN = {}  # by their names, the fields that `each_with` writes


cdef list written(tuple names):
    if names not in WRITTEN:
        WRITTEN[names] = [Field(name) for name in names]
    return WRITTEN[names]


cdef Field AWAITING = Field("awaiting_first_token"), CONSTANTS_OF = Field("constants"), CONTEXT = Field("context_tokens")
cdef Field COSTS = Field("costs"), HORIZON = Field("horizon_s"), IN_FLIGHT = Field("in_flight"), INPUT_PRICE = Field("input_usd_per_mtok")
cdef Field KV_CAPACITY = Field("kv_capacity_tokens"), KV_USAGE = Field("kv_usage"), LENGTHS = Field("lengths")
cdef Field LOADED = Field("loaded_models"), MEAN_PROMPT = Field("mean_prompt_tokens"), OUTPUT_PRICE = Field("output_usd_per_mtok")
# One for each class that has a field of a name: see `Field`.
cdef Field COSTS_SPEED = Field("speed"), ROOM = Field("context_tokens")
cdef Field MODEL = Field("model"), NAME = Field("name"), PROFILE = Field("profile"), PROFILES = Field("profiles"), QUALITY = Field("quality"), SPEED = Field("speed")
cdef Field PENDING = Field("pending_prefill_tokens"), PLACE = Field("_at"), PREFILLS = Field("prefills"), PRICE = Field("price")
cdef Field PROMPT_RATIO = Field("prompt_ratio"), REPORT = Field("report"), RUNNING = Field("running"), SHRINKAGE = Field("shrinkage")
cdef Field SUM_TOKENS = Field("sum_tokens"), TPOT = Field("tpot"), TTFT = Field("ttft"), UPDATED_AT = Field("updated_at")


cdef struct Physical:
    double ttft_s, tpot_s, step_s, held
    int ttft_stratum, tpot_stratum


cdef class Estimates:
    """Those of all candidates side by side. Each is put together as a tuple when it is read."""

    def __init__(self, estimates):
        cdef Py_ssize_t n
        cdef Known *known
        given = list(estimates)
        self._reserve(len(given))
        for n in range(len(given)):
            each = given[n]
            self._put(n, each.ttft_errors, each.tpot_errors)
            known = &self._known[n]
            of = each.estimate
            known.ttft_s, known.tpot_s, known.step_s = of.ttft_s, of.tpot_s, of.step_s
            known.ttft_stratum, known.tpot_stratum = of.ttft_stratum, of.tpot_stratum
            known.ttft_bias, known.tpot_bias = of.ttft_bias, of.tpot_bias
            known.ttft_count, known.tpot_count = of.ttft_count, of.tpot_count
            known.prompt_tokens, known.cached_tokens = of.prompt_tokens, of.cached_tokens
            known.output_tokens, known.pending_tokens = of.output_tokens, of.pending_tokens
            known.raw_tpot_s, known.memory_ratio, known.e2e_s = each.raw_tpot_s, each.memory_ratio, each.e2e_s

    def __dealloc__(self):
        cdef Py_ssize_t n
        for n in range(self._size):
            Py_XDECREF(self._known[n].ttft_errors)
            Py_XDECREF(self._known[n].tpot_errors)
        PyMem_Free(self._known)

    cdef int _reserve(self, Py_ssize_t size) except -1:
        if self._known != NULL:
            raise ValueError("estimates that are there")
        self._known = <Known *>PyMem_Malloc(max(size, 1) * sizeof(Known))
        if self._known == NULL:
            raise MemoryError
        self._room = size
        return 0

    cdef int _put(self, Py_ssize_t n, ResidualWindow ttft_errors, ResidualWindow tpot_errors) except -1:
        """What is taken of the windows of the errors of the next candidate."""
        cdef Known *known = &self._known[n]
        if n != self._size or n >= self._room:
            raise IndexError("a candidate that is not the next")
        known.ttft_bias, known.tpot_bias = ttft_errors.median, tpot_errors.median
        known.ttft_count, known.tpot_count = ttft_errors.count, tpot_errors.count
        known.of_ttft[0], known.of_ttft[1] = ttft_errors.median_factor, ttft_errors.p95_factor
        known.of_ttft[2] = ttft_errors.mean_factor
        known.of_tpot[0], known.of_tpot[1] = tpot_errors.median_factor, tpot_errors.p95_factor
        known.of_tpot[2] = tpot_errors.mean_factor
        Py_INCREF(ttft_errors)
        Py_INCREF(tpot_errors)
        known.ttft_errors, known.tpot_errors = <PyObject *>ttft_errors, <PyObject *>tpot_errors
        self._size += 1
        return 0

    cdef Known *at(self, Py_ssize_t n) except NULL:
        if not 0 <= n < self._size:
            raise IndexError("a candidate that is not there")
        return &self._known[n]

    def __len__(self):
        return self._size

    def __getitem__(self, Py_ssize_t n):
        cdef Known *known = self.at(n)
        return new_tuple(AnalyticEstimate, (
            estimate_of(known), known.raw_tpot_s, known.memory_ratio, known.e2e_s, <object>known.ttft_errors, <object>known.tpot_errors,
        ))

    def details(self, Py_ssize_t n, answer, double waited_s, Py_ssize_t row, bytes factors):
        cdef Known *known = self.at(n)
        cdef const double *ttft = factors_of(known, row, factors, 0)
        cdef const double *tpot = factors_of(known, row, factors, 1)
        cdef double engine_ttft_s = known.ttft_s * ttft[0], late_s = known.ttft_s * (ttft[1] - ttft[0]), decode_s = 0.0
        cdef double long_p50, by_tpot_s, by_length_s, e2e_s_p50
        if answer is not None:
            long_p50 = item(answer, LONG_P50)
            if long_p50 > 1.0:
                decode_s = known.tpot_s * tpot[0] * (long_p50 - 1.0)
            by_tpot_s = (tpot[1] / tpot[0] - 1.0) * decode_s
            by_length_s = (item(answer, LONG_P95) - long_p50) * known.tpot_s * tpot[0]
            late_s = sqrt(late_s * late_s + by_tpot_s * by_tpot_s + by_length_s * by_length_s)
        e2e_s_p50 = waited_s + engine_ttft_s + decode_s
        return (
            estimate_of(known), known.raw_tpot_s, known.memory_ratio, (ttft[0], ttft[1], ttft[2]), (tpot[0], tpot[1], tpot[2]),
            engine_ttft_s, waited_s + known.ttft_s * ttft[1], e2e_s_p50, e2e_s_p50 + late_s,
        )

    def soonest(self, Py_ssize_t count):
        cdef Py_ssize_t n, size = self._size
        cdef double bound
        if count >= size:
            return range(size)
        ranks = np.empty(size)
        cdef double[::1] rank = ranks
        for n in range(size):
            rank[n] = self._known[n].e2e_s
        bound = np.partition(ranks, count - 1)[count - 1]
        for n in range(size):
            count -= rank[n] < bound
        found = []
        for n in range(size):
            if rank[n] < bound:
                found.append(n)
            elif count and not rank[n] > bound:  # of equal ones, the first
                found.append(n)
                count -= 1
        return found

    cdef int _check(self, Py_ssize_t first, Py_ssize_t end, answers, others) except -1:
        """Candidates that are there, and columns of all."""
        if not (0 <= first <= end <= self._size and len(answers) == len(others) == self._size):
            raise ValueError("columns of different lengths")
        return 0

    def times(self, list answers, double waited_s, list rows, bytes factors, Py_ssize_t first, Py_ssize_t end):
        cdef Py_ssize_t n, row
        cdef Known *known
        cdef list p50 = [], tpots = []
        self._check(first, end, answers, rows)
        for n in range(first, end):
            known, row = &self._known[n], rows[n]
            p50.append(waited_s + known.ttft_s * factors_of(known, row, factors, 0)[0])
            if answers[n] is None:
                tpots.append(None)
            else:
                tpots.append(known.tpot_s * factors_of(known, row, factors, 1)[0])
        return p50, tpots

    def means(self, list answers, double waited_s, list rows, bytes factors, list decides_ttft, list decides_tpot):
        cdef Py_ssize_t n, size = self._size
        cdef double mean, tokens = 0.0
        cdef Known *known
        cdef list found = []
        self._check(0, size, answers, rows)
        self._check(0, size, decides_ttft, decides_tpot)
        last = found  # no answer
        for n in range(size):
            known = &self._known[n]
            mean = waited_s + known.ttft_s * factors_of(known, <Py_ssize_t>rows[n] if decides_ttft[n] else -1, factors, 0)[2]
            answer = answers[n]
            if answer is not last:
                last, tokens = answer, 0.0 if answer is None else item(answer, LONG_MEAN)
            if tokens > 1.0:
                mean += known.tpot_s * factors_of(known, <Py_ssize_t>rows[n] if decides_tpot[n] else -1, factors, 1)[2] * (tokens - 1.0)
            found.append(mean)
        return found

    @staticmethod
    def lengths(list answers):
        cdef list found = []
        last, tokens = found, None  # no answer
        for answer in answers:
            if answer is not last:
                last, tokens = answer, 0.0 if answer is None else item(answer, MEAN) * item(answer, CHOICES)
            found.append(tokens)
        return found

    def costs(self, list answers, candidates, Py_ssize_t first, Py_ssize_t end):
        cdef Py_ssize_t n
        cdef double cost, tokens = 0.0, input_usd, output_usd
        cdef Source *prices = NULL
        cdef list found = []
        self._check(first, end, answers, candidates)
        if self._sources is not None:
            prices = (<Sources>self._sources)._of
        last = found  # no answer
        for n in range(first, end):
            answer = answers[n]
            if answer is not last:
                last, tokens = answer, 0.0 if answer is None else item(answer, MEAN) * item(answer, CHOICES)
            if self._sources is None:
                price = read(PRICE, candidates[n])
                input_usd, output_usd = number(INPUT_PRICE, price), number(OUTPUT_PRICE, price)
            else:
                input_usd, output_usd = prices[n].input_usd, prices[n].output_usd
            cost = self._known[n].prompt_tokens * input_usd * 1e-6
            if answer is not None:
                cost += tokens * output_usd * 1e-6
            found.append(cost)
        return found


cdef inline const double *factors_of(const Known *known, Py_ssize_t row, bytes factors, int time) except NULL:
    """Those of TTFT (`time` 0) or TPOT: a row of the latency model's, or the estimate's own."""
    if row >= 0:
        return &(<const Factors *>row_of(factors, row, sizeof(Factors))).of[time][0]
    return &known.of_tpot[0] if time else &known.of_ttft[0]


cdef inline object estimate_of(const Known *known):
    return new_tuple(Estimate, (
        known.ttft_s, known.tpot_s, known.ttft_stratum, known.tpot_stratum, known.ttft_bias, known.tpot_bias,
        known.ttft_count, known.tpot_count, known.prompt_tokens, known.cached_tokens, known.output_tokens,
        known.pending_tokens, known.step_s,
    ))


def each_with(kind, tuple names, list columns, Py_ssize_t first, Py_ssize_t end):
    """See `estimates.each_with`."""
    cdef Py_ssize_t at, i, width = len(names)
    cdef list column, fields = written(names), found = []
    if len(columns) != width:
        raise ValueError("columns of different lengths")
    for column in columns:
        if len(column) != end - first:
            raise ValueError("columns of different lengths")
    if kind.__new__ is not object.__new__:
        raise TypeError("a kind of objects that is made in its own way")
    for at in range(first, end):
        each = PyType_GenericAlloc(kind, 0)
        write(PLACE, each, at)
        found.append(each)
    for i in range(width):
        write_all(<Field?>fields[i], found, <list?>columns[i])
    return found


cdef inline object value_of(dict by, key):
    """None if there is none."""
    cdef PyObject *found = PyDict_GetItemWithError(by, key)
    return None if found == NULL else <object>found


def stats_of(dict known, candidates, instances):
    """See `estimates.stats_of`."""
    cdef Py_ssize_t at
    cdef list found = [], missing = []
    if len(candidates) != len(instances):
        raise ValueError("columns of different lengths")
    for at in range(len(candidates)):
        instance, model = instances[at], read(MODEL, candidates[at])
        of = value_of(known, (read(NAME, instance), model))
        if (
            of is None or read(PROFILE, of) is not value_of(<dict?>read(PROFILES, instance), model)
            or number(COSTS_SPEED, read(COSTS, of)) != number(SPEED, instance)
        ):
            missing.append(at)
            of = None
        found.append(of)
    return found, missing


cdef class Sources:
    """See `estimates.Sources`."""

    def __cinit__(self, list stats, candidates):
        cdef Py_ssize_t n, size = len(stats), costs = -1, kind = -1
        cdef dict kinds = {}, places = {}
        cdef Source *of
        if len(candidates) != size:
            raise ValueError("columns of different lengths")
        self.stats, self._firsts = stats, []
        self._of, self._costs = <Source *>PyMem_Calloc(max(size, 1), sizeof(Source)), NULL
        if self._of == NULL:
            raise MemoryError
        self._costs = <Costs *>PyMem_Calloc(max(size, 1), sizeof(Costs))
        if self._costs == NULL:
            raise MemoryError
        last_costs = last_model = last_context = last_quality = kinds  # none that a candidate has
        for n in range(size):
            candidate, each = candidates[n], self.stats[n]
            self._put(n, each, read(PRICE, candidate))
            self._size += 1
            of = &self._of[n]
            if read(COSTS, each) is not last_costs:
                last_costs = read(COSTS, each)
                costs = places.setdefault(last_costs, len(places))
                read_costs(read(CONSTANTS_OF, last_costs), &self._costs[costs])
            model, context, quality = read(MODEL, candidate), read(ROOM, candidate), read(QUALITY, candidate)
            if model is not last_model or context is not last_context or quality is not last_quality:
                last_model, last_context, last_quality = model, context, quality
                kind = kinds.setdefault((model, context, quality), len(kinds))
                if kind == len(self._firsts):
                    self._firsts.append(n)
            of.costs, of.kind = costs, kind

    cdef int _put(self, Py_ssize_t n, each, price) except -1:
        cdef Source *of = &self._of[n]
        cdef StratifiedResiduals ttft = read(TTFT, each), tpot = read(TPOT, each)
        cdef Shrinkage shrinkage = read(SHRINKAGE, each)
        prefills, lengths = read(PREFILLS, each), read(LENGTHS, each)
        of.input_usd, of.output_usd = number(INPUT_PRICE, price), number(OUTPUT_PRICE, price)
        if ttft is None or tpot is None or shrinkage is None:
            raise TypeError("stats without errors")
        Py_INCREF(ttft)
        Py_INCREF(tpot)
        Py_INCREF(shrinkage)
        Py_INCREF(prefills)
        Py_INCREF(lengths)
        of.ttft, of.tpot, of.shrinkage = <PyObject *>ttft, <PyObject *>tpot, <PyObject *>shrinkage
        of.prefills, of.lengths = <PyObject *>prefills, <PyObject *>lengths
        return 0

    def __dealloc__(self):
        cdef Py_ssize_t n
        for n in range(self._size):
            Py_XDECREF(self._of[n].ttft)
            Py_XDECREF(self._of[n].tpot)
            Py_XDECREF(self._of[n].shrinkage)
            Py_XDECREF(self._of[n].prefills)
            Py_XDECREF(self._of[n].lengths)
        PyMem_Free(self._of)
        PyMem_Free(self._costs)

    def __len__(self):
        return self._size

    def __getitem__(self, at):
        return self.stats[at]


cdef int read_costs(constants, Costs *costs) except -1:
    costs.overhead_s, costs.floor_s = item(constants, 0), item(constants, 1)
    costs.token_s, costs.extra_s, costs.seq_s = item(constants, 2), item(constants, 3), item(constants, 4)
    costs.kv_token_s, costs.pair_s, costs.load_s = item(constants, 5), item(constants, 6), item(constants, 7)
    costs.capacity_tokens, costs.batched_tokens = item(constants, 8), item(constants, 9)
    costs.seats = item(constants, 10)
    return 0


def by_model(candidates, Sources stats not None, make):
    """See `estimates.by_model`."""
    cdef Py_ssize_t n
    cdef list made = [], firsts = [], seconds = []
    if len(candidates) != stats._size:
        raise ValueError("columns of different lengths")
    for n in stats._firsts:
        made.append(make(candidates[n], stats.stats[n]))
    for n in range(stats._size):
        first, second = <tuple?>made[stats._of[n].kind]
        firsts.append(first)
        seconds.append(second)
    return firsts, seconds


def analytic_estimates(
    Sources stats not None, candidates, instances, double request_tokens, list cached, list answers, double now
):
    """See `estimates.analytic_estimates`."""
    cdef Py_ssize_t size = stats._size, n
    cdef double ratio = 1.0, prompt_tokens = 0.0, mean_prompt_tokens = 1.0, cached_tokens, pending_tokens
    cdef double mean = 0.0, usual_mean = 0.0, usual_capped = 0.0, long_mean = 0.0
    cdef Estimates estimates = Estimates.__new__(Estimates)
    cdef Known *known
    cdef Source *of
    cdef Physical found
    cdef PyObject *lengths = NULL
    if not size == len(candidates) == len(instances) == len(cached) == len(answers):
        raise ValueError("columns of different lengths")
    estimates._reserve(size)
    estimates._sources = stats
    last_answer = estimates  # none that a candidate has
    for n in range(size):
        of, instance, answer = &stats._of[n], instances[n], answers[n]
        report = read(REPORT, instance)
        if of.lengths != lengths:
            lengths = of.lengths
            ratio, mean_prompt_tokens = number(PROMPT_RATIO, <object>lengths), number(MEAN_PROMPT, <object>lengths)
            prompt_tokens = request_tokens * ratio
        if answer is not last_answer:
            last_answer = answer
            mean, usual_mean = item(answer, MEAN), item(answer, USUAL_MEAN)
            usual_capped, long_mean = item(answer, USUAL_CAPPED), item(answer, LONG_MEAN)
        cached_tokens = <double>cached[n] * ratio
        pending_tokens = number(PENDING, instance) * ratio
        found = physical(
            &stats._costs[of.costs], instance, report, prompt_tokens, cached_tokens, pending_tokens, mean, usual_mean,
            mean_prompt_tokens, rate_of(<object>of.prefills, now),
        )
        loaded = read(LOADED, report)
        if loaded is not None:
            model = candidates[n].upstream_model
            if model not in loaded and f"{model}:latest" not in loaded:
                found.ttft_s += stats._costs[of.costs].load_s
                found.ttft_stratum = 2
        estimates._put(
            n, window_of(<StratifiedResiduals>of.ttft, found.ttft_stratum), window_of(<StratifiedResiduals>of.tpot, found.tpot_stratum)
        )
        known = &estimates._known[n]
        known.ttft_s, known.raw_tpot_s = found.ttft_s, found.tpot_s
        known.tpot_s = (<Shrinkage>of.shrinkage).shrunk(found.tpot_s)
        known.ttft_stratum, known.tpot_stratum = found.ttft_stratum, found.tpot_stratum
        known.prompt_tokens, known.cached_tokens, known.pending_tokens = prompt_tokens, cached_tokens, pending_tokens
        known.output_tokens, known.step_s, known.memory_ratio = usual_capped, found.step_s, found.held
        known.e2e_s = found.ttft_s * known.of_ttft[0] + known.tpot_s * known.of_tpot[0] * long_mean
    return estimates


cdef inline ResidualWindow window_of(StratifiedResiduals of, int stratum):
    """That of the errors under a load of this stratum."""
    if not 0 <= stratum < MOST_STRATA or of.served[stratum] == NULL:
        raise IndexError("a stratum that is not there")
    return <ResidualWindow>of.served[stratum]


cdef enum:  # of `predictors.kernels.reference.lengths.AnswerLength`
    CHOICES = 2
    MEAN = 5
    LONG_P50 = 6
    LONG_P95 = 7
    LONG_MEAN = 8
    USUAL_MEAN = 9
    USUAL_CAPPED = 10


cdef double rate_of(prefills, double now) except? -1.0:
    """`PrefillRate.tokens_per_s`"""
    cdef double tokens = number(SUM_TOKENS, prefills), past_s, horizon_s
    if tokens == 0.0:
        return 0.0
    past_s, horizon_s = now - number(UPDATED_AT, prefills), number(HORIZON, prefills)
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
    cdef double in_flight = number(IN_FLIGHT, instance), awaiting = number(AWAITING, instance), running = number(RUNNING, instance)
    cdef double own_decoding = in_flight - awaiting, decoding, seats = costs.seats, kv_tokens, fixed_s, ttft_s = 0.0, excess
    cdef double batch, step_s, kv_wait_s, new_tokens, budget, work_tokens, first, full_steps, others, linear_s, tpot_s, share
    cdef double prefill_s
    cdef int stratum = 0
    cdef bint waits
    decoding = running - awaiting
    if decoding < 0.0:
        decoding = 0.0
    kv_tokens = number(CONTEXT, instance) - 0.5 * mean_output_tokens * own_decoding
    if kv_tokens < 0.0:
        kv_tokens = 0.0
    if decoding > own_decoding:
        kv_tokens += (decoding - own_decoding) * (mean_prompt_tokens + 0.5 * mean_output_tokens)
        usage = read(KV_USAGE, report)
        if usage is not None:
            kv_tokens = <double>usage * <double>(read(KV_CAPACITY, report) or costs.capacity_tokens)
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
