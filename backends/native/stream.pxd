# The types of `backends.stream` when it is compiled as `backends.native.stream`.

cimport cython

from backends.native.connection cimport Connection
from backends.native.post cimport Post


cdef class StreamedCall(Post):
    cdef bint _paused
    cdef object _scanner, _take

    cpdef resume(self)
    cpdef _opened(self, Connection connection)
    @cython.locals(connection=Connection, data=bytes, taken=bint, paused=bint)
    cpdef _on_data(self)
    cdef _end_with(self, error)
