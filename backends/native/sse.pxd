# The types of `backends.sse` when it is compiled as `backends.native.sse`.

cdef class SseScanner:
    cdef readonly bint done, started
    cdef public object failure
    cdef object _collector, _usage_collector
    cdef str _model, _field
    cdef bytes _edge, _before, _after, _seam, _null_finish, _empty, _null_text, _null_delta, _usage, _rename, _renamed
    cdef bytes _counted_before, _counted_after
    cdef list _held
    cdef bint _answered, _cut, _hides_usage
    cdef Py_ssize_t _choices, _max_event_bytes, _held_bytes, _early_bytes, _constant_bytes, _text_at, _text_end

    cpdef feed(self, bytes data)
    cdef _take_counted(self, bytes data)
    cdef bytes _join(self, bytes data)
    cdef _hold(self, bytes data)
    cdef _check_size(self)
    cdef _scan(self, bytes data)
    cdef tuple _run(self, bytes data, Py_ssize_t at, Py_ssize_t stop)
    cdef _learn(self, bytes event)
    cdef _measure(self, bytes before)
    cdef _learn_text(self, bytes event, dict payload, bint is_token)
    cdef bytes _renamed_event(self, bytes event, dict payload)
