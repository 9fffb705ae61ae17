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
    cdef Py_ssize_t _place(self, double value) noexcept
    cdef int _summarise(self) except -1
    cdef int learn(self, double residual) except -1
    cdef double at_share(self, double share) noexcept
    cdef double above(self, double residual) noexcept


cdef class StratifiedResiduals:
    cdef readonly ResidualWindow pooled
    cdef readonly list strata, windows
    cdef long _observed


cdef class Shrinkage:
    cdef readonly double slope, mean, reach
    cdef double _mean_actual, _variance, _covariance
    cdef long _count

    cpdef double shrunk(self, double estimate_s) except? -1.0
