# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True, nonecheck=True, auto_pickle=False
"""The distributions of `predictors.kernels.reference`, compiled. See there for what each computes."""

import numpy as np

from predictors.kernels import levels
from predictors.kernels.length_bins import BINS as _BINS, EDGES as _EDGES
from predictors.kernels.reference import lengths, quantiles as reference_quantiles
from predictors.kernels.reference import model_outputs as reference_outputs
from predictors.kernels.reference.lengths import AnswerLength
from predictors.kernels.reference.model_outputs import ModelOutputs

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GetItem
from libc.math cimport erfc, exp, fabs, log, pow, sqrt, INFINITY
from libc.string cimport memcpy

from predictors.kernels.native.arithmetic cimport data_of, headway_smooth, item, row_of, within
from predictors.kernels.native.calibration cimport GroupCalibration, Offsets
from predictors.kernels.native.estimates cimport Estimates, Factors, Known, Sources
from predictors.kernels.native.histories cimport InstanceHistory
from predictors.kernels.native.networks cimport ESTIMATE, TARGETS, TOGETHER, LatencyNetwork, MemoryNetwork, memory_row, target_row
from predictors.kernels.native.residuals cimport ResidualWindow, above, at_share
from predictors.kernels.native.source cimport HEADWAY_SOURCE
from router.native.fields cimport Field, read

SOURCE = HEADWAY_SOURCE.decode()

cdef object new_tuple = tuple.__new__
cdef Py_ssize_t MOST_MODELLED = reference_outputs.MOST_MODELLED
cdef long LEAST_OBSERVED = reference_outputs.LEAST_OBSERVED
cdef object float32 = np.float32
#: Rows of a table: shares, P(Y <= left edge), density, E[Y; Y <= left edge].
cdef enum:
    BINS = 68
    SHARES = 0
    BELOW = 1
    DENSITY = 2
    BELOW_MEAN = 3
    ROWS = 4

assert _BINS == BINS
cdef double[BINS + 1] EDGES
cdef double[BINS] MIDDLES, PER_WIDTH


cdef int fill_bins() except -1:
    cdef Py_ssize_t i
    for i in range(BINS + 1):
        EDGES[i] = _EDGES[i]
    for i in range(BINS):
        MIDDLES[i], PER_WIDTH[i] = (EDGES[i + 1] + EDGES[i]) / 2.0, 1.0 / (EDGES[i + 1] - EDGES[i])
    return 0


fill_bins()


cdef Py_ssize_t edge_of(const double *edges, double value) noexcept:
    """The last of BINS + 1 edges that is not above the value; -1 below the first one, and for NaN as for infinity the last
    one."""
    cdef Py_ssize_t low = 0, high = BINS + 1, middle
    while low < high:
        middle = (low + high) >> 1
        if value < edges[middle]:
            high = middle
        else:
            low = middle + 1
    return low - 1


cdef class LengthTable:
    cdef double[ROWS][BINS + 1] _of
    cdef readonly double mean, p50, p90, p95

    def __init__(self, shares):
        self.take(shares)

    def take(self, shares):
        cdef const double[::1] given = np.ascontiguousarray(shares, np.float64)
        cdef Py_ssize_t i
        if given.shape[0] != BINS:
            raise ValueError("shares of other bins")
        for i in range(BINS):
            self._of[SHARES][i] = given[i]
        self._take()

    cdef int _take(self) except -1:
        """Become the distribution whose shares are filled in."""
        cdef double below = 0.0, below_mean = 0.0, share
        cdef Py_ssize_t i
        for i in range(BINS):
            share = self._of[SHARES][i]
            self._of[BELOW][i], self._of[BELOW_MEAN][i] = below, below_mean
            self._of[DENSITY][i] = share * PER_WIDTH[i]
            below += share
            below_mean += share * MIDDLES[i]
        self._of[SHARES][BINS] = self._of[DENSITY][BINS] = 0.0
        self._of[BELOW][BINS], self._of[BELOW_MEAN][BINS] = below, below_mean
        self.mean = below_mean
        self.p50, self.p90, self.p95 = self.quantile(0.5), self.quantile(0.9), self.quantile(0.95)
        return 0

    @property
    def shares(self):
        return np.array(<double[:BINS]>&self._of[SHARES][0])

    @property
    def curve(self):
        return np.array(<double[:2, :BINS + 1]>&self._of[BELOW][0])

    def below(self, Py_ssize_t at):
        if not 0 <= at <= BINS:
            raise IndexError("a bin that is not there")
        return self._of[BELOW][at]

    cpdef double mean_below(self, double cap_tokens) except? -1.0:
        cdef Py_ssize_t at = edge_of(&EDGES[0], cap_tokens)
        cdef double inside
        if at >= BINS:
            return self.mean
        if at < 0:
            return cap_tokens
        inside = (cap_tokens - EDGES[at]) * self._of[DENSITY][at]
        return (
            self._of[BELOW_MEAN][at] + inside * (EDGES[at] + cap_tokens) / 2
            + (1.0 - self._of[BELOW][at] - inside) * cap_tokens
        )

    cpdef double quantile(self, double probability) except? -1.0:
        cdef Py_ssize_t at = min(max(edge_of(&self._of[BELOW][0], probability), 0), BINS - 1)
        cdef double density = self._of[DENSITY][at]
        if density <= 0.0:
            return EDGES[at]
        return min(EDGES[at] + (probability - self._of[BELOW][at]) / density, EDGES[at + 1])


