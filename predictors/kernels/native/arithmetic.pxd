# Loops over raw memory. Each checks the lengths of all that it is given before it begins, so that nothing here or in the
# modules that use it reads or writes beyond an array. All other code indexes with Cython's bounds checks on.

from cpython.tuple cimport PyTuple_GetItem


cdef inline double item(object row, Py_ssize_t at) except? -1.0:
    """A number of a tuple or of a named tuple."""
    return <object>PyTuple_GetItem(row, at)


cdef inline int add_product(const float[::1] x, const float[:, ::1] weights, float[::1] into) except -1:
    """into += x @ weights"""
    cdef Py_ssize_t rows = x.shape[0], columns = into.shape[0], i, j
    if weights.shape[0] != rows or weights.shape[1] != columns:
        raise ValueError("a vector and a matrix that do not fit")
    if not rows or not columns:
        return 0
    cdef const float *a = &x[0]
    cdef const float *first = &weights[0, 0]
    cdef float *out = &into[0]
    cdef const float *w[4]
    cdef float v[4]
    cdef int taken = 0
    for i in range(rows):  # four rows at once, without those that add nothing
        if a[i] != 0.0:
            v[taken] = a[i]
            w[taken] = first + i * columns
            taken += 1
            if taken == 4:
                add_four(v[0], w[0], v[1], w[1], v[2], w[2], v[3], w[3], out, columns)
                taken = 0
    for i in range(taken):
        for j in range(columns):
            out[j] += v[i] * w[i][j]
    return 0


cdef inline void add_four(
    float a, const float *u, float b, const float *v, float c, const float *w, float d, const float *x,
    float *out, Py_ssize_t size,
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(size):
        out[j] += a * u[j] + b * v[j] + c * w[j] + d * x[j]


cdef inline int add_row(const float[::1] x, float[::1] into) except -1:
    """into += x"""
    cdef Py_ssize_t size = into.shape[0], i
    if x.shape[0] != size:
        raise ValueError("vectors of different lengths")
    if not size:
        return 0
    cdef const float *a = &x[0]
    cdef float *out = &into[0]
    for i in range(size):
        out[i] += a[i]
    return 0


cdef inline int add_steps(float by, const signed char[:, ::1] table, Py_ssize_t row, float[::1] into) except -1:
    """into += by * table[row]"""
    cdef Py_ssize_t size = into.shape[0], i
    if not 0 <= row < table.shape[0] or table.shape[1] != size:
        raise ValueError("a row of another table")
    if not size:
        return 0
    cdef const signed char *a = &table[row, 0]
    cdef float *out = &into[0]
    for i in range(size):
        out[i] += by * a[i]
    return 0


cdef inline float tanh_of(float x) noexcept nogil:
    """tanh, to 4e-7: a quotient of polynomials that least squares on [0, 8.5] gave. NaN stays NaN."""
    x = -8.5 if x < -8.5 else x
    x = 8.5 if x > 8.5 else x
    cdef float z = x * x
    cdef float above = (((<float>1.4099297404842525e-08 * z + <float>2.1121667509240495e-05) * z
                         + <float>0.0035258277682169575) * z + <float>0.13406214090962792) * z + <float>0.9999999456681302
    cdef float below = (((<float>8.073658055228094e-07 * z + <float>0.0003335702371055828) * z
                         + <float>0.025991170628072276) * z + <float>0.4673952552472609) * z + <float>1.0
    return x * above / below


cdef inline void tanh_all(float[::1] x) noexcept:
    """Each value becomes its tanh."""
    cdef Py_ssize_t size = x.shape[0], i
    if not size:
        return
    cdef float *out = &x[0]
    for i in range(size):
        out[i] = tanh_of(out[i])


cdef inline void silu_all(float[::1] x) noexcept:
    """Each value x becomes x * sigmoid(x)."""
    cdef Py_ssize_t size = x.shape[0], i
    if not size:
        return
    cdef float *out = &x[0]
    for i in range(size):
        out[i] = out[i] * (<float>0.5 * tanh_of(<float>0.5 * out[i]) + <float>0.5)


cdef inline void relu_all(float[::1] x) noexcept:
    """Each value below 0 becomes 0."""
    cdef Py_ssize_t size = x.shape[0], i
    if not size:
        return
    cdef float *out = &x[0]
    for i in range(size):
        out[i] = 0.0 if out[i] < 0.0 else out[i]


cdef inline double within(double x, double low, double high) noexcept nogil:
    """x, cut at the bounds. NaN stays NaN."""
    if x < low:
        return low
    if x > high:
        return high
    return x
