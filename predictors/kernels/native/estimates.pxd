from predictors.kernels.native.residuals cimport ResidualWindow


cdef struct Known:  # of one candidate
    double ttft_s, tpot_s, ttft_bias, tpot_bias, prompt_tokens, cached_tokens, output_tokens, pending_tokens, step_s
    double raw_tpot_s, memory_ratio, e2e_s
    double of_ttft[3]
    double of_tpot[3]
    long ttft_count, tpot_count
    int ttft_stratum, tpot_stratum


cdef class Estimates:
    cdef Known *_known
    cdef Py_ssize_t _size
    cdef list _ttft_errors, _tpot_errors

    cdef int _reserve(self, Py_ssize_t size) except -1
    cdef int _put(self, Py_ssize_t n, ResidualWindow ttft_errors, ResidualWindow tpot_errors) except -1
    cdef Known *at(self, Py_ssize_t n) except NULL
    cdef int _check(self, Py_ssize_t first, Py_ssize_t end, answers, others) except -1