def answer_length(LengthTable table not None, cap, choices, LengthTable usual not None):
    """See `lengths.answer_length`."""
    p50, p90, mean = table.p50, table.p90, table.mean
    if cap is not None:
        mean = table.mean_below(cap)
        p50, p90 = least(p50, cap), least(p90, cap)
    long_p50, long_p95, long_mean = p50, table.p95, mean
    if choices > 1:
        long_p50, long_p95 = table.quantile(0.5 ** (1 / choices)), table.quantile(0.95 ** (1 / choices))
        if cap is not None:
            long_p50 = least(long_p50, cap)
        if long_p50 > long_mean:
            long_mean = long_p50
    if cap is not None:
        long_p95 = least(long_p95, cap)
    capped = usual.mean if cap is None else usual.mean_below(cap)
    return new_tuple(
        AnswerLength, (table, cap, choices, p50, p90, mean, long_p50, long_p95, long_mean, usual.mean, capped)
    )


cdef object least(a, b):
    return b if b < a else a


cdef double[BINS] SCALED, CORRECTED, EXPECTED  # of the call: none is interrupted
cdef double[BINS + 6] COUNTS  # with three zeros before and after them


cdef class LearnedLengths:
    cdef double[BINS] _seen, _expected, _ratio
    cdef double _weight
    cdef long _observed
    cdef readonly double evidence, log_scale

    def __init__(self):
        cdef Py_ssize_t i
        for i in range(BINS):
            self._seen[i] = self._expected[i] = 0.0
            self._ratio[i] = 1.0
        self._weight = self.evidence = self.log_scale = 0.0
        self._observed = 0

    @property
    def ratio(self):
        return np.array(<double[:BINS]>&self._ratio[0])

    @property
    def weight(self):
        return 1.0 / (1.0 + exp(-(PRIOR_LOG_ODDS + self.evidence)))

    def observe(self, predicted, LengthTable online not None, tokens, bint censored):
        cdef double count = tokens, ours = 0.0, theirs = 0.0, above = 0.0, prior, rate, error
        cdef Py_ssize_t at = min(max(edge_of(&EDGES[0], count), 0), BINS - 1), i
        self._correct(<const double *>data_of(predicted, c"d", BINS * sizeof(double)))
        if censored:
            for i in range(at, BINS):
                ours += CORRECTED[i]
                theirs += online._of[SHARES][i]
            above = max(ours, 1e-12)
        else:
            ours, theirs = CORRECTED[at], online._of[SHARES][at]
        self.evidence = within(
            EVIDENCE_MEMORY * self.evidence + log(max(ours, 1e-9) / max(theirs, 1e-9)), -MOST_EVIDENCE, MOST_EVIDENCE
        )
        if self._weight >= MAX_WEIGHT:
            for i in range(BINS):
                self._seen[i] *= 0.5
                self._expected[i] *= 0.5
            self._weight *= 0.5
        self._weight += 1.0
        for i in range(BINS):
            self._expected[i] += SCALED[i]
        if censored:
            for i in range(at, BINS):
                self._seen[i] += CORRECTED[i] / above
        else:
            self._seen[at] += 1.0
        prior = INERTIA / self._weight
        self._smooth(&self._seen[0], prior, &self._ratio[0])
        self._smooth(&self._expected[0], prior, &EXPECTED[0])
        for i in range(BINS):
            self._ratio[i] /= max(EXPECTED[i], 1e-12)
        self._observed += 1
        rate = 1.0 / (min(self._observed, SCALE_MEMORY) + INERTIA)
        error = log(max(count, 1.0) / median_of(&SCALED[0]))
        self.log_scale += rate * (max(error, 0.0) if censored else error)
        return at

    cdef void _smooth(self, const double *counts, double prior, double *into) noexcept:
        """Each bin with three neighbours on either side, weighed, and with the prior of what is expected."""
        cdef Py_ssize_t i
        for i in range(BINS):
            COUNTS[i + 3] = (counts[i] + prior * self._expected[i]) / 16.0
        headway_smooth(&COUNTS[0], into, BINS)

    cdef void _correct(self, const double *predicted) noexcept:
        """Fill SCALED, the prediction stretched by the scale, and CORRECTED, that by how often lengths came here."""
        cdef Py_ssize_t i, from_bin = 0
        cdef double total = 0.0, by, edge, below = 0.0, moved, before = 0.0
        if fabs(self.log_scale) < LEAST_LOG_SCALE:
            memcpy(&SCALED[0], predicted, BINS * sizeof(double))
        else:
            by = exp(-self.log_scale)
            for i in range(1, BINS + 1):
                # `below` is P(Y <= EDGES[from_bin]); linear between edges
                edge = EDGES[i] * by
                while from_bin < BINS and EDGES[from_bin + 1] <= edge:
                    below += predicted[from_bin]
                    from_bin += 1
                if i == BINS:
                    while from_bin < BINS:
                        below += predicted[from_bin]
                        from_bin += 1
                if from_bin == BINS:
                    moved = below
                elif edge <= EDGES[from_bin]:
                    moved = below
                else:
                    moved = below + (edge - EDGES[from_bin]) * predicted[from_bin] / (EDGES[from_bin + 1] - EDGES[from_bin])
                SCALED[i - 1] = moved - before + LEAST_SHARE
                before = moved
        for i in range(BINS):
            CORRECTED[i] = SCALED[i] * self._ratio[i]
            total += CORRECTED[i]
        for i in range(BINS):
            CORRECTED[i] /= total


