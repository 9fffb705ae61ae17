"""Fields of Python objects, for the compiled modules."""

cimport cython
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject


@cython.final
cdef class Field:
    cdef str name
    cdef type of  # the class whose objects have it `at` so many bytes from their beginning
    cdef Py_ssize_t at

    cdef object find(self, object of)
    cdef int put(self, object of, object value) except -1


cdef extern from *:
    """
    /* The place of a field in an object of the class that has it `at` so many bytes from the beginning; else NULL. */
    static CYTHON_INLINE PyObject **headway_place(PyObject *of, PyTypeObject *kind, Py_ssize_t at) {
        return Py_TYPE(of) == kind && at ? (PyObject **)((char *)of + at) : NULL;
    }

    static CYTHON_INLINE double headway_double(PyObject *value) {
        if (PyFloat_CheckExact(value)) return PyFloat_AS_DOUBLE(value);
        if (!PyLong_CheckExact(value)) return PyFloat_AsDouble(value);
    #if PY_VERSION_HEX >= 0x030C0000
        if (PyUnstable_Long_IsCompact((PyLongObject *)value))
            return (double)PyUnstable_Long_CompactValue((PyLongObject *)value);
    #else
        if (Py_SIZE(value) == 0) return 0.0;
        if (Py_SIZE(value) == 1) return ((PyLongObject *)value)->ob_digit[0];
    #endif
        return PyLong_AsDouble(value);
    }
    """
    PyObject **headway_place(object of, type kind, Py_ssize_t at) noexcept
    double headway_double(object value) except? -1.0


cdef inline object read(Field field, object of):
    cdef PyObject **at = headway_place(of, field.of, field.at)
    return field.find(of) if at == NULL or at[0] == NULL else <object>at[0]


cdef inline double number(Field field, object of) except? -1.0:
    cdef PyObject **at = headway_place(of, field.of, field.at)
    return headway_double(field.find(of)) if at == NULL or at[0] == NULL else headway_double(<object>at[0])


cdef inline int write(Field field, object of, object value) except -1:
    cdef PyObject **at = headway_place(of, field.of, field.at)
    cdef PyObject *before
    if at == NULL:
        return field.put(of, value)
    before = at[0]
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
