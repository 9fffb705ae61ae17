# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True, nonecheck=True, auto_pickle=False
"""The networks of `predictors.kernels.reference`, compiled. See there for what each computes.

Weights and work space are memory views that are made once, since a view costs as much as a small product. A call holds the
interpreter's lock from its beginning to its end, so that threads may share a network.
"""

import numpy as np

from predictors.kernels.reference import latency_networks as reference_latency
from predictors.kernels.reference import length_network as reference_length
from predictors.kernels.reference import prompt_encoder as reference_encoder
from predictors.kernels.reference import relevance_network as reference_relevance

from libc.math cimport exp, expf, fabs, fabsf, log, log1p, log1pf, log2, logf, rint, sqrt, sqrtf
from libc.string cimport memcpy

from predictors.kernels.native.arithmetic cimport (
    PARTS, PATCH_WORDS, add_product, add_row, add_steps, copy_first, copy_row, copy_row_of, data_of, headway_add_product,
    headway_normal_of_doubles, headway_place_words, headway_relu_all, headway_step, headway_sum_grams, item, layer, mixture,
    normalize, read_patches, relu_all, row_of, silu_all, standardize, take_words, tanh_all, tanh_of, within,
)
from predictors.kernels.native.source cimport HEADWAY_SOURCE

SOURCE = HEADWAY_SOURCE.decode()

assert reference_length.PATCH == PATCH_WORDS and reference_length.COMPONENTS + 1 == PARTS


