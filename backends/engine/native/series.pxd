# The types of `backends.engine.series` when it is compiled as `backends.engine.native.series`.

cimport cython


cpdef double span_s(double first_s, double slope_s, Py_ssize_t count)
@cython.locals(linear=double, root=double, count=Py_ssize_t)
cpdef Py_ssize_t count_within(double first_s, double slope_s, double spent_s, Py_ssize_t most)
