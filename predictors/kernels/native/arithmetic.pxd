# Loops over raw memory. Each checks the lengths of all that it is given before it begins, so that nothing here or in the
# modules that use it reads or writes beyond an array. All other code indexes with Cython's bounds checks on.

from cpython.tuple cimport PyTuple_GetItem
from libc.string cimport memcpy


cdef inline double item(object row, Py_ssize_t at) except? -1.0:
    """A number of a tuple or of a named tuple."""
    return <object>PyTuple_GetItem(row, at)


cdef extern from *:
    """
    /* Where the machine has wider vectors, the same sums in fewer instructions. Nothing is fused or reordered (setup.py:
       -ffp-contract=off), so every variant gives the same bits. */
    #if defined(__has_attribute) && defined(__x86_64__) && defined(__GLIBC__)
    #if __has_attribute(target_clones)
    #define HEADWAY_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
    #endif
    #endif
    #ifndef HEADWAY_WIDE
    #define HEADWAY_WIDE
    #endif

    #define HEADWAY_FOUR(k) (v[k] * w[k][j] + v[k + 1] * w[k + 1][j] + v[k + 2] * w[k + 2][j] + v[k + 3] * w[k + 3][j])

    /* out += a @ weights, without the rows that add nothing. Sums of four rows are added; eight rows are read at once. */
    HEADWAY_WIDE static void headway_add_product(
        const float *a, const float *weights, float *restrict out, long rows, long columns
    ) {
        const float *w[8];
        float v[8];
        int taken = 0, added = 0;
        for (long i = 0; i < rows; i++) {
            if (a[i] == 0.0f) continue;
            v[taken] = a[i];
            w[taken++] = weights + i * columns;
            if (taken < 8) continue;
            for (long j = 0; j < columns; j++) {
                float sum = out[j] + HEADWAY_FOUR(0);
                out[j] = sum + HEADWAY_FOUR(4);
            }
            taken = 0;
        }
        if (taken >= 4) {
            for (long j = 0; j < columns; j++) out[j] += HEADWAY_FOUR(0);
            added = 4;
        }
        for (; added < taken; added++)
            for (long j = 0; j < columns; j++) out[j] += v[added] * w[added][j];
    }

    /* out = (x - mean) * by, cut at the bounds. NaN stays NaN. */
    #define HEADWAY_NORMAL(name, type) \
        HEADWAY_WIDE static void name( \
            const type *x, const float *mean, const float *by, float bound, float *restrict out, long size \
        ) { \
            for (long i = 0; i < size; i++) { \
                float normal = ((float)x[i] - mean[i]) * by[i]; \
                normal = normal < -bound ? -bound : normal; \
                out[i] = normal > bound ? bound : normal; \
            } \
        }
    HEADWAY_NORMAL(headway_normal, float)
    HEADWAY_NORMAL(headway_normal_of_doubles, double)

    /* out += a */
    HEADWAY_WIDE static void headway_add_row(const float *a, float *restrict out, long size) {
        for (long i = 0; i < size; i++) out[i] += a[i];
    }

    /* out += by * a */
    HEADWAY_WIDE static void headway_add_steps(float by, const signed char *a, float *restrict out, long size) {
        for (long i = 0; i < size; i++) out[i] += by * a[i];
    }

    /* tanh, to 4e-7: a quotient of polynomials that least squares on [0, 8.5] gave. NaN stays NaN. */
    static inline float headway_tanh(float x) {
        x = x < -8.5f ? -8.5f : x;
        x = x > 8.5f ? 8.5f : x;
        float z = x * x;
        float above = (((1.4099297404842525e-08f * z + 2.1121667509240495e-05f) * z + 0.0035258277682169575f) * z
                       + 0.13406214090962792f) * z + 0.9999999456681302f;
        float below = (((8.073658055228094e-07f * z + 0.0003335702371055828f) * z + 0.025991170628072276f) * z
                       + 0.4673952552472609f) * z + 1.0f;
        return x * above / below;
    }

    HEADWAY_WIDE static void headway_tanh_all(float *x, long size) {
        for (long i = 0; i < size; i++) x[i] = headway_tanh(x[i]);
    }

    /* The new cell and state of an LSTM, from its four gates after their tanh. */
    HEADWAY_WIDE static void headway_gate(const float *gates, float *restrict cell, float *restrict state, long hidden) {
        const float *opened = gates, *kept = gates + hidden, *added = gates + 2 * hidden, *shown = gates + 3 * hidden;
        for (long i = 0; i < hidden; i++) {
            cell[i] = (0.5f * kept[i] + 0.5f) * cell[i] + (0.5f * opened[i] + 0.5f) * added[i];
            state[i] = headway_tanh(cell[i]) * (0.5f * shown[i] + 0.5f);
        }
    }

    /* Each of `counts` with three neighbours on either side, weighed; `counts` has three zeros before and after them. */
    HEADWAY_WIDE static void headway_smooth(const double *counts, double *restrict out, long size) {
        for (long i = 0; i < size; i++) {
            const double *c = counts + i;
            out[i] = c[0] + 2.0 * c[1] + 3.0 * c[2] + 4.0 * c[3] + 3.0 * c[4] + 2.0 * c[5] + c[6];
        }
    }

    HEADWAY_WIDE static void headway_silu_all(float *x, long size) {
        for (long i = 0; i < size; i++) x[i] = x[i] * (0.5f * headway_tanh(0.5f * x[i]) + 0.5f);
    }
    """
    void headway_add_product(const float *a, const float *weights, float *out, long rows, long columns) noexcept nogil
    void headway_normal(const float *x, const float *mean, const float *by, float bound, float *out, long size) noexcept nogil
    void headway_normal_of_doubles(const double *x, const float *mean, const float *by, float bound, float *out, long size) noexcept nogil
    void headway_add_row(const float *a, float *out, long size) noexcept nogil
    void headway_add_steps(float by, const signed char *a, float *out, long size) noexcept nogil
    void headway_gate(const float *gates, float *cell, float *state, long hidden) noexcept nogil
    void headway_smooth(const double *counts, double *out, long size) noexcept nogil
    float tanh_of "headway_tanh"(float x) noexcept nogil
    void headway_tanh_all(float *x, long size) noexcept nogil
    void headway_silu_all(float *x, long size) noexcept nogil


