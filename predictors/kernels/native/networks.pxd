cdef enum:
    TOGETHER = 8  # candidates whose quantiles are predicted together
    SUMMARY = 44
    ESTIMATE = 13
    TARGETS = 47


cdef class LatencyNetwork:
    cdef const float[::1] _event_mean, _event_by, _gate_bias, _join_bias, _target_mean, _target_by, _middle_bias, _last_bias
    cdef const float[:, ::1] _by_event, _by_hidden, _join, _by_target, _middle, _last, _widths
    cdef float[::1] _event, _gates, _row, _second
    cdef float[:, ::1] _first  # of some candidates
    cdef Py_ssize_t _events, _hidden, _width, _taus, _outputs
    cdef float _clip

    cdef int _check(self, const float[::1] state) except -1
    cdef int advance(self, const double[::1] row, float[::1] state) except -1
    cdef int encode(self, float[::1] state) except -1
    cdef int put(self, Py_ssize_t n, const float[::1] state, const double *target) except -1
    cdef int finish(self, Py_ssize_t size, Py_ssize_t taus, float *quantiles) except -1


cdef class MemoryNetwork:
    cdef const float[::1] _mean, _by, _bias, _last
    cdef const float[:, ::1] _first
    cdef float[::1] row, _normal, _hidden
    cdef float _clip

    cdef float ratio(self) except -1.0


cdef int target_row(const double *seen, const double *known, double now, double *row) except -1
cdef int memory_row(double held, usage, const double *target, float *row, Py_ssize_t size) except -1
