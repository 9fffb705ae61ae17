cimport cython
from cpython.ref cimport PyObject

from predictors.kernels.native.residuals cimport ResidualWindow


@cython.final
cdef class Field:
    cdef str _name
    cdef type _of  # the class whose objects have it `_at` so many bytes from their beginning
    cdef Py_ssize_t _at

    cdef PyObject **_find(self, object of) except NULL
    cdef object read(self, object of)
    cdef double number(self, object of) except? -1.0
    cdef int write(self, object of, object value) except -1


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