cdef double PRIOR_LOG_ODDS = lengths.PRIOR_LOG_ODDS, EVIDENCE_MEMORY = lengths.EVIDENCE_MEMORY
cdef double MOST_EVIDENCE = lengths.MOST_EVIDENCE, MAX_WEIGHT = lengths.MAX_WEIGHT, INERTIA = lengths.INERTIA
cdef double LEAST_LOG_SCALE = lengths.LEAST_LOG_SCALE, LEAST_SHARE = lengths.LEAST_SHARE
cdef long SCALE_MEMORY = lengths.SCALE_MEMORY


cdef double median_of(const double *shares) noexcept:
    cdef double half = 0.0, below = 0.0
    cdef Py_ssize_t i
    for i in range(BINS):
        half += shares[i]
    half *= 0.5
    i = 0
    while i < BINS and below + shares[i] < half:
        below += shares[i]
        i += 1
    return max(1.0, 0.5 * (EDGES[min(i, BINS)] + EDGES[min(i + 1, BINS)]))


def served_tables(learned, predicted, online):
    cdef Py_ssize_t size = len(learned), n, i
    cdef const double *shares = <const double *>data_of(predicted, c"d", size * BINS * sizeof(double))
    cdef LearnedLengths each
    cdef LengthTable usual, table
    cdef double weight
    if len(online) != size:
        raise ValueError("columns of different lengths")
    tables = []
    for n in range(size):
        each, usual = learned[n], online[n]
        weight = each.weight
        each._correct(shares + n * BINS)
        table = LengthTable.__new__(LengthTable)
        for i in range(BINS):
            table._of[SHARES][i] = weight * CORRECTED[i] + (1.0 - weight) * usual._of[SHARES][i]
        table._take()
        tables.append(table)
    return tables


