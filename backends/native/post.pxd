# The types of `backends.post` when it is compiled as `backends.native.post`.

cimport cython

from backends.native.connection cimport Connection


cdef class Post:
    cdef public Connection _connection
    cdef public object _follower, _later
    cdef object _pool
    cdef bytes _body, _head
    cdef str _request_id
    cdef double _resend_until
    cdef list _parts
    cdef Py_ssize_t _size

    cpdef start(self)
    cpdef abort(self)
    cpdef _opened(self, Connection connection)
    @cython.locals(connection=Connection)
    cdef _start(self)
    cdef _connect(self)
    @cython.locals(body=bytes)
    cdef _send(self, Connection connection)
    cdef _lost(self, Connection connection, error)
    cpdef _failed(self, error)
    cpdef bytes _complete_body(self, Connection connection, Py_ssize_t limit_bytes)