cdef object zeros_of(tuple shape):
    """They begin at a line of a cache, so that vectors of a matrix do not lie on two."""
    cdef Py_ssize_t size = 1, each
    for each in shape:
        size *= each
    room = np.zeros(size + 16, np.float32)
    cdef Py_ssize_t first = -(room.ctypes.data // 4) % 16
    return room[first:first + size].reshape(shape)


cdef object floats(object array, Py_ssize_t columns=0):
    """A copy with `columns`, of which the last ones are 0 (0: with its own)."""
    *rows, given = np.shape(array)
    found = zeros_of((*rows, max(given, columns)))
    found[..., :given] = array
    return found


cdef object empty = np.empty


def fitting(array, *shape):
    """The same for an array that must have this shape."""
    if np.shape(array) != shape:
        raise ValueError("weights that do not fit each other")
    return floats(array)


cdef Py_ssize_t whole(Py_ssize_t columns):
    """So many and a few more, so that they are whole vectors."""
    return (columns + 7) // 8 * 8


cdef float[::1] zeros(Py_ssize_t size):
    return zeros_of((max(size, 1),))[:size]


cdef class LatencyNetwork:
    def __init__(self, arrays):
        weights = reference_latency.LatencyNetwork(arrays)
        hidden, width, taus = len(weights.by_hidden), len(weights.middle), weights.widths.shape[1]
        outputs = whole(weights.last.shape[1])
        self._hidden, self._width, self._taus, self._outputs, self._clip = hidden, width, taus, outputs, reference_latency.CLIP
        self._events = len(weights.event_mean)
        self._event_mean, self._event_by = fitting(weights.event_mean, self._events), fitting(weights.event_by, self._events)
        self._by_event, self._by_hidden = fitting(weights.by_event, self._events, 4 * hidden), fitting(weights.by_hidden, hidden, 4 * hidden)
        self._gate_bias = fitting(weights.gate_bias, 4 * hidden)
        self._join, self._join_bias = fitting(weights.join_encoding, hidden, width), fitting(weights.join_bias, width)
        self._target_mean, self._target_by = fitting(weights.target_mean, TARGETS), fitting(weights.target_by, TARGETS)
        self._by_target = floats(weights.by_target, width + outputs)
        self._middle, self._middle_bias = fitting(weights.middle, width, width), fitting(weights.middle_bias, width)
        self._last, self._last_bias = floats(weights.last, outputs), floats(weights.last_bias, outputs)
        self._widths = fitting(weights.widths, 2, taus)
        if np.shape(self._by_target) != (TARGETS, width + outputs) or np.shape(self._last) != (width, outputs) or outputs < 2 * taus:
            raise ValueError("weights that do not fit each other")
        self._event, self._gates, self._row = zeros(self._events), zeros(4 * hidden), zeros(TARGETS)
        self._first, self._second = zeros_of((TOGETHER, width + outputs)), zeros(width)

    def start(self):
        state = np.zeros(2 * self._hidden + self._width, np.float32)
        state[2 * self._hidden:] = self._join_bias
        return state

    def step(self, tuple row, float[::1] state):
        self.advance(np.array(row, np.float64), state)
        self.encode(state)

    cdef int _check(self, const float[::1] state) except -1:
        if state.shape[0] != 2 * self._hidden + self._width:
            raise ValueError("a state of another size")
        return 0

    cdef int advance(self, const double[::1] row, float[::1] state) except -1:
        """All but the encoding, which `encode` brings up to date."""
        cdef Py_ssize_t hidden = self._hidden
        self._check(state)
        normalize[double](row, self._event_mean, self._event_by, self._clip, self._event)
        layer(self._event, self._by_event, self._gate_bias, self._gates)
        headway_step(&self._by_hidden[0, 0], &self._gates[0], &state[0], hidden, hidden)
        return 0

    cdef int encode(self, float[::1] state) except -1:
        cdef float *encoding = &state[0] + 2 * self._hidden
        self._check(state)
        memcpy(encoding, &self._join_bias[0], self._width * sizeof(float))
        headway_add_product(&state[0], &self._join[0, 0], encoding, self._hidden, self._width)
        return 0

    def quantiles(self, states, const double[:, ::1] rows):
        cdef Py_ssize_t size = rows.shape[0], begin, end, n
        cdef const float[::1] state
        found = np.empty((size, 2, self._taus), np.float32)
        cdef float[:, :, ::1] quantiles = found
        if len(states) != size or rows.shape[1] != TARGETS:
            raise ValueError("states and rows that do not fit")
        for begin in range(0, size, TOGETHER):
            end = min(begin + TOGETHER, size)
            for n in range(begin, end):
                state = states[n]
                self.put(n - begin, state, &rows[n, 0])
            self.finish(end - begin, self._taus, &quantiles[begin, 0, 0])
        return found

    # Layer by layer for a few candidates, so that weights that are used stay in the nearest cache.
    cdef int put(self, Py_ssize_t n, const float[::1] state, const double *target) except -1:
        """The first layer of the next of a few candidates. `target` has TARGETS numbers."""
        cdef Py_ssize_t width = self._width, outputs = self._outputs
        cdef float *first = &self._first[n, 0]
        self._check(state)
        headway_normal_of_doubles(target, &self._target_mean[0], &self._target_by[0], self._clip, &self._row[0], TARGETS)
        memcpy(first, &state[2 * self._hidden], width * sizeof(float))
        memcpy(first + width, &self._last_bias[0], outputs * sizeof(float))
        headway_add_product(&self._row[0], &self._by_target[0, 0], first, TARGETS, width + outputs)
        headway_relu_all(first, width)
        return 0

    cdef int finish(self, Py_ssize_t size, Py_ssize_t taus, float *quantiles) except -1:
        """The other layers of all of them: 2 x `taus` quantiles of each."""
        cdef Py_ssize_t width = self._width, n, i, time
        cdef float *out
        cdef float *first
        cdef float *second = &self._second[0]
        cdef float median, above
        if taus != self._taus:
            raise ValueError("quantiles of other probabilities")
        for n in range(size):
            first = &self._first[n, 0]
            memcpy(second, &self._middle_bias[0], width * sizeof(float))
            headway_add_product(first, &self._middle[0, 0], second, width, width)
            headway_relu_all(second, width)
            out = first + width
            headway_add_product(second, &self._last[0, 0], out, width, self._outputs)
            for time in range(2):
                median = out[0]
                quantiles[1] = median
                quantiles[0] = median - softplus(out[1]) * self._widths[time, 0]
                above = 0.0
                for i in range(2, taus):
                    above += softplus(out[i])
                    quantiles[i] = median + above * self._widths[time, i]
                quantiles += taus
                out += taus
        return 0


cdef float softplus(float x) noexcept:
    return (x if x > 0.0 else 0.0) + log1pf(expf(-fabsf(x))) if x == x else x


cdef class MemoryNetwork:
    def __init__(self, arrays):
        weights = reference_latency.MemoryNetwork(arrays)
        self._mean, self._by = floats(weights.mean), floats(weights.by)
        hidden = whole(len(weights.first_bias))
        self._first, self._bias, self._last = floats(weights.first, hidden), floats(weights.first_bias, hidden), floats(weights.last)
        self._clip = reference_latency.CLIP
        self.row, self._normal, self._hidden = zeros(len(weights.mean)), zeros(len(weights.mean)), zeros(hidden)

    def predict(self, const float[:, :] rows):
        cdef Py_ssize_t n
        if rows.shape[1] != self.row.shape[0]:
            raise ValueError("rows of another size")
        found = np.empty(rows.shape[0], np.float32)
        cdef float[::1] ratios = found
        for n in range(rows.shape[0]):
            self.row[:] = rows[n]
            ratios[n] = self.ratio()
        return found

    def predict_one(self, bytes rows, Py_ssize_t at):
        cdef Py_ssize_t size = self.row.shape[0] * sizeof(float)
        memcpy(&self.row[0], row_of(rows, at, size), size)
        return self.ratio()

    cdef float ratio(self) except -1.0:
        """That of the `row` that is filled in."""
        cdef Py_ssize_t last = self._last.shape[0], i
        cdef float[::1] normal = self._normal, hidden = self._hidden
        cdef float logit = 0.0
        normalize[float](self.row, self._mean, self._by, self._clip, normal)
        layer(normal, self._first, self._bias, hidden)
        relu_all(hidden[:last])
        for i in range(last):
            logit += hidden[i] * self._last[i]
        logit += hidden[last]
        logit += self.row[0]
        return 0.5 * tanh_of(0.5 * logit) + 0.5


def memory_rows(held, kv_usage, target_rows):
    """See `latency_networks.memory_rows`."""
    cdef const double[:, :] targets = np.asarray(target_rows, np.float64)
    cdef Py_ssize_t size = targets.shape[0], n, i
    cdef double[TARGETS] target
    if targets.shape[1] != TARGETS:
        raise ValueError("a row of another size")
    if len(held) != size or len(kv_usage) != size:
        raise ValueError("columns of different lengths")
    found = np.empty((size, 3 + targets.shape[1]), np.float32)
    cdef float[:, ::1] rows = found
    for n in range(size):
        for i in range(targets.shape[1]):
            target[i] = targets[n, i]
        memory_row(held[n], kv_usage[n], target, &rows[n, 0], rows.shape[1])
    return found


cdef double LEAST_RATIO = reference_latency.LEAST_RATIO


cdef int memory_row(double held, usage, const double *target, float *row, Py_ssize_t size) except -1:
    """`target` has TARGETS numbers, the row `size`."""
    cdef Py_ssize_t i
    known = usage is not None and usage == usage
    if size != 3 + TARGETS:
        raise ValueError("a row of another size")
    row[0] = logit_of(held, LEAST_RATIO)
    row[1] = logit_of(usage, LEAST_RATIO) if known else row[0]
    row[2] = known
    for i in range(TARGETS):
        row[3 + i] = target[i]
    return 0


cdef float logit_of(double ratio, double least) noexcept:
    ratio = within(ratio, least, 1.0 - least)
    return log(ratio / (1.0 - ratio))


cdef class LengthFleet:
    """What does not depend on the prompt, for M models."""

    cdef const float[::1] _level
    cdef const float[:, ::1] _tilt, _mix
    cdef const double[::1] _spread

    def __init__(self, fleet):
        self._level, self._tilt, self._mix = floats(fleet.level), floats(fleet.tilt), floats(fleet.mix)
        self._spread = np.ascontiguousarray(fleet.spread[:, 0], np.float64)
        if not self._tilt.shape[0] == self._mix.shape[0] == self._spread.shape[0] == self._level.shape[0]:
            raise ValueError("columns of different lengths")


cdef class LengthNetwork:
    cdef object _layers
    cdef const int[::1] _gram_rows, _word_rows
    cdef const float[:, ::1] _gram_table, _random_weight, _random_table, _by_row, _dense, _trunk, _skip, _mix, _last
    cdef const float[:, ::1] _patches  # (PATCH x words, patch): the share of a word at a place in its patch, place by place
    cdef const float[::1] _random_bias, _patch_bias, _gate_bias, _dense_bias, _trunk_bias, _skip_bias, _last_bias
    cdef const double[::1] _mean, _by, _prior, _log_edges
    cdef double _strange, _familiar, _wide_share, _wide_scale
    cdef (double, double) _medians, _log_scales
    cdef double _most
    cdef Py_ssize_t _frequent, _words_in_table
    cdef unsigned int _pair_mask, _words
    cdef unsigned char _tick
    cdef bint _any_known
    cdef unsigned char[::1] _seen
    cdef unsigned int[::1] _ids
    cdef int[::1] _counted, _rows
    cdef float[::1] _known, _log_counts, _summed, _factors, _random_features, _inputs, _input_factors
    cdef float[::1] _gates, _row, _state, _joined, _of_head, _of_tail, _of_counts, _prompt, _mixed, _out

    def __init__(self, arrays):
        weights = reference_length.LengthNetwork(arrays)
        self._layers = weights.layers
        of = weights.of
        if len(weights.vocabulary.gram_rows) < reference_length.GRAMS or len(weights.vocabulary.word_rows) < reference_length.WORDS:
            raise ValueError("a vocabulary of another size")
        self._gram_rows, self._word_rows = weights.vocabulary.gram_rows, weights.vocabulary.word_rows
        self._gram_table = floats(of["gram_table"])
        self._random_weight, self._random_bias, self._random_table = floats(of["random_weight"]), floats(of["random_bias"]), floats(of["random_table"])
        words, width = of["word_table"].shape
        by_place = of["patch_weight"].reshape(PATCH_WORDS, width, -1)
        self._patches = floats(np.einsum("wf,pfo->pwo", of["word_table"], by_place).reshape(PATCH_WORDS * words, -1))
        self._words_in_table = words
        self._patch_bias = floats(of["patch_bias"])
        self._by_row = floats(np.vstack([weights.step_input, weights.step_state]))
        self._gate_bias = floats(weights.step_bias)
        self._dense, self._dense_bias = floats(of["dense_weight"]), floats(of["dense_bias"])
        self._trunk, self._trunk_bias = floats(of["trunk_weight"]), floats(of["trunk_bias"])
        self._skip, self._skip_bias = floats(of["skip_weight"]), floats(of["skip_bias"])
        outputs = whole(len(of["out_bias"]))
        self._mix, self._last, self._last_bias = floats(of["mix_prompt"]), floats(of["out_weight"], outputs), floats(of["out_bias"], outputs)
        self._mean, self._by = of["input_mean"].astype(np.float64), of["input_scale"].astype(np.float64)
        self._strange, self._familiar = weights.strange, weights.familiar
        self._prior, self._log_edges = reference_length.PRIOR, reference_length.LOG_EDGES
        self._wide_share, self._wide_scale, self._most = reference_length.WIDE_SHARE, reference_length.WIDE_SCALE, reference_length.MOST_DEVIATION
        self._medians, self._log_scales = reference_length.LOG_MEDIAN_RANGE, reference_length.LOG_SCALE_RANGE
        self._frequent = reference_length.FREQUENT
        self._words, self._pair_mask = reference_length.WORDS, reference_length.PAIRS - 1
        self._tick, self._seen = 0, np.zeros(len(of["gram_table"]), np.uint8)
        self._counted = np.zeros(self._frequent + 1, np.int32)
        counts, factors, hidden = len(of["random_weight"]), self._gram_table.shape[1] - 1, len(weights.step_state)
        known = zeros_of((counts + factors + 1,))  # logarithms of counts, factors, and the weight of the grams
        self._log_counts, self._summed, self._factors = known[:counts], known[counts:], known[counts:counts + factors]
        self._known, self._inputs = known[:counts + factors], zeros(counts + factors)
        self._random_features, self._input_factors = zeros(self._random_weight.shape[1]), self._inputs[counts:]
        patch = self._patch_bias.shape[0]
        self._gates, self._row = zeros(4 * hidden), zeros(patch + 2 * hidden)
        self._state = self._row[patch:]
        self._joined, self._prompt = zeros(self._trunk.shape[0]), zeros(self._trunk.shape[1])
        self._of_head, self._of_tail, self._of_counts = self._joined[:hidden], self._joined[hidden:2 * hidden], self._joined[2 * hidden:]
        self._mixed, self._out = zeros(self._mix.shape[1]), zeros(outputs)
        self._reserve(PATCH_WORDS)

    def fleet(self, table, spread):
        return LengthFleet(self._layers.fleet(table, spread))

    def shares(self, features, LengthFleet fleet):
        cdef Py_ssize_t size = fleet._level.shape[0], bins = self._prior.shape[0], n, i
        cdef double familiar = self._read(features), weight
        found = empty((size, bins))
        cdef double *shares = <double *>data_of(found, c"d", size * bins * sizeof(double))
        for n in range(size):
            self._share(fleet, n, shares + n * bins, bins)
        if familiar < self._familiar:
            weight = min(1.0, (self._familiar - familiar) / max(self._familiar - self._strange, 1e-6))
            for n in range(size):
                for i in range(bins):
                    shares[i] = (1.0 - weight) * shares[i] + weight * self._prior[i]
                shares += bins
        return found

    cdef int _reserve(self, Py_ssize_t words) except -1:
        self._ids, self._rows = np.zeros(words, np.uint32), np.zeros(words + 2 * PATCH_WORDS, np.int32)
        return 0

    cdef double _read(self, features) except -1.0:
        """Fill `_prompt` from a prompt's features. The prompt's familiarity."""
        cdef tuple head = features[0], tail = features[1], counts = features[2]
        cdef Py_ssize_t ahead = len(head), size = ahead + len(tail), given = len(counts), i
        cdef double familiar
        cdef float total
        if given + self._frequent != self._log_counts.shape[0]:
            raise ValueError("counts of another number")
        if size >= self._ids.shape[0]:
            self._reserve(2 * size)
        take_words(head, self._words, &self._ids[0])
        take_words(tail, self._words, &self._ids[ahead])
        self._summed[:] = 0.0
        familiar = self._add_grams(size)
        total = self._summed[self._factors.shape[0]]
        if self._any_known:
            for i in range(self._factors.shape[0]):
                self._factors[i] /= sqrtf(total)
        self._counted[:] = 0
        self._run(0, ahead, self._of_head)
        if size > ahead:
            self._run(ahead, size, self._of_tail)
        else:
            self._of_tail[:] = 0.0
        for i in range(given):
            self._log_counts[i] = log1p(<double>counts[i])
        for i in range(self._frequent):
            self._log_counts[given + i] = log1p(self._counted[i + 1]) if self._counted[i + 1] else 0.0
        layer(self._log_counts, self._random_weight, self._random_bias, self._random_features)
        tanh_all(self._random_features)
        add_product(self._random_features, self._random_table, self._factors)
        standardize(self._known, self._mean, self._by, self._most, self._inputs)
        layer(self._inputs, self._dense, self._dense_bias, self._of_counts)
        silu_all(self._of_counts)
        layer(self._joined, self._trunk, self._trunk_bias, self._prompt)
        silu_all(self._prompt)
        add_row(self._skip_bias, self._prompt)
        add_product(self._input_factors, self._skip, self._prompt)
        return familiar

    cdef double _add_grams(self, Py_ssize_t size) except -1.0:
        """Sum the rows of the known words and pairs, each once. The share of the pairs that are known (of a single word)."""
        cdef long[2] known = [0, 0]
        cdef const float *table = &self._gram_table[0, 0]
        self._tick += 1
        if self._tick == 0:  # after 256 prompts
            self._seen[:] = 0
            self._tick = 1
        if headway_sum_grams(
            &self._ids[0], size, &self._gram_rows[0], self._words, self._pair_mask, &self._seen[0], self._tick, table,
            self._gram_table.shape[0], &self._summed[0], self._summed.shape[0], known,
        ):
            raise IndexError("a row of another table")
        self._any_known = known[0] + known[1] > 0
        return known[1] / <double>(size - 1) if size > 1 else known[0]

    cdef int _run(self, Py_ssize_t first, Py_ssize_t end, float[::1] into) except -1:
        """The LSTM over the patches of some words. Counts frequent words."""
        cdef Py_ssize_t room = max((end - first + PATCH_WORDS - 1) // PATCH_WORDS, 1) * PATCH_WORDS
        if headway_place_words(
            &self._ids[first], end - first, &self._word_rows[0], self._words_in_table, self._frequent, &self._counted[0],
            &self._rows[0], room,
        ):
            raise IndexError("a row of another table")
        self._state[:] = 0.0
        read_patches(
            self._patches, &self._rows[0], room, self._patch_bias, self._by_row, self._gate_bias, self._gates, self._row,
        )
        return copy_first(self._state, into)

    cdef int _share(self, LengthFleet fleet, Py_ssize_t n, double *shares, Py_ssize_t bins) except -1:
        """The mixture of one model, and its shares of the bins."""
        cdef double[PARTS] weights, middles, scales
        cdef Py_ssize_t parts = PARTS - 1, i, part
        cdef double centre = fleet._level[n], spread = fleet._spread[n], most, total = 0.0, mean = 0.0
        for i in range(self._prompt.shape[0]):
            centre += fleet._tilt[n, i] * self._prompt[i]
        copy_row_of(fleet._mix, n, self._mixed)
        add_product(self._prompt, self._mix, self._mixed)
        silu_all(self._mixed)
        layer(self._mixed, self._last, self._last_bias, self._out)
        most = self._out[0]
        for part in range(1, parts):
            most = max(most, self._out[part])
        for part in range(parts):
            weights[part] = exp(self._out[part] - most)
            total += weights[part]
        for part in range(parts):
            weights[part] /= total
            middles[part] = centre + self._out[parts + part]
            mean += weights[part] * middles[part]
        for part in range(parts):
            middles[part] = mean + spread * (middles[part] - mean)
            weights[part] *= 1.0 - self._wide_share
            scales[part] = spread * exp(within(self._out[2 * parts + part], self._log_scales[0], self._log_scales[1]))
        middles[parts], weights[parts] = mean, self._wide_share
        scales[parts] = spread * self._wide_scale
        for part in range(parts + 1):
            middles[part] = within(middles[part], self._medians[0], self._medians[1])
        return mixture(self._log_edges, weights, middles, scales, 1e-12, shares, bins)


cdef double[SUMMARY] SEEN
cdef double[ESTIMATE] KNOWN


def target_rows(summaries, estimates, double now):
    """See `latency_networks.target_rows`."""
    cdef Py_ssize_t size = len(estimates), n, i
    if len(summaries) != size:
        raise ValueError("as many summaries as estimates")
    found = np.empty((size, TARGETS))
    cdef double[:, ::1] rows = found
    for n in range(size):
        summary, estimate = summaries[n], estimates[n]
        if len(summary) != SUMMARY or len(estimate) != ESTIMATE:
            raise ValueError("a summary or an estimate of another size")
        for i in range(SUMMARY):
            SEEN[i] = item(summary, i)
        for i in range(ESTIMATE):
            KNOWN[i] = item(estimate, i)
        target_row(SEEN, KNOWN, now, &rows[n, 0])
    return found


cdef int target_row(const double *seen, const double *known, double now, double *row) except -1:
    """Of one summary and one estimate: TARGETS numbers."""
    cdef Py_ssize_t i, own, other
    cdef double log_ttft, log_tpot, log_step, ttft, by_ttft, cached, ahead, step_s, first, ended, arrival, gap_s
    step_s = known[12]
    log_ttft, log_tpot, log_step = log(known[0]), log(known[1]), log(step_s)
    ttft = log_ttft + known[4]
    by_ttft = exp(-ttft)
    cached = known[9] / (known[8] + 1.0)
    ahead = seen[16]
    first = ended = arrival = 0.0
    row[0], row[1] = log_ttft - log_step, log_tpot - log_step
    row[2], row[4] = known[4], known[5]
    row[3], row[5] = log1p(known[6]), log1p(known[7])
    row[6], row[7] = known[2] == 1.0, known[2] == 2.0
    row[8], row[9] = known[3] == 1.0, known[3] == 2.0
    row[10] = 0.25 * rint(4.0 * log2(known[8] + 1.0))
    row[12] = 0.25 * rint(4.0 * log2(known[10] + 1.0))
    row[11] = cached
    row[13], row[14], row[15] = seen[17], seen[18], log1p(known[11])
    for i in range(4):
        row[16 + i] = seen[19 + i]
    for i in range(8):
        gap_s = now - seen[i]
        gap_s = (0.0 if gap_s < 0.0 else gap_s) * seen[8 + i]
        if i < 4:
            row[20 + i] = log1p(gap_s * by_ttft)
        elif i < 7:
            row[20 + i] = log1p(gap_s * (ahead * by_ttft))
        else:
            row[20 + i] = log1p(gap_s / step_s)
        if i == 5:
            first = gap_s
        elif i == 6:
            ended = gap_s
        elif i == 7:
            arrival = gap_s
    row[28] = log(arrival) - log(first) if arrival > LEAST_GAP_S and first > LEAST_GAP_S else 0.0
    row[29] = log(first) - log(ended) if first > LEAST_GAP_S and ended > LEAST_GAP_S else 0.0
    own, other = (28, 23) if cached > 0.5 else (23, 28)
    row[30] = seen[own]
    for i in range(4):
        row[31 + i] = (seen[own + 1 + i] - ttft) * seen[own]
    row[35] = (seen[other + 2] - ttft) * seen[other]
    for i in range(4):
        row[36 + i] = seen[38 + i]
    row[40] = seen[33]
    for i in range(4):
        row[41 + i] = (seen[34 + i] - log_tpot - known[5]) * seen[33]
    row[45], row[46] = seen[42], seen[43]
    return 0


cdef long long OF_WORD = 2654435761  # as a literal it would be a Python number

#: Ids of grams that are searched together.
cdef enum:
    BLOCK = 64

cdef double LEAST_GAP_S = reference_latency.LEAST_GAP_S


cdef class Encoder:
    cdef const int[::1] _ids  # sorted
    cdef const int[::1] _starts  # of each block of ids: the first of the known ids that is not below it
    cdef const float[::1] _idf, _step, _lexicon_step
    cdef const signed char[:, ::1] _table, _lexicon
    cdef float _unknown_idf
    cdef float[::1] _projected, _lexicon_sum
    cdef long long _words, _pairs

    def __init__(self, ids, idf, table, step, lexicon, lexicon_step, unknown_idf):
        weights = reference_encoder.Encoder(ids, idf, table, step, lexicon, lexicon_step, unknown_idf)
        self._ids, self._idf, self._unknown_idf = weights.ids.astype(np.int32), floats(weights.idf), weights.unknown_idf
        self._table, self._step = np.ascontiguousarray(weights.table), floats(weights.step)
        self._lexicon, self._lexicon_step = np.ascontiguousarray(weights.lexicon), floats(weights.lexicon_step)
        self._projected, self._lexicon_sum = zeros(self._table.shape[1]), zeros(self._lexicon.shape[1])
        self._words, self._pairs = reference_encoder.WORDS, reference_encoder.PAIRS
        blocks = np.arange(0, self._words + self._pairs + BLOCK, BLOCK)
        self._starts = weights.ids.searchsorted(blocks).astype(np.int32)

    cdef Py_ssize_t _row(self, long long gram) except -2:
        """The row of a gram, -1 for an unknown one."""
        cdef Py_ssize_t row
        for row in range(self._starts[gram // BLOCK], self._starts[gram // BLOCK + 1]):
            if self._ids[row] == gram:
                return row
        return -1

    def vector(self, features):
        cdef tuple head = features[0], tail = features[1], counts = features[2]
        cdef Py_ssize_t ahead = len(head), words = ahead + len(tail)
        cdef Py_ssize_t size = self._table.shape[1], scores = self._lexicon.shape[1]
        cdef Py_ssize_t grams = max(2 * words - 1, 0), first_score = size + len(counts) + 1, row, i
        cdef long long before = 0, word
        cdef double of_all = 0.0, of_known = 0.0, length = 0.0, by
        cdef float weight
        cdef int times = 0
        cdef long long[::1] ids
        found = np.empty(grams, np.int64)
        ids = found
        for i in range(words):
            word = head[i] if i < ahead else tail[i - ahead]
            ids[i] = word
            if i:
                ids[words + i - 1] = self._words + (word * OF_WORD + before * 40503 + 12345) % self._pairs
            before = word
        found.sort()
        vector = np.zeros(first_score + scores, np.float32)
        cdef float[::1] out = vector, projected = self._projected, lexicon_sum = self._lexicon_sum
        projected[:] = 0.0
        lexicon_sum[:] = 0.0
        for i in range(len(counts)):
            out[size + i] = count_feature(counts, i)
        for i in range(grams):
            times += 1
            if i + 1 < grams and ids[i + 1] == ids[i]:
                continue
            row = self._row(ids[i])
            weight = (1.0 + logf(times)) * (self._unknown_idf if row < 0 else self._idf[row])
            times = 0
            of_all += weight * weight
            if row >= 0:
                of_known += weight * weight
                add_steps(weight * self._step[row], self._table, row, projected)
                add_steps(weight * self._lexicon_step[row], self._lexicon, row, lexicon_sum)
        if of_known > 0.0:
            for i in range(size):
                length += projected[i] * projected[i]
            length = sqrt(length)
            if length > 0.0:
                for i in range(size):
                    out[i] = projected[i] / length
                out[first_score - 1] = min(length / sqrt(of_all), 1.0)
            by = sqrt(of_known)
            for i in range(scores):
                out[first_score + i] = lexicon_sum[i] / by
        return vector


cdef double count_feature(tuple counts, Py_ssize_t at) except? -1.0:
    """See `prompt_encoder.count_features`."""
    cdef double count = counts[at]
    if at < 3:
        return log(max(count, 1.0))
    if at < 7:
        return count / (min(max(<double>counts[0], 1.0), 3072.0) / 10.0)
    return min(count, 5.0)


cdef class RelevanceHeads:
    cdef readonly Py_ssize_t scale
    cdef const long long[::1] _scales
    cdef const float[:, ::1] _out, _departures  # (last_input, M), (prototypes, M)
    cdef const float[::1] _bias, _prior, _shifts
    cdef float[::1] _departure, _shown

    def __init__(self, heads):
        self._departure, self._shown = zeros(len(heads.bias)), zeros(len(heads.bias))
        self.scale, self._scales = heads.scale, heads.scales
        self._out, self._departures = floats(heads.out.T), floats(heads.departures.T)
        self._bias, self._prior, self._shifts = floats(heads.bias), floats(heads.prior), floats(heads.shifts)


cdef class RelevanceNetwork:
    cdef object _all_heads
    cdef const float[:, ::1] _centres, _counts, _given
    cdef const float[::1] _given_bias
    cdef float[::1] _likeness, _near_by, _found, _last_input
    cdef double _low, _high, _sharpness, _half_evidence
    cdef Py_ssize_t _units, _size

    def __init__(self, arrays):
        weights = reference_relevance.RelevanceNetwork(arrays)
        self._all_heads = weights.all_heads
        self._centres = floats(weights.prototypes.centres.T)
        self._counts = floats(weights.prototypes.counts)
        self._low, self._high = weights.prototypes.near
        self._given, self._given_bias, self._units = floats(weights.given), floats(weights.given_bias), weights.units
        self._size = self._centres.shape[0]
        self._likeness, self._near_by = zeros(self._centres.shape[1]), zeros(self._counts.shape[1])
        self._found = zeros(self._given.shape[1])
        self._last_input = zeros(arrays["out"].shape[0] + arrays["task_departures"].shape[0])
        self._sharpness, self._half_evidence = reference_relevance.SHARPNESS, reference_relevance.HALF_EVIDENCE

    def heads(self, scale, heads):
        return RelevanceHeads(self._all_heads.of(scale, heads))

    def quality(self, const float[::1] vector, list options):
        cdef Py_ssize_t nearest = 0, first_score = self._given.shape[0], units = self._units, i, scores, tasks, size
        cdef float[::1] likeness = self._likeness, found = self._found, last_input = self._last_input, departure, shown
        cdef double trust, near, total = 0.0, quality
        cdef float most, sharpness = self._sharpness
        cdef RelevanceHeads option = None, each
        likeness[:] = 0.0
        add_product(vector[:self._size], self._centres, likeness)
        for i in range(likeness.shape[0]):
            if likeness[i] > likeness[nearest]:
                nearest = i
        most = likeness[nearest]
        trust = within((most * <double>vector[first_score - 1] - self._low) / (self._high - self._low), 0.0, 1.0)
        if not options:
            return np.empty(0), np.empty(0), nearest, trust
        for i in range(likeness.shape[0]):
            likeness[i] = expf(sharpness * (likeness[i] - most))
        self._near_by[:] = 0.0
        add_product(likeness, self._counts, self._near_by)
        for each in options:
            if option is None or self._near_by[each.scale] > self._near_by[option.scale]:
                option = each
        copy_row(self._given_bias, found)
        add_product(vector[:first_score], self._given, found)
        scores, tasks = vector.shape[0] - first_score, found.shape[0] - units
        copy_row(found[:units], last_input[:units])
        relu_all(last_input[:units])
        copy_row(vector[first_score:], last_input[units:units + scores])
        most = found[units]
        for i in range(units, found.shape[0]):
            most = max(most, found[i])
        for i in range(tasks):
            last_input[units + scores + i] = expf(found[units + i] - most)
            total += last_input[units + scores + i]
        for i in range(tasks):
            last_input[units + scores + i] /= total
        size = option._bias.shape[0]
        departure, shown = option._departure, option._shown
        copy_row(option._bias, departure)
        shown[:] = 0.0
        add_product(last_input, option._out, departure)
        add_product(likeness, option._departures, shown)
        means, deviations = np.empty(size), np.empty(size)
        cdef double[::1] mean = means, deviation = deviations
        for i in range(size):
            near = max(<double>self._near_by[option._scales[i]], 1e-9)
            quality = (departure[i] + shown[i] / near) * (trust * near / (near + self._half_evidence))
            quality = 1.0 / (1.0 + exp(-(option._prior[i] + quality + option._shifts[i])))
            mean[i], deviation[i] = quality, sqrt(quality * (1.0 - quality) / (trust * near + 2.0))
        return means, deviations, nearest, trust
