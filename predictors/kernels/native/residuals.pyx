# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True, nonecheck=True, auto_pickle=False
"""The windows of log errors of `predictors.kernels.reference.residuals`, compiled. See there for what each computes.

The values of a window lie side by side, so that reading a window that no request has read for a while takes few lines of a
cache. Windows that have learned nothing share their prior's values."""

import numpy as np

from predictors.kernels.reference import residuals as reference

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.math cimport exp, fabs, log, sqrt
from libc.string cimport memcpy, memmove

from predictors.kernels.native.source cimport HEADWAY_SOURCE

SOURCE = HEADWAY_SOURCE.decode()

cdef Py_ssize_t PRIOR_SIZE = reference.PRIOR_SIZE, BIAS_KNOWN = reference.BIAS_KNOWN
cdef double LAG = reference.LAG, MOST_LAG = reference.MOST_LAG
cdef dict PRIORS = {}  # by standard deviation, a few: the values in order of size, and in the order in which they stay


cdef tuple prior_of(double sd):
    found = PRIORS.get(sd)
    if found is None:
        staying = np.array(reference.prior(sd))
        found = np.sort(staying), staying
        if len(PRIORS) < 64:
            PRIORS[sd] = found
    return found


@cython.no_gc  # it holds numbers only; a collector that cleared it would free what `_sorted` points to
cdef class ResidualWindow:
    def __cinit__(self, double prior_sd, double noise_sd, Py_ssize_t memory=64):
        if memory < 1:
            raise ValueError("a window without a memory")
        self._least_rate, self._window, self._most_lag = 1.0 / memory, 4 * memory, memory * MOST_LAG
        self._noise_sd, self._bias_inertia = noise_sd, (noise_sd / prior_sd) ** 2
        self._use_prior((prior_sd**2 + noise_sd**2) ** 0.5)
        self._summarise()

    def __dealloc__(self):
        PyMem_Free(self._values)
        PyMem_Free(self._recent)

    cdef int _use_prior(self, double sd) except -1:
        self._prior = prior_of(sd)
        cdef const double[::1] values = self._prior[0]
        self._sorted = &values[0]
        self._size = self._pseudos = PRIOR_SIZE
        return 0

    @property
    def values(self):
        return [self._sorted[at] for at in range(self._size)]  # a new list may run a finaliser that changes the window

    @property
    def _pseudo(self):
        return self._prior[1][:self._pseudos].tolist()

    def observe(self, double residual):
        self.learn(residual)

    cdef int learn(self, double residual) except -1:
        cdef double innovation = residual - self.bias, rate
        cdef Py_ssize_t room
        self.count += 1
        rate = 1.0 / (self.count + self._bias_inertia)
        self.bias += innovation * (rate if rate > self._least_rate else self._least_rate)
        if self.count < BIAS_KNOWN:
            return self._summarise()
        if self.count == BIAS_KNOWN:
            self._use_prior(self._noise_sd)
        self._insert(innovation)
        self._recent[(self._first + self._recents) % self._room] = innovation
        self._recents += 1
        if self._pseudos:
            if self.count % 2 == 0:
                self._pseudos -= 1
                self._remove(self._prior[1][self._pseudos])
        elif self._recents > self._window:
            innovation = self._recent[self._first]
            self._first = (self._first + 1) % self._room
            self._recents -= 1
            self._remove(innovation)
        self._stale += 1
        if self._stale >= self._most_lag or self._stale > self.count * LAG:
            return self._summarise()
        return 0

    cdef int _reserve(self) except -1:
        """Make room for one more value."""
        cdef Py_ssize_t room
        cdef double *grown
        if self._size < self._room:
            return 0
        # With all its room a window holds what it may hold and one more; only then do recent values wrap around.
        room = min(max(2 * self._room, 2 * PRIOR_SIZE), max(self._window, 2 * PRIOR_SIZE) + 1)
        if room <= self._size or self._first:
            raise IndexError("a window beyond its bound")
        grown = <double *>PyMem_Realloc(self._recent, room * sizeof(double))
        if grown == NULL:
            raise MemoryError
        self._recent = grown
        grown = <double *>PyMem_Realloc(self._values, room * sizeof(double))
        if grown == NULL:
            raise MemoryError
        if self._values == NULL:
            memcpy(grown, self._sorted, self._size * sizeof(double))
        self._values, self._room = grown, room
        self._sorted = grown
        return 0

    cdef int _insert(self, double value) except -1:
        cdef Py_ssize_t at
        self._reserve()
        at = place_of(self, value)
        memmove(self._values + at + 1, self._values + at, (self._size - at) * sizeof(double))
        self._values[at] = value
        self._size += 1
        return 0

    cdef int _remove(self, double value) except -1:
        cdef Py_ssize_t at = place_of(self, value)
        if at >= self._size:
            raise IndexError("a value that is not in the window")
        memmove(self._values + at, self._values + at + 1, (self._size - at - 1) * sizeof(double))
        self._size -= 1
        return 0

    def correct(self, double taken, double actual):
        cdef double by = actual - taken, rate, wanted, before
        cdef Py_ssize_t i, at, nearest = self._first
        if fabs(by) < 1e-12:
            return
        rate = 1.0 / (self.count + self._bias_inertia)
        self.bias += by * (rate if rate > self._least_rate else self._least_rate)
        if not self._recents:
            return
        wanted = taken - self.bias
        for i in range(1, self._recents):
            at = (self._first + i) % self._room
            if fabs(self._recent[at] - wanted) < fabs(self._recent[nearest] - wanted):
                nearest = at
        before = self._recent[nearest]
        self._recent[nearest] = before + by
        self._remove(before)
        self._insert(before + by)
        self._summarise()

    def quantiles(self, probabilities):
        return [at_share(self, probability) for probability in probabilities]

    def exceed(self, double residual):
        return above(self, residual)

    def least_factor(self):
        return exp(self.bias + self._sorted[0] - (self.tail if self._size < 2 * PRIOR_SIZE else 0.0))

    cdef int _summarise(self) except -1:
        cdef const double *values = self._sorted
        cdef double sd
        self._stale = 0
        self.tail = max(0.5 * (values[(self._size * 3) // 4] - values[self._size // 4]), 0.02)
        self.median, self.p95 = at_share(self, 0.5), at_share(self, 0.95)
        self.median_factor, self.p95_factor = exp(self.median), exp(self.p95)
        sd = min((self.p95 - self.median) / 1.645, 1.0)
        self.mean_factor = exp(self.median + 0.5 * sd * sd)
        self.factors = self.median_factor, self.p95_factor, self.mean_factor
        return 0


cdef Py_ssize_t OWN_AFTER = reference.StratifiedResiduals.OWN_AFTER


cdef class StratifiedResiduals:
    OWN_AFTER = reference.StratifiedResiduals.OWN_AFTER

    def __init__(self, Py_ssize_t strata, double prior_sd, double noise_sd, Py_ssize_t memory=64):
        cdef Py_ssize_t at
        self.pooled = ResidualWindow(prior_sd, noise_sd, memory)
        self.strata = [ResidualWindow(prior_sd, noise_sd, memory) for _ in range(strata)]
        if not 0 < strata <= MOST_STRATA:
            raise ValueError("another number of strata")
        self.windows = [self.pooled] * strata
        for at in range(strata):
            self._serve(at, self.pooled)

    def __dealloc__(self):
        cdef Py_ssize_t at
        for at in range(MOST_STRATA):
            Py_XDECREF(self.served[at])

    cdef int _serve(self, Py_ssize_t stratum, ResidualWindow window) except -1:
        cdef PyObject *before = self.served[stratum]
        Py_INCREF(window)
        self.served[stratum] = <PyObject *>window
        Py_XDECREF(before)
        return 0

    def correct(self, Py_ssize_t stratum, double taken, double actual):
        cdef ResidualWindow own = self.strata[stratum]
        own.correct(taken, actual)
        if own.count <= OWN_AFTER:
            self.pooled.correct(taken, actual)

    def observe(self, Py_ssize_t stratum, double residual):
        cdef ResidualWindow own = self.strata[stratum]
        own.learn(residual)
        if own.count == OWN_AFTER:
            self.windows[stratum] = own
            self._serve(stratum, own)
        self._observed += 1
        if self._observed % 4 == 0 or own.count <= OWN_AFTER:
            self.pooled.learn(residual)


cdef long SHRINK_MEMORY = reference.Shrinkage.MEMORY
cdef double PRIOR_VARIANCE = reference.Shrinkage.PRIOR_VARIANCE


cdef class Shrinkage:
    def __init__(self):
        self.slope = 1.0

    def observe(self, double estimate_s, double actual_s):
        cdef double rate, by, by_actual, slope
        self._count += 1
        rate = 1.0 / (self._count if self._count < SHRINK_MEMORY else SHRINK_MEMORY)
        by = log(estimate_s) - self.mean
        by_actual = log(actual_s) - self._mean_actual
        self.mean += rate * by
        self._mean_actual += rate * by_actual
        self._variance = (1.0 - rate) * (self._variance + rate * by * by)
        self._covariance = (1.0 - rate) * (self._covariance + rate * by * by_actual)
        slope = (self._covariance + PRIOR_VARIANCE) / (self._variance + PRIOR_VARIANCE)
        self.slope = 0.0 if slope < 0.0 else (1.0 if slope > 1.0 else slope)
        self.reach = 2.0 * sqrt(self._variance)

    cpdef double shrunk(self, double estimate_s) except? -1.0:
        cdef double within
        if self.slope >= 1.0:
            return estimate_s
        within = log(estimate_s) - self.mean
        if within > self.reach:
            within = self.reach
        elif within < -self.reach:
            within = -self.reach
        return estimate_s * exp((self.slope - 1.0) * within)
