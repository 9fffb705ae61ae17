from predictors.kernels.native.networks cimport SUMMARY, LatencyNetwork

cdef enum:
    EVENT_SIZE = 18


cdef struct Ring:  # the last moments of one kind
    double moments[32]
    Py_ssize_t first, size, room


cdef struct Recent:  # the last values of one kind: of 1 if there are any, the newest, the median, low and high
    double newest[9]
    Py_ssize_t first, size
    double values[5]


cdef class InstanceHistory:
    cdef LatencyNetwork _network
    cdef readonly list events, _waiting
    cdef object _array
    cdef float[::1] _state  # of the array
    cdef double _step_s, _event_at
    cdef bint _any_event, _summarised, _encoded
    cdef Ring _first_8, _first_32, _arrivals, _ended
    cdef Recent _ttft[2]
    cdef Recent _ttft_error, _tpot, _tpot_error
    cdef double[SUMMARY] _summary

    cdef int encode(self) except -1
    cdef const double *seen(self, instance) except NULL
    cdef int _add(
        self, int kind, instance, double now, double size, double estimate, double cached, double error
    ) except -1
