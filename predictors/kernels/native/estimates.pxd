from cpython.ref cimport PyObject

from predictors.kernels.native.residuals cimport ResidualWindow


cdef struct Known:  # of one candidate
    double ttft_s, tpot_s, ttft_bias, tpot_bias, prompt_tokens, cached_tokens, output_tokens, pending_tokens, step_s
    double raw_tpot_s, memory_ratio, e2e_s
    double of_ttft[3]
    double of_tpot[3]
    long ttft_count, tpot_count
    int ttft_stratum, tpot_stratum
    PyObject *ttft_errors  # windows, which it owns
    PyObject *tpot_errors


cdef struct Factors:  # of TTFT and of TPOT: median, 95 % quantile and mean
    double of[2][3]


cdef class Estimates:
    cdef Known *_known
    cdef Py_ssize_t _size, _room
    cdef object _sources  # of which they were made; None: of estimates

    cdef int _reserve(self, Py_ssize_t size) except -1
    cdef int _put(self, Py_ssize_t n, ResidualWindow ttft_errors, ResidualWindow tpot_errors) except -1
    cdef Known *at(self, Py_ssize_t n) except NULL
    cdef int _check(self, Py_ssize_t first, Py_ssize_t end, answers, others) except -1


cdef struct Source:  # what estimates read of one candidate's stats; it owns the objects
    PyObject *ttft
    PyObject *tpot
    PyObject *shrinkage
    PyObject *prefills
    PyObject *lengths
    Py_ssize_t costs, kind  # their places
    double input_usd, output_usd  # the price of a million tokens


cdef struct Costs:
    double overhead_s, floor_s, token_s, extra_s, seq_s, kv_token_s, pair_s, load_s, capacity_tokens, batched_tokens, seats


cdef class Sources:
    cdef readonly list stats
    cdef Source *_of
    cdef Costs *_costs
    cdef Py_ssize_t _size
    cdef list _firsts  # by kind, the first candidate of it

    cdef int _put(self, Py_ssize_t n, of, price) except -1