# --- log errors ----------------------------------------------------------------------------------------
# Wichura, The Percentage Points of the Normal Distribution (AS 241, PPND16), Applied Statistics 37, 1988, as in
# `statistics.NormalDist.inv_cdf`. Of the middle, the tails and the far tails: numerator and denominator, highest power first.
cdef const double[:, :, ::1] NORMAL = np.array((
    ((2.50908_09287_30122_6727e3, 3.34305_75583_58812_8105e4, 6.72657_70927_00870_0853e4, 4.59219_53931_54987_1457e4,
      1.37316_93765_50946_1125e4, 1.97159_09503_06551_4427e3, 1.33141_66789_17843_7745e2, 3.38713_28727_96366_6080e0),
     (5.22649_52788_52854_5610e3, 2.87290_85735_72194_2674e4, 3.93078_95800_09271_0610e4, 2.12137_94301_58659_5867e4,
      5.39419_60214_24751_1077e3, 6.87187_00749_20579_0830e2, 4.23133_30701_60091_1252e1, 1.0)),
    ((7.74545_01427_83414_07640e-4, 2.27238_44989_26918_45833e-2, 2.41780_72517_74506_11770e-1, 1.27045_82524_52368_38258e0,
      3.64784_83247_63204_60504e0, 5.76949_72214_60691_40550e0, 4.63033_78461_56545_29590e0, 1.42343_71107_49683_57734e0),
     (1.05075_00716_44416_84324e-9, 5.47593_80849_95344_94600e-4, 1.51986_66563_61645_71966e-2, 1.48103_97642_74800_74590e-1,
      6.89767_33498_51000_04550e-1, 1.67638_48301_83803_84940e0, 2.05319_16266_37758_82187e0, 1.0)),
    ((2.01033_43992_92288_13265e-7, 2.71155_55687_43487_57815e-5, 1.24266_09473_88078_43860e-3, 2.65321_89526_57612_30930e-2,
      2.96560_57182_85048_91230e-1, 1.78482_65399_17291_33580e0, 5.46378_49111_64114_36990e0, 6.65790_46435_01103_77720e0),
     (2.04426_31033_89939_78564e-15, 1.42151_17583_16445_88870e-7, 1.84631_83175_10054_68180e-5, 7.86869_13114_56132_59100e-4,
      1.48753_61290_85061_48525e-2, 1.36929_88092_27358_05310e-1, 5.99832_20655_58879_37690e-1, 1.0)),
))
cdef const double[::1] SCORES = np.array(levels.SCORES)  # normal scores of the quantiles
cdef enum:
    TAUS = 5

assert len(levels.TAUS) == len(levels.SCORES) == TAUS
cdef Py_ssize_t P10 = levels.P10, P50 = levels.P50, P90 = levels.P90, P95 = levels.P95
cdef double LEAST_SPREAD = reference_quantiles.LEAST_SPREAD, MOST_LOG = reference_quantiles.MOST_LOG, APART = reference_quantiles.APART
cdef double ROOT_HALF = sqrt(0.5)


cdef enum:  # `predictors.kernels.reference.quantiles.PREDICTIONS`
    SERVED, PHYSICAL, MODEL, PREDICTIONS

assert reference_quantiles.PREDICTIONS == ("served", "physical", "model")
cdef const double[::1] LEVELS = np.array(levels.TAUS)
cdef double FIRST_WEIGHT = reference_quantiles.FIRST_WEIGHT, RATE = reference_quantiles.RATE, SHARE = reference_quantiles.SHARE
cdef double LEAST_LOSS = reference_quantiles.LEAST_LOSS, MOST_CHANGE = reference_quantiles.MOST_CHANGE
cdef long MEMORY = reference_quantiles.MEMORY


cdef class ModelWeight:
    """See `reference.quantiles`."""

    cdef readonly double value
    cdef double _loss
    cdef long _observed

    def __init__(self):
        self.value, self._loss, self._observed = FIRST_WEIGHT, 0.0, 0

    def learn(self, tuple quantiles, double actual):
        cdef double physical, model, change, odds
        if len(quantiles) != PREDICTIONS * TAUS:
            raise ValueError("quantiles of other predictions")
        physical, model = loss_of(quantiles, PHYSICAL, actual), loss_of(quantiles, MODEL, actual)
        self._observed += 1
        self._loss += (0.5 * (physical + model) - self._loss) / min(self._observed, MEMORY)
        change = RATE * (model - physical) / at_least(self._loss, LEAST_LOSS)
        odds = exp(at_most(at_least(change, -MOST_CHANGE), MOST_CHANGE)) * (1.0 - self.value)
        self.value = (1.0 - SHARE) * self.value / (self.value + odds) + SHARE * FIRST_WEIGHT


cdef double loss_of(tuple quantiles, Py_ssize_t prediction, double actual) except? -1.0:
    """The mean pinball loss of one of the predictions."""
    cdef Py_ssize_t i
    cdef double by, loss = 0.0
    for i in range(TAUS):
        by = actual - item(quantiles, prediction * TAUS + i)
        loss += LEVELS[i] * by if by > 0.0 else (LEVELS[i] - 1.0) * by
    return loss / TAUS


