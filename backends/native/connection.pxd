# The types of `backends.connection` when it is compiled as `backends.native.connection`.


cdef class Connection:
    cdef public object loop, on_body, idle_since, listener, retry_after_s, error
    cdef public Py_ssize_t head_bytes, status, silent_sweeps
    cdef public bint closed, ended, answering, head_complete, watched, draining
    cdef object _pool, _transport, _parser
    cdef list _chunks
    cdef Py_ssize_t _unread
    cdef bint _paused, _complete, _reusable, _framed

    cdef _reset(self)
    cdef _hold_back(self, Py_ssize_t read_bytes)
    cpdef send(self, bytes head, bytes body)
    cpdef bytes take(self)
    cpdef release(self)
    cpdef abort(self)
    cdef _finish(self)
    cdef _fail(self, error)
    cdef _drop(self)
    cdef _wake(self)
