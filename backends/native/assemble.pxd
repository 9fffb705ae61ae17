# The types of `backends.assemble` when it is compiled as `backends.native.assemble`.

cimport cython

from backends.native.sse_events cimport chunk_of, event_template


cdef class _Choice:
    cdef readonly dict texts
    cdef object index, logprobs, finish_reason
    cdef dict message, audio, extra, function_call
    cdef list calls

    cpdef take(self, dict part, dict texts, bint chat)
    cdef _take_delta(self, str name, value)


cdef class Assembler:
    cdef readonly list _parts
    cdef bint _chat
    cdef list _sink, _escaped
    cdef Py_ssize_t _pending_bytes, _bytes, _text_bytes
    cdef dict _top, _choices, _texts
    cdef object _template

    cpdef feed(self, bytes data)
    cdef _fold(self, bint last)
    cdef _add_text(self, bytes escaped)
    cdef _event(self, bytes event)
    cpdef take_event(self, dict chunk, Py_ssize_t size)
    cpdef take_texts(self, str field, bytes escaped)
    cdef _flush(self)
    cdef _count(self, Py_ssize_t size)
    @cython.locals(top=dict, part=dict, choice=_Choice, texts=dict)
    cdef dict _merge(self, dict chunk)


cdef str _decoded(bytes escaped)
cdef dict _object(value)
cdef _merged(old, new)
