"""Fields of Python objects, for the compiled modules."""

cimport cython
from cpython.list cimport PyList_GET_ITEM
from cpython.long cimport PyLong_AsDouble, PyLong_CheckExact
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject


@cython.final
cdef class Field:
    cdef str name
    cdef type of  # the class whose objects have it `at` so many bytes from their beginning
    cdef Py_ssize_t at

    cdef int find(self, object of) except -1


cdef inline PyObject **place(Field field, object of) except NULL:
    """The place of the value; NULL is there if it must be looked up."""
    if type(of) is not field.of:
        field.find(of)
    return <PyObject **>(<char *><PyObject *>of + field.at) if field.at else &NOWHERE


cdef inline object read(Field field, object of):
    cdef PyObject *value = place(field, of)[0]
    return getattr(of, field.name) if value == NULL else <object>value


cdef inline double number(Field field, object of) except? -1.0:
    value = read(field, of)
    return PyLong_AsDouble(value) if PyLong_CheckExact(value) else <double>value


cdef inline int write(Field field, object of, object value) except -1:
    cdef PyObject **at = place(field, of)
    cdef PyObject *before = at[0]
    if not field.at:
        setattr(of, field.name, value)
        return 0
    Py_INCREF(value)
    at[0] = <PyObject *>value
    Py_XDECREF(before)
    return 0


cdef inline int write_all(Field field, list to, list values) except -1:
    """Write each value to the object at its place."""
    cdef Py_ssize_t at
    if len(to) != len(values):
        raise ValueError("columns of different lengths")
    for at in range(len(to)):
        write(field, <object>PyList_GET_ITEM(to, at), <object>PyList_GET_ITEM(values, at))
    return 0


cdef extern from *:
    """static PyObject *headway_nowhere = NULL;"""
    PyObject *NOWHERE "headway_nowhere"