cdef inline int add_product(const float[::1] x, const float[:, ::1] weights, float[::1] into) except -1:
    """into += x @ weights"""
    cdef Py_ssize_t rows = x.shape[0], columns = into.shape[0]
    if weights.shape[0] != rows or weights.shape[1] != columns:
        raise ValueError("a vector and a matrix that do not fit")
    if rows and columns:
        headway_add_product(&x[0], &weights[0, 0], &into[0], rows, columns)
    return 0


cdef inline int copy_row(const float[::1] x, float[::1] into) except -1:
    """into = x; quicker than a slice's assignment"""
    cdef Py_ssize_t size = into.shape[0]
    if x.shape[0] != size:
        raise ValueError("vectors of different lengths")
    if size:
        memcpy(&into[0], &x[0], size * sizeof(float))
    return 0


ctypedef fused real:
    float
    double


cdef inline int normalize(
    const real[::1] x, const float[::1] mean, const float[::1] by, float bound, float[::1] into
) except -1:
    """into = (x - mean) * by, cut at +-bound. NaN stays NaN."""
    cdef Py_ssize_t size = into.shape[0]
    if not x.shape[0] == mean.shape[0] == by.shape[0] == size:
        raise ValueError("vectors of different lengths")
    if not size:
        return 0
    if real is float:
        headway_normal(&x[0], &mean[0], &by[0], bound, &into[0], size)
    else:
        headway_normal_of_doubles(&x[0], &mean[0], &by[0], bound, &into[0], size)
    return 0


cdef inline int add_row(const float[::1] x, float[::1] into) except -1:
    """into += x"""
    if x.shape[0] != into.shape[0]:
        raise ValueError("vectors of different lengths")
    if x.shape[0]:
        headway_add_row(&x[0], &into[0], x.shape[0])
    return 0


cdef inline int add_row_of(const float[:, ::1] table, Py_ssize_t row, float[::1] into) except -1:
    """into += table[row]"""
    if not 0 <= row < table.shape[0] or table.shape[1] != into.shape[0]:
        raise ValueError("a row of another table")
    if into.shape[0]:
        headway_add_row(&table[row, 0], &into[0], into.shape[0])
    return 0


cdef inline int add_steps(float by, const signed char[:, ::1] table, Py_ssize_t row, float[::1] into) except -1:
    """into += by * table[row]"""
    if not 0 <= row < table.shape[0] or table.shape[1] != into.shape[0]:
        raise ValueError("a row of another table")
    if into.shape[0]:
        headway_add_steps(by, &table[row, 0], &into[0], into.shape[0])
    return 0


cdef inline void tanh_all(float[::1] x) noexcept:
    """Each value becomes its tanh."""
    if x.shape[0]:
        headway_tanh_all(&x[0], x.shape[0])


cdef inline int gate(const float[::1] gates, float[::1] cell, float[::1] state) except -1:
    """The new cell and state of an LSTM, from its four gates after their tanh."""
    cdef Py_ssize_t hidden = state.shape[0]
    if gates.shape[0] != 4 * hidden or cell.shape[0] != hidden:
        raise ValueError("gates of another size")
    if hidden:
        headway_gate(&gates[0], &cell[0], &state[0], hidden)
    return 0


cdef inline int smooth(const double[::1] counts, double[::1] into) except -1:
    """into = counts, each with three neighbours on either side, weighed. Three zeros come before and after the counts."""
    if counts.shape[0] != into.shape[0] + 6:
        raise ValueError("counts of other bins")
    if into.shape[0]:
        headway_smooth(&counts[0], &into[0], into.shape[0])
    return 0


cdef inline void silu_all(float[::1] x) noexcept:
    """Each value x becomes x * sigmoid(x)."""
    if x.shape[0]:
        headway_silu_all(&x[0], x.shape[0])


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