cdef struct Raw:  # what the latency model gives of one candidate, TTFT and TPOT
    float of[2][TAUS]


cdef struct Served:  # what is made of it
    double of[2][PREDICTIONS][TAUS]


def served_quantiles(raw, Estimates estimates, places, list weights, list offsets):
    """See `reference.served_quantiles`."""
    cdef Py_ssize_t size = len(places), n
    cdef const Raw *given = <const Raw *>data_of(raw, c"f", size * sizeof(Raw))
    if not len(weights) == len(offsets) == size:
        raise ValueError("columns of different lengths")
    quantiles, factors = np.empty((size, 2, PREDICTIONS, TAUS)), np.empty((size, 2, 3))
    cdef Served *found = <Served *>data_of(quantiles, c"d", size * sizeof(Served))
    cdef Factors *factor = <Factors *>data_of(factors, c"d", size * sizeof(Factors))
    for n in range(size):
        of_ttft, of_tpot = offsets[n]
        serve(&given[n], estimates.at(places[n]), weights[n], of_ttft, of_tpot, &found[n], &factor[n])
    return quantiles, factors


cdef int serve(
    const Raw *raw, const Known *known, tuple weights, list of_ttft, list of_tpot, Served *served, Factors *factor
) except -1:
    """Those of one candidate."""
    cdef Py_ssize_t time, i
    cdef double spread, middle, deviation, p50, p95, share, bias
    cdef list offset
    cdef ResidualWindow window
    cdef (double *)[PREDICTIONS] found
    for time in range(2):
        window = <ResidualWindow>(known.tpot_errors if time else known.ttft_errors)
        bias = known.tpot_bias if time else known.ttft_bias
        offset = of_tpot if time else of_ttft
        share = (<ModelWeight?>weights[time]).value
        for i in range(PREDICTIONS):
            found[i] = &served.of[time][i][0]
        for i in range(TAUS):
            found[PHYSICAL][i] = at_share(window, LEVELS[i])
            found[MODEL][i] = raw.of[time][i] + bias
            found[SERVED][i] = share * found[MODEL][i] + (1.0 - share) * found[PHYSICAL][i]
        p50 = found[SERVED][P50]
        middle = 0.5 * (found[SERVED][P90] - found[SERVED][P10])
        for i in range(TAUS):
            spread = at_least(middle if i == P50 else fabs(found[SERVED][i] - p50), LEAST_SPREAD)
            found[SERVED][i] += <double>offset[i] * spread
            if i > P50 and found[SERVED][i] < found[SERVED][i - 1]:
                found[SERVED][i] = found[SERVED][i - 1]
        if found[SERVED][P50] < found[SERVED][P10]:
            found[SERVED][P10] = found[SERVED][P50]
        p50, p95 = found[SERVED][P50], found[SERVED][P95]
        deviation = (p95 - p50) / SCORES[P95]
        deviation = 1.0 if deviation > 1.0 else deviation
        factor.of[time][0] = exp(at_most(p50, MOST_LOG))
        factor.of[time][1] = exp(at_most(p95, MOST_LOG))
        factor.of[time][2] = exp(at_most(p50 + 0.5 * deviation * deviation, MOST_LOG))
    return 0


cdef Field GROUP = Field("group"), HISTORY = Field("history"), KV_USAGE = Field("kv_usage")
cdef Field PROFILE = Field("profile"), REPORT = Field("report"), WEIGHTS = Field("weights")
cdef double[TOGETHER][TARGETS] TARGET_ROWS
cdef double[ESTIMATE] KNOWN
cdef Raw[TOGETHER] RAW


