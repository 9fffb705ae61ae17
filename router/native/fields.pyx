# cython: language_level=3, nonecheck=True, auto_pickle=False
"""Fields of Python objects, for the compiled modules."""

from types import MemberDescriptorType

cimport cython
from cpython.ref cimport PyObject

cdef extern from "structmember.h":
    int T_OBJECT_EX

    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset

    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member


@cython.final
cdef class Field:
    """A field by its name. Objects of a class with `__slots__` keep it at a fixed place, so reading it takes a quarter of the
    instructions of a look-up. The place is found again for each other class; where there is none, it is looked up."""

    def __init__(self, str name not None):
        self.name = name

    cdef object find(self, object of):
        """The value in an object of another class, whose place is remembered, or of one that has no place or no value."""
        slot = getattr(type(of), self.name, None)
        self.of, self.at = type(of), 0
        if (
            type(slot) is MemberDescriptorType and isinstance(of, slot.__objclass__)
            and (<PyMemberDescrObject *>slot).d_member.type == T_OBJECT_EX
        ):
            self.at = (<PyMemberDescrObject *>slot).d_member.offset
        return getattr(of, self.name)

    cdef int put(self, object of, object value) except -1:
        """The same, to write a value."""
        setattr(of, self.name, value)
        self.find(of)
        return 0
