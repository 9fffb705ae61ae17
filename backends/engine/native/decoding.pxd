# The types of `backends.engine.decoding` when it is compiled as `backends.engine.native.decoding`.

cimport cython


cdef class Active:
    cdef readonly object seq, finish
    cdef public Py_ssize_t output, target, generated, computed, offset
    cdef public double decoding_from_s
    cdef public list held
    cdef public object end_step
    cdef public bint preempted


cdef class Decoding:
    cdef readonly dict sequences
    cdef readonly Py_ssize_t steps, context_tokens
    cdef Py_ssize_t _block
    cdef list _growing, _end_steps
    cdef dict _ends

    @cython.locals(copied=Decoding)
    cpdef Decoding copy(self, inside)
    @cython.locals(end=Py_ssize_t, ending=dict)
    cpdef add(self, Active active, Py_ssize_t context)
    @cython.locals(context=Py_ssize_t, ending=dict)
    cpdef Py_ssize_t remove(self, Active active)
    cpdef dict advance(self, Py_ssize_t count)
    cpdef dict growing(self)
    @cython.locals(cycles=Py_ssize_t, rest=Py_ssize_t, first=Py_ssize_t, beyond=Py_ssize_t)
    cpdef Py_ssize_t blocks_after(self, Py_ssize_t steps)
    @cython.locals(most=Py_ssize_t, decoding=Py_ssize_t, cycles=Py_ssize_t, steps=Py_ssize_t)
    cpdef Py_ssize_t equal_steps(self, Py_ssize_t free)
