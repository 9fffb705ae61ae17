# cython: language_level=3, auto_pickle=False
"""What `router.compiled` takes from here, `Histogram` and `rounded`. `compiled_init`: a call of a class writes its arguments and
defaults to their places. Whatever this does not understand, errors too, is left to Python's way."""

import dataclasses
from operator import attrgetter
from types import MemberDescriptorType

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM

cdef extern from *:
    """
    #ifndef HEADWAY_SOURCE
    #define HEADWAY_SOURCE ""
    #endif
    """
    const char *HEADWAY_SOURCE

cdef extern from "Python.h":
    ctypedef PyObject *(*vectorcallfunc)(PyObject *kind, PyObject **arguments, size_t given, PyObject *keywords)

    ctypedef struct PyTypeObject:
        vectorcallfunc tp_vectorcall

    ctypedef struct PyTupleObject:
        PyObject *ob_item[1]

    object PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t items)
    const char *PyUnicode_AsUTF8(object text) except NULL
    PyObject *PyDict_GetItem(object of, PyObject *key)
    Py_ssize_t PyVectorcall_NARGS(size_t given)

    ctypedef enum PySendResult:
        PYGEN_RETURN, PYGEN_ERROR, PYGEN_NEXT

    PySendResult PyIter_Send(object coroutine, object sent, PyObject **found) except PYGEN_ERROR

cdef extern from "structmember.h":
    int T_OBJECT_EX, READONLY

    ctypedef struct PyMemberDef:
        const char *name
        int type
        Py_ssize_t offset
        int flags
        const char *doc

    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member

    object PyDescr_NewMember(PyTypeObject *kind, PyMemberDef *member)

SOURCE = HEADWAY_SOURCE.decode()

cdef enum:
    MOST_FIELDS = 64

cdef dict PLANS = {}  # by class
cdef object MISSING = dataclasses.MISSING


cdef class Plan:
    """The fields of a class in order: their names, their places in an object, what stands there if nothing is given."""

    cdef tuple names, defaults, factories
    cdef Py_ssize_t size, items
    cdef Py_ssize_t[MOST_FIELDS] places
    cdef PyMemberDef[MOST_FIELDS] members  # of a named tuple

    def __init__(self, type kind):
        cdef Py_ssize_t at
        if issubclass(kind, tuple):
            self.names = kind._fields
            self.defaults = tuple([kind._field_defaults.get(name, MISSING) for name in self.names])
            self.factories = (MISSING,) * len(self.names)
            self.size = self.items = len(self.names)
            places = [<Py_ssize_t>&(<PyTupleObject *>NULL).ob_item[at] for at in range(min(self.size, MOST_FIELDS))]
        else:
            fields = dataclasses.fields(kind)
            self.names = tuple([each.name for each in fields])
            self.defaults = tuple([each.default for each in fields])
            self.factories = tuple([each.default_factory for each in fields])
            self.size, self.items = len(fields), 0
            places = []
            for each in fields:
                slot = getattr(kind, each.name)
                if type(slot) is not MemberDescriptorType or (<PyMemberDescrObject *>slot).d_member.type != T_OBJECT_EX:
                    raise TypeError(f"{kind.__name__}.{each.name} has no place of its own")
                places.append((<PyMemberDescrObject *>slot).d_member.offset)
            if hasattr(kind, "__post_init__") or not all([each.init and not each.kw_only for each in fields]):
                raise TypeError(f"the constructor of {kind.__name__} does more than to set its fields")
        if type(kind) is not type or self.size > MOST_FIELDS:
            raise TypeError(f"{kind.__name__} is no plain class")
        for at in range(self.size):
            self.places[at] = places[at]
            if self.items:  # the interpreter caches where a slot is, but not where a named tuple has a field
                self.members[at] = PyMemberDef(PyUnicode_AsUTF8(self.names[at]), T_OBJECT_EX, places[at], READONLY, NULL)
                setattr(kind, self.names[at], PyDescr_NewMember(<PyTypeObject *>kind, &self.members[at]))


cdef inline PyObject **place(Plan plan, object made, Py_ssize_t at) noexcept:
    return <PyObject **>(<char *><PyObject *>made + plan.places[at])


cdef inline void put(Plan plan, object made, Py_ssize_t at, object value) noexcept:
    Py_INCREF(value)
    place(plan, made, at)[0] = <PyObject *>value


