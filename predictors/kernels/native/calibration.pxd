# The types of `predictors.kernels.reference.calibration` when it is compiled as `predictors.kernels.native.calibration`.

cimport cython

cdef long MEMORY
cdef double HALVING
cdef list _DOWN, _UP


cdef class Offsets:
    cdef readonly list values

    @cython.locals(at=Py_ssize_t, values=list, quantile=double, part=double)
    cpdef learn(self, predicted, double actual, double waiting=*)


cdef double _rate(long count) noexcept


cdef class Coverage:
    cdef readonly long ttfts, tpots, outputs
    cdef readonly double ttft_p50, ttft_p95, output_p90, ttft_log_error, tpot_log_error

    @cython.locals(rate=double)
    cpdef observe_ttft(self, double residual, double p50, double p95)
    cpdef observe_tpot(self, double log_error)
    cpdef observe_output(self, bint within_p90)


cdef class Accuracy:
    cdef readonly Coverage learned, physical
    cdef readonly double learned_loss, physical_loss

    @cython.locals(rate=double)
    cpdef observe(self, double residual, double p50, double p95, double physical_p50, double physical_p95)


@cython.locals(by50=double, by95=double)
cdef double _loss(double residual, double p50, double p95) noexcept


cdef class GroupCalibration:
    cdef public tuple offsets
    cdef readonly Accuracy accuracy
