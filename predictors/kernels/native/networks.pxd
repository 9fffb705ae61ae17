cdef class LatencyNetwork:
    cdef const float[::1] _event_mean, _event_by, _gate_bias, _join_bias, _target_mean, _target_by, _middle_bias, _last_bias
    cdef const float[:, ::1] _by_event, _by_hidden, _join, _by_target, _middle_left, _middle_right, _last, _widths
    cdef float[::1] _event, _gates, _row, _out
    cdef float[:, ::1] _first, _second  # of some candidates
    cdef Py_ssize_t _hidden, _width
    cdef float _clip

    cdef int advance(self, const double[::1] row, float[::1] state) except -1