cdef object construct(PyObject *kind, PyObject **arguments, size_t given, PyObject *keywords):
    cdef Plan plan = <Plan>PyDict_GetItem(PLANS, kind)
    cdef Py_ssize_t positional = PyVectorcall_NARGS(given), named = 0, at, number, looked
    if positional > plan.size:
        return as_python_does(kind, arguments, positional, keywords)
    made = PyType_GenericAlloc(<PyTypeObject *>kind, plan.items)
    for at in range(positional):
        put(plan, made, at, <object>arguments[at])
    if keywords != NULL:
        named = len(<tuple>keywords)
        at = positional
        for number in range(named):
            name = (<tuple>keywords)[number]
            for looked in range(plan.size):  # names are interned, and mostly given in the order of the fields
                if at >= plan.size:
                    at = 0
                if plan.names[at] is name:
                    break
                at += 1
            else:
                return as_python_does(kind, arguments, positional, keywords)
            if place(plan, made, at)[0] != NULL:  # given twice
                return as_python_does(kind, arguments, positional, keywords)
            put(plan, made, at, <object>arguments[positional + number])
            at += 1
    if positional + named < plan.size:
        for at in range(positional, plan.size):
            if place(plan, made, at)[0] == NULL:
                value = plan.defaults[at]
                if value is MISSING:
                    if plan.factories[at] is MISSING:
                        return as_python_does(kind, arguments, positional, keywords)
                    value = plan.factories[at]()
                put(plan, made, at, value)
    return made


cdef object as_python_does(PyObject *kind, PyObject **arguments, Py_ssize_t positional, PyObject *keywords):
    cdef Py_ssize_t at
    given = [<object>arguments[at] for at in range(positional)]
    named = {}
    if keywords != NULL:
        for at, name in enumerate(<tuple>keywords):
            named[name] = <object>arguments[positional + at]
    return type.__call__(<object>kind, *given, **named)


def compiled_init(type kind):
    """See `router.compiled.compiled_init`."""
    PLANS[kind] = Plan(kind)
    (<PyTypeObject *>kind).tp_vectorcall = <vectorcallfunc>construct
    return kind


cdef class Reader:
    """Reads some fields of the objects of one class, and of those below it that have the fields at the same places."""

    cdef type kind
    cdef tuple names
    cdef dict alike  # by class: whether it is one of these
    cdef object otherwise
    cdef Py_ssize_t size
    cdef Py_ssize_t[MOST_FIELDS] places

    def __init__(self, Plan plan, type kind, tuple names, otherwise):
        cdef Py_ssize_t at
        self.kind, self.names, self.otherwise, self.size = kind, names, otherwise, len(names)
        self.alike = {kind: True}
        if self.size > MOST_FIELDS:
            raise TypeError("too many fields")
        for at in range(self.size):
            self.places[at] = plan.places[plan.names.index(names[at])]

    def read(self, of):
        cdef Py_ssize_t at
        cdef PyObject *value
        alike = self.alike.get(type(of))
        if alike is None:
            alike = self.alike[type(of)] = isinstance(of, self.kind) and all(
                [getattr(type(of), name) is getattr(self.kind, name) for name in self.names]
            )
        if alike is False:
            return self.otherwise(of)
        found = PyTuple_New(self.size)
        for at in range(self.size):
            value = (<PyObject **>(<char *><PyObject *>of + self.places[at]))[0]
            if value == NULL:
                return self.otherwise(of)
            Py_INCREF(<object>value)
            PyTuple_SET_ITEM(found, at, <object>value)
        return found


def reader(type kind, *names):
    """See `router.compiled.reader`."""
    return Reader(PLANS.get(kind) or Plan(kind), kind, names, attrgetter(*names)).read


cdef class Histogram:
    """See `router.core.histogram`."""

    cdef readonly tuple bounds
    cdef readonly list counts
    cdef readonly double total

    def __init__(self, tuple bounds not None):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)

    def observe(self, double value):
        cdef Py_ssize_t at = 0, end = len(self.bounds)
        while at < end and <double>self.bounds[at] < value:
            at += 1
        self.counts[at] += 1
        self.total += value

    def add(self, Histogram other not None):
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


def openings(bytes data not None):
    """See `router.compiled.openings`."""
    cdef const unsigned char *text = data
    cdef Py_ssize_t at, found = 0
    for at in range(len(data)):
        found += (text[at] | 0x20) == c"{"  # "[" is this without the bit
    return found


def first_step(coroutine):
    """See `router.compiled.first_step`."""
    cdef PyObject *found
    cdef bint ended = PyIter_Send(coroutine, None, &found) == PYGEN_RETURN
    value = <object>found
    Py_DECREF(value)
    return ended, value


cdef double NO_FRACTION = 1.5 * 2.0 ** 52
cdef double[5] POWERS = [1.0, 1e1, 1e2, 1e3, 1e4]


def rounded(double value, int digits):
    """See `router.core.rounding`."""
    cdef double scaled, whole
    if 0 <= digits < 5:
        scaled = value * POWERS[digits]
        if 0.0 < scaled < 1e9:
            whole = scaled + NO_FRACTION - NO_FRACTION
            if -0.499 < scaled - whole < 0.499:
                return whole / POWERS[digits]
    return round(value, digits)
