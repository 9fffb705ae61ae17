# The types of `backends.engine.kv` when it is compiled as `backends.engine.native.kv`.

cimport cython


cdef class KvBlocks:
    cdef public Py_ssize_t free, total, unit
    cdef Py_ssize_t _plain
    cdef dict _holders
    cdef object _idle

    @cython.locals(copied=KvBlocks)
    cpdef KvBlocks copy(self)
    cpdef list match(self, prefix, Py_ssize_t most)
    cpdef Py_ssize_t idle_among(self, units)
    @cython.locals(holders=dict)
    cpdef hold(self, units)
    cpdef take(self, Py_ssize_t count)
    cpdef give(self, Py_ssize_t count)
    cpdef park(self, seq_id, Py_ssize_t count)
    cpdef Py_ssize_t parked(self, seq_id) except -1
    @cython.locals(count=Py_ssize_t)
    cpdef Py_ssize_t unpark(self, seq_id) except -1
    @cython.locals(holders=dict, fresh=dict)
    cpdef name(self, units)
    @cython.locals(holders=dict, cached=Py_ssize_t)
    cpdef drop(self, units)