def model_outputs(head, MemoryNetwork memory, of_all, Estimates estimates, instances, double now):
    """See `model_outputs.model_outputs`."""
    cdef list stats = (<Sources>of_all).stats if type(of_all) is Sources else of_all
    cdef Py_ssize_t all_ = len(stats), size, begin, end, n, at, width = 0
    cdef LatencyNetwork network = head if type(head) is LatencyNetwork else None
    cdef InstanceHistory history
    cdef GroupCalibration group
    cdef Known *known
    cdef Served *found
    cdef Factors *factor
    cdef float *held = NULL
    if not len(instances) == len(estimates) == all_:
        raise ValueError("columns of different lengths")
    places = estimates.soonest(MOST_MODELLED)
    size = len(places)
    quantiles = PyBytes_FromStringAndSize(NULL, size * sizeof(Served))
    factors = PyBytes_FromStringAndSize(NULL, size * sizeof(Factors))
    found, factor = <Served *>PyBytes_AS_STRING(quantiles), <Factors *>PyBytes_AS_STRING(factors)
    cdef list rows = [-1] * all_, decides_ttft = [False] * all_, decides_tpot = [False] * all_, states
    inputs = b""
    if memory is not None:
        width = memory.row.shape[0]
        inputs = PyBytes_FromStringAndSize(NULL, size * width * sizeof(float))
        held = <float *>PyBytes_AS_STRING(inputs)
    for begin in range(0, size, TOGETHER):
        end, states = min(begin + TOGETHER, size), []
        for n in range(begin, end):
            at = places[n]
            of, instance, known, rows[at] = stats[at], instances[at], estimates.at(at), n
            history = read(HISTORY, of)
            known_numbers(known)
            target_row(history.seen(instance), KNOWN, now, TARGET_ROWS[n - begin])
            if network is None:
                states.append(history.state)
            else:
                history.encode()
                network.put(n - begin, history._state, TARGET_ROWS[n - begin])
            decides_ttft[at] = known.ttft_count >= LEAST_OBSERVED
            decides_tpot[at] = known.tpot_count >= LEAST_OBSERVED and read(PROFILE, of) is None
            if held != NULL:
                memory_row(known.memory_ratio, read(KV_USAGE, read(REPORT, instance)), TARGET_ROWS[n - begin], held + n * width, width)
        if network is None:
            taken = np.array(<double[:end - begin, :TARGETS]>&TARGET_ROWS[0][0])
            predicted = np.ascontiguousarray(head.quantiles(states, taken), float32)
            memcpy(RAW, data_of(predicted, c"f", (end - begin) * sizeof(Raw)), (end - begin) * sizeof(Raw))
        else:
            network.finish(end - begin, TAUS, &RAW[0].of[0][0])
        for n in range(begin, end):
            at = places[n]
            of = stats[at]
            group = read(GROUP, of)
            serve(
                &RAW[n - begin], estimates.at(at), read(WEIGHTS, of), (<Offsets?>group.offsets[0]).values,
                (<Offsets?>group.offsets[1]).values, &found[n], &factor[n],
            )
    return new_tuple(ModelOutputs, (rows, quantiles, factors, memory, inputs, decides_ttft, decides_tpot))


cdef int known_numbers(const Known *known) except -1:
    """Fill in the numbers of an `Estimate`."""
    KNOWN[0], KNOWN[1], KNOWN[2], KNOWN[3] = known.ttft_s, known.tpot_s, known.ttft_stratum, known.tpot_stratum
    KNOWN[4], KNOWN[5], KNOWN[6], KNOWN[7] = known.ttft_bias, known.tpot_bias, known.ttft_count, known.tpot_count
    KNOWN[8], KNOWN[9], KNOWN[10] = known.prompt_tokens, known.cached_tokens, known.output_tokens
    KNOWN[11], KNOWN[12] = known.pending_tokens, known.step_s
    return 0


cdef double at_most(double value, double bound) noexcept:
    return bound if value > bound else value


cdef double ratio_of(Py_ssize_t part, double x) except? -1e300:
    """Numerator / denominator of one part of the inverse normal distribution."""
    cdef double above = NORMAL[part, 0, 0], below = NORMAL[part, 1, 0]
    cdef Py_ssize_t i
    for i in range(1, NORMAL.shape[2]):
        above = above * x + NORMAL[part, 0, i]
        below = below * x + NORMAL[part, 1, i]
    return above / below


cdef double score_of(double share) except? -1e300:
    """The normal score of a share in (0, 1)."""
    cdef double from_middle = share - 0.5, depth, score
    if not fabs(from_middle) > 0.425:
        return from_middle * ratio_of(0, 0.180625 - from_middle * from_middle)
    depth = sqrt(-log(min(share, 0.5 - from_middle)))
    score = ratio_of(1, depth - 1.6) if depth <= 5.0 else ratio_of(2, depth - 5.0)
    return score if from_middle >= 0.0 else -score


cdef struct Errors:
    # One distribution of log errors: a window of observed ones, or (NULL) the latency model's quantiles.
    PyObject *window
    double quantiles[TAUS]


cdef int read_quantiles(Errors *errors, bytes quantiles, Py_ssize_t row, int time) except -1:
    """Each is kept apart from the one before: equal ones would make a step, which has no inverse."""
    cdef const double *served = &(<const Served *>row_of(quantiles, row, sizeof(Served))).of[time][SERVED][0]
    cdef Py_ssize_t i
    errors.window = NULL
    for i in range(TAUS):
        errors.quantiles[i] = served[i] + APART * i
    return 0


