cimport cython
from cpython.ref cimport PyObject


# What predictions read comes first, in as few lines of a cache as it fits.
cdef class ResidualWindow:
    cdef readonly Py_ssize_t count
    cdef readonly double bias, tail, median, median_factor, p95_factor, mean_factor
    cdef const double *_sorted  # the prior's values, which windows share, until the first is observed; then `_values`
    cdef Py_ssize_t _size
    cdef readonly double p95
    cdef readonly tuple factors
    cdef double _least_rate, _most_lag, _noise_sd, _bias_inertia
    cdef Py_ssize_t _window, _stale, _pseudos
    cdef tuple _prior  # its values by size, and in the order in which they stay
    cdef double *_values
    cdef double *_recent
    cdef Py_ssize_t _room, _first, _recents

    cdef int _use_prior(self, double sd) except -1
    cdef int _reserve(self) except -1
    cdef int _insert(self, double value) except -1
    cdef int _remove(self, double value) except -1
    cdef int _summarise(self) except -1
    cdef int learn(self, double residual) except -1


@cython.cdivision(True)
cdef inline Py_ssize_t place_of(ResidualWindow of, double value) noexcept:
    """Before which value of the window this one belongs; before the first of equal ones."""
    cdef const double *values = of._sorted
    cdef Py_ssize_t low = 0, high = of._size, middle
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@cython.cdivision(True)
cdef inline double at_share(ResidualWindow of, double share) noexcept:
    """The log error not exceeded with this probability."""
    cdef const double *values = of._sorted
    cdef Py_ssize_t last = of._size - 1, low
    cdef double at = share * (last + 2) - 1
    if not at > 0.0:
        return of.bias + values[0]
    low = last if at >= last else <Py_ssize_t>at
    if low >= last:
        return of.bias + values[last]
    return of.bias + values[low] + (at - low) * (values[low + 1] - values[low])


@cython.cdivision(True)
cdef inline double above(ResidualWindow of, double residual) noexcept:
    """P(log error > residual)."""
    cdef const double *values = of._sorted
    cdef double innovation = residual - of.bias, beyond
    cdef Py_ssize_t size = of._size, at = place_of(of, innovation)
    if at == 0:
        beyond = 1.0 + (values[0] - innovation) / of.tail
        return 1.0 - 1.0 / ((size + 1) * (beyond * beyond))
    if at == size:
        beyond = 1.0 + (innovation - values[size - 1]) / of.tail
        return 1.0 / ((size + 1) * (beyond * beyond))
    return 1.0 - (at + (innovation - values[at - 1]) / (values[at] - values[at - 1])) / (size + 1)


cdef enum:
    MOST_STRATA = 4


cdef class StratifiedResiduals:
    cdef readonly ResidualWindow pooled
    cdef readonly list strata, windows
    cdef PyObject *served[MOST_STRATA]  # the windows again: one line of a cache less for each stratum that is read
    cdef long _observed

    cdef int _serve(self, Py_ssize_t stratum, ResidualWindow window) except -1


cdef class Shrinkage:
    cdef readonly double slope, mean, reach
    cdef double _mean_actual, _variance, _covariance
    cdef long _count

    cpdef double shrunk(self, double estimate_s) except? -1.0
