# The types of `backends.sse` when it is compiled as `backends.native.sse`.

cimport cython

from backends.native.sse_events cimport EventFormat, carries_token, data_of, event_template, object_of, shared_head


cdef class SseScanner:
    cdef readonly bint done, started
    cdef public object failure
    cdef object _collector, _usage_collector, _several
    cdef str _model, _field
    cdef EventFormat _format
    cdef bytes _edge, _head, _before, _after, _seam, _null_finish, _empty, _null_text, _null_delta, _usage, _rename, _renamed
    cdef bytes _counted_before, _counted_after
    cdef list _held
    cdef bint _answered, _cut, _ended, _hides_usage
    cdef Py_ssize_t _max_event_bytes, _held_bytes, _early_bytes

    @cython.locals(at=Py_ssize_t, tokens=Py_ssize_t, count=Py_ssize_t)
    cpdef feed(self, bytes data)
    cdef _take_counted(self, bytes data)
    cdef bytes _join(self, bytes data)
    cdef _hold(self, bytes data)
    cdef _check_size(self)
    @cython.locals(head=bytes, known=bint, one_line=bint, end=Py_ssize_t, stop=Py_ssize_t, count=Py_ssize_t, rest=bytes, out=list, event=bytes, text=bytes, payload=dict, is_token=bint)
    cdef _scan(self, bytes data, Py_ssize_t at, Py_ssize_t tokens)
    cdef _take_usage_only(self, dict payload, Py_ssize_t size, list out)
    cdef bytes _event(self, bytes data, Py_ssize_t at, Py_ssize_t stop)
    cdef tuple _run(self, bytes data, Py_ssize_t at, Py_ssize_t stop)
    cdef _learn(self, bytes event)
    cdef bytes _renamed_run(self, bytes data)
    cdef _learn_template(self, bytes event, bytes head, dict payload, choice, bint is_token)
    cdef bytes _renamed_event(self, bytes event, dict payload)