cdef double exceed(const Errors *of, double residual) except? -1.0:
    """P(log error > residual)."""
    cdef Py_ssize_t low = 0, middle
    cdef double value, width
    if of.window != NULL:
        return above(<ResidualWindow>of.window, residual)
    for middle in range(1, TAUS - 1):
        low += of.quantiles[middle] < residual
    value = of.quantiles[low]
    width = of.quantiles[low + 1] - value
    return 0.5 * erfc(ROOT_HALF * (SCORES[low] + (residual - value) * (SCORES[low + 1] - SCORES[low]) / width))


cdef double quantile(const Errors *of, double share) except? -1e300:
    """The log error not exceeded with this probability."""
    cdef Py_ssize_t low = 0, each
    cdef double score, value
    if of.window != NULL:
        return at_share(<ResidualWindow>of.window, share)
    score = score_of(min(max(share, 1e-15), 1.0 - 1e-15))
    for each in range(1, TAUS - 1):
        low += SCORES[each] < score
    value = of.quantiles[low]
    return value + (score - SCORES[low]) * (of.quantiles[low + 1] - value) / (SCORES[low + 1] - SCORES[low])


# --- P(an SLO is missed) ---------------------------------------------------------------------------------
def p_miss(
    slo, double waited_s, Estimates estimates, list answers, list decides_ttft, list decides_tpot,
    bytes quantiles, list rows,
):
    """See `reference.p_miss`."""
    cdef Py_ssize_t size = len(estimates), n, i, j
    cdef double ttft_left_s = INFINITY, e2e_left_s = INFINITY, ttft_s, tpot_s, met_ttft, met_tpot, met, ended, decode_s
    cdef bint has_tpot = slo.tpot_s is not None, has_e2e = slo.e2e_s is not None, has_each = has_tpot or slo.ttft_s is not None
    cdef double tpot_target_s = slo.tpot_s if has_tpot else INFINITY, left_s
    cdef Errors of_ttft, of_tpot
    cdef double[3] ttft_points, tpot_points
    cdef const double *below = NULL
    cdef const double *density = NULL
    cdef LengthTable table
    cdef double cap = INFINITY, choices = 1.0
    cdef Known *known
    cdef Seen[STATES] states
    cdef Seen *seen
    cdef double missed
    cdef list found = []
    if slo.ttft_s is not None:
        ttft_left_s = <double>slo.ttft_s - waited_s
    if has_e2e:
        e2e_left_s = <double>slo.e2e_s - waited_s
    if not len(answers) == len(decides_ttft) == len(decides_tpot) == len(rows) == size:
        raise ValueError("columns of different lengths")
    if ttft_left_s <= 0.0 or e2e_left_s <= 0.0:
        return [1.0] * size
    last_answer = None
    for i in range(STATES):
        states[i].answer = NULL
    for n in range(size):
        known, answer = &estimates._known[n], answers[n]
        ttft_s, tpot_s = known.ttft_s, known.tpot_s
        if answer is not last_answer:
            last_answer = answer
            table, most = <object>PyTuple_GetItem(answer, 0), <object>PyTuple_GetItem(answer, 1)  # `answer[0]` of a named tuple is slow
            below, density = &table._of[BELOW][0], &table._of[DENSITY][0]
            cap = INFINITY if most is None else <double>most
            choices = item(answer, 2)
        seen = NULL
        if not (decides_ttft[n] or decides_tpot[n]):
            seen = &states[place_of_state(ttft_s, tpot_s)]
            if (
                seen.answer == <PyObject *>answer and seen.ttft_s == ttft_s and seen.tpot_s == tpot_s
                and alike(seen.ttft_errors, known.ttft_errors) and alike(seen.tpot_errors, known.tpot_errors)
            ):
                found.append(seen.missed)
                continue
        if decides_ttft[n]:
            read_quantiles(&of_ttft, quantiles, rows[n], 0)
        else:
            of_ttft.window = known.ttft_errors
        if decides_tpot[n]:
            read_quantiles(&of_tpot, quantiles, rows[n], 1)
        else:
            of_tpot.window = known.tpot_errors
        met_ttft = met_tpot = 1.0
        if has_each:
            met_ttft = 1.0 - exceed(&of_ttft, log(ttft_left_s / ttft_s))
            left_s = tpot_target_s if cap > 1.0 else INFINITY
            met_tpot = 1.0 - exceed(&of_tpot, log(left_s / tpot_s))
        met = met_ttft * met_tpot
        if has_e2e:
            for i in range(3):
                ttft_points[i] = e2e_left_s - ttft_s * exp(quantile(&of_ttft, met_ttft * (2 * i + 1) / 6.0))
                tpot_points[i] = tpot_s * exp(quantile(&of_tpot, met_tpot * (2 * i + 1) / 6.0))
            ended = 0.0
            for i in range(3):
                decode_s = ttft_points[i]
                if decode_s > 0.0:
                    for j in range(3):
                        ended += ended_by(below, density, 1.0 + decode_s / tpot_points[j], cap, choices)
            met *= ended / 9.0
        missed = at_least(1.0 - met, 0.0)
        if seen != NULL:
            seen.answer, seen.ttft_s, seen.tpot_s, seen.missed = <PyObject *>answer, ttft_s, tpot_s, missed
            seen.ttft_errors, seen.tpot_errors = known.ttft_errors, known.tpot_errors
        found.append(missed)
    return found


