cdef class LatencyNetwork:
    cdef const float[::1] _event_mean, _event_by, _gate_bias, _join_bias, _target_mean, _target_by, _middle_bias, _last_bias
    cdef const float[:, ::1] _by_event, _by_hidden, _join, _by_target, _middle, _last, _widths
    cdef float[::1] _event, _gates, _row, _first, _second, _out
    cdef Py_ssize_t _hidden, _width
    cdef float _clip

    cdef int advance(self, const double[::1] row, float[::1] state) except -1


cdef class Forests:
    cdef const unsigned char[:, ::1] _feature
    cdef const double[:, ::1] _threshold, _value
    cdef const double[::1] _base
    cdef Py_ssize_t _split, _width, _depth

    cdef int add(self, const double[:, ::1] rows, Py_ssize_t n, double *sums) except -1
