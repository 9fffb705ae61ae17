# The types of `backends.sse_events` when it is compiled as `backends.native.sse_events`.

cimport cython

cpdef bytes data_of(bytes event)
cpdef dict object_of(bytes data)
cpdef dict chunk_of(bytes event)
@cython.locals(head=bytes, tail=bytes, text=bytes, rest=bytes, key=bytes)
cpdef event_template(bytes event, dict choice, dict texts)
cpdef bint carries_token(dict choice) except -1
@cython.locals(head=bytes)
cpdef bytes shared_head(bytes event)


cdef class EventFormat:
    cdef str _field
    cdef object _index
    cdef bytes _opening, _tail

    @cython.locals(head=bytes, opening=bytes, rest=dict, choice=dict, texts=dict)
    cpdef learn(self, template)
    cpdef template(self, bytes event, bytes head, index, bint is_token)