cdef enum:
    STATE_BITS = 7
    STATES = 1 << STATE_BITS


cdef struct Seen:  # P(miss) in one state, of a candidate of the same call
    PyObject *answer
    double ttft_s, tpot_s, missed
    PyObject *ttft_errors
    PyObject *tpot_errors


cdef Py_ssize_t place_of_state(double ttft_s, double tpot_s) noexcept:
    """Where a state is kept: equal ones at the same place."""
    cdef unsigned long long one, other
    memcpy(&one, &ttft_s, sizeof(one))
    memcpy(&other, &tpot_s, sizeof(other))
    return ((one * 3 + other) * <unsigned long long>0x9E3779B97F4A7C15) >> (64 - STATE_BITS)


cdef bint alike(const PyObject *one, const PyObject *other) noexcept:
    """Whether two windows have the same distribution, as those that have learned nothing have."""
    if one == other:
        return True
    return (
        (<ResidualWindow>one)._sorted == (<ResidualWindow>other)._sorted and (<ResidualWindow>one)._size == (<ResidualWindow>other)._size
        and (<ResidualWindow>one).bias == (<ResidualWindow>other).bias and (<ResidualWindow>one).tail == (<ResidualWindow>other).tail
    )


cdef double at_least(double value, double bound) noexcept:
    return bound if value < bound else value


cdef double ended_by(
    const double *below, const double *density, double tokens, double cap, double choices
) except? -1.0:
    """P(the longest of all choices has ended after so many tokens, at least 1)."""
    cdef double share
    cdef Py_ssize_t at
    if tokens >= cap:
        return 1.0
    at = edge_near(tokens)
    if at < 0:
        raise ValueError("an answer of less than a token")
    share = below[at] + (tokens - EDGES[at]) * density[at]
    return pow(share, choices) if choices > 1.0 else share


# Edges by the first bits of a number, which lead to one of the last edges that are not above it.
cdef enum:
    CELL_BITS = 3  # of the mantissa
    CELLS = 20 << CELL_BITS
cdef double LEAST_TOKENS = 0.5, MOST_TOKENS = 0.5 * 2.0 ** 20
cdef short[CELLS] CELL_EDGES


cdef Py_ssize_t cell_of(double tokens) noexcept:
    cdef unsigned long long bits, least
    memcpy(&bits, &tokens, sizeof(bits))
    memcpy(&least, &LEAST_TOKENS, sizeof(least))
    return (bits >> (52 - CELL_BITS)) - (least >> (52 - CELL_BITS))


cdef int fill_cells() except -1:
    cdef Py_ssize_t cell
    for cell in range(CELLS):
        CELL_EDGES[cell] = edge_of(&EDGES[0], LEAST_TOKENS * 2.0 ** (cell >> CELL_BITS) * (1.0 + (cell % (1 << CELL_BITS)) / <double>(1 << CELL_BITS)))
        if CELL_EDGES[cell] < 0 or cell_of(EDGES[CELL_EDGES[cell]]) > cell:
            raise ValueError("edges of other bins")
    return 0


fill_cells()


cdef Py_ssize_t edge_near(double value) except -2:
    """`edge_of` a number of tokens, quickly."""
    cdef Py_ssize_t at
    if not LEAST_TOKENS <= value < MOST_TOKENS:
        return edge_of(&EDGES[0], value)
    at = CELL_EDGES[cell_of(value)]
    while at < BINS and EDGES[at + 1] <= value:
        at += 1
    return at
