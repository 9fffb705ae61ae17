# Loops over raw memory. Each checks the lengths of all that it is given before it begins, so that nothing here or in the
# modules that use it reads or writes beyond an array. All other code indexes with Cython's bounds checks on.

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GetItem
from libc.string cimport memcpy


cdef inline double item(object row, Py_ssize_t at) except? -1.0:
    """A number of a tuple or of a named tuple."""
    return <object>PyTuple_GetItem(row, at)


cdef inline void *data_of(object array, char kind, Py_ssize_t bytes) except NULL:
    """The memory of a contiguous array of so many bytes, of doubles ("d") or floats ("f"). It has to outlive its use. A
    memory view of it takes five times as long."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_ND | PyBUF_FORMAT)
    PyBuffer_Release(&view)  # the array still holds it
    if view.len != bytes or view.format[0] != kind:
        raise ValueError("an array of another size or of other numbers")
    return view.buf


cdef inline const void *row_of(bytes rows, Py_ssize_t at, Py_ssize_t size) except NULL:
    """One of some rows of `size` bytes each."""
    if not 0 <= at < len(rows) // size:
        raise IndexError("a row that is not there")
    return PyBytes_AS_STRING(rows) + at * size


cdef extern from *:
    """
    #include <math.h>
    #include <string.h>

    /* An integer below 65536. */
    static CYTHON_INLINE long headway_id(PyObject *value) {
    #if PY_VERSION_HEX < 0x030C0000
        if (PyLong_CheckExact(value) && Py_SIZE(value) == 1) return ((PyLongObject *)value)->ob_digit[0];
    #endif
        return PyLong_AsLong(value);
    }

    /* Where the machine has wider vectors, the same sums in fewer instructions. Nothing is fused or reordered (setup.py:
       -ffp-contract=off), so every variant gives the same bits. */
    #if defined(__has_attribute) && defined(__x86_64__) && defined(__GLIBC__)
    #if __has_attribute(target_clones)
    #define HEADWAY_CLONES
    #define HEADWAY_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
    #endif
    #endif
    #ifndef HEADWAY_WIDE
    #define HEADWAY_WIDE
    #endif

    /* A block of `count` vectors of out += a @ weights. The sums stay in registers; those of four rows are added first. */
    #define HEADWAY_EACH(count) _Pragma("GCC unroll 8") for (int k = 0; k < count; k++)
    #define HEADWAY_BLOCK(vector, count, row, value, rows) \
        for (; j + count * (long)(sizeof(vector) / 4) <= columns; j += count * (sizeof(vector) / 4)) { \
            vector sum[count]; \
            long g = 0; \
            HEADWAY_EACH(count) sum[k] = ((const vector *)(out + j))[k]; \
            for (; g + 4 <= rows; g += 4) { \
                const vector *w0 = (const vector *)(row(g) + j), *w1 = (const vector *)(row(g + 1) + j); \
                const vector *w2 = (const vector *)(row(g + 2) + j), *w3 = (const vector *)(row(g + 3) + j); \
                HEADWAY_EACH(count) sum[k] += value[g] * w0[k] + value[g + 1] * w1[k] + value[g + 2] * w2[k] + value[g + 3] * w3[k]; \
            } \
            for (; g < rows; g++) { \
                const vector *w0 = (const vector *)(row(g) + j); \
                HEADWAY_EACH(count) sum[k] += value[g] * w0[k]; \
            } \
            HEADWAY_EACH(count) ((vector *)(out + j))[k] = sum[k]; \
        }
    #define HEADWAY_BLOCKS(row, value, rows) { \
        long j = 0; \
        HEADWAY_BLOCK(wide, 6, row, value, rows) \
        HEADWAY_BLOCK(wide, 2, row, value, rows) \
        HEADWAY_BLOCK(wide, 1, row, value, rows) \
        HEADWAY_BLOCK(narrow, 1, row, value, rows) \
        HEADWAY_BLOCK(single, 1, row, value, rows) \
    }
    #define HEADWAY_ROW(g) (weights + (g) * columns)
    #define HEADWAY_TAKEN_ROW(g) taken_rows[g]
    #define HEADWAY_CHUNK 128

    /* out += a @ weights, without the rows that add nothing, which are passed over without a branch. */
    #define HEADWAY_PRODUCT(name, attribute, bytes) \
        attribute static void name(const float *a, const float *weights, float *restrict out, long rows, long columns) { \
            typedef float wide __attribute__((vector_size(bytes), aligned(4), may_alias)); \
            typedef float narrow __attribute__((vector_size(bytes < 32 ? bytes : 32), aligned(4), may_alias)); \
            typedef float single __attribute__((may_alias)); \
            const float *taken_rows[HEADWAY_CHUNK]; \
            float values[HEADWAY_CHUNK]; \
            long taken = 0, i = 0; \
            int zeros = 0; \
            for (long n = 0; n < rows; n++) zeros += a[n] == 0.0f; \
            if (!zeros) { \
                HEADWAY_BLOCKS(HEADWAY_ROW, a, rows) \
                return; \
            } \
            while (i < rows) { \
                long whole, kept = 0; \
                for (; i < rows && taken < HEADWAY_CHUNK; i++) { \
                    unsigned bits; \
                    memcpy(&bits, a + i, sizeof bits); \
                    values[taken] = a[i]; \
                    taken_rows[taken] = HEADWAY_ROW(i); \
                    taken += bits << 1 != 0; \
                } \
                whole = i < rows ? taken & ~3L : taken; \
                HEADWAY_BLOCKS(HEADWAY_TAKEN_ROW, values, whole) \
                for (; whole < taken; whole++, kept++) { \
                    values[kept] = values[whole]; \
                    taken_rows[kept] = taken_rows[whole]; \
                } \
                taken = kept; \
            } \
        }
    HEADWAY_PRODUCT(headway_add_product_of_16, , 16)
    #ifdef HEADWAY_CLONES
    HEADWAY_PRODUCT(headway_add_product_of_32, __attribute__((target("avx2"))), 32)
    HEADWAY_PRODUCT(headway_add_product_of_64, __attribute__((target("avx512f"))), 64)
    #endif
    CYTHON_UNUSED static void headway_add_product(const float *a, const float *weights, float *restrict out, long rows, long columns) {
    #ifdef HEADWAY_CLONES
        if (__builtin_cpu_supports("avx512f")) headway_add_product_of_64(a, weights, out, rows, columns);
        else if (__builtin_cpu_supports("avx2")) headway_add_product_of_32(a, weights, out, rows, columns);
        else
    #endif
            headway_add_product_of_16(a, weights, out, rows, columns);
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

    /* The same with a mean and a scale in double precision. */
    HEADWAY_WIDE static void headway_standard(
        const float *x, const double *mean, const double *by, double bound, float *restrict out, long size
    ) {
        for (long i = 0; i < size; i++) {
            double normal = (x[i] - mean[i]) * by[i];
            normal = normal < -bound ? -bound : normal;
            out[i] = normal > bound ? bound : normal;
        }
    }

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

    /* A step of an LSTM from its gates, in which all but the share of `row` is. Its last `hidden` values are the state, and after
       them comes the cell. */
    CYTHON_UNUSED static void headway_step(const float *by_row, float *restrict gates, float *row, long rows, long hidden) {
        headway_add_product(row, by_row, gates, rows, 4 * hidden);
        headway_tanh_all(gates, 4 * hidden);
        headway_gate(gates, row + rows, row + rows - hidden, hidden);
    }

    #define HEADWAY_PATCH 8 /* words in a patch */

    /* sums += the rows of the known words and pairs, each once: `seen` has the tick of its last prompt. `known` counts the known
       words, and the known pairs. -1: a row of another table. */
    CYTHON_UNUSED static int headway_sum_grams(
        const unsigned *words, long size, const int *rows, unsigned first_pair, unsigned mask, unsigned char *seen,
        unsigned char tick, const float *table, long table_rows, float *restrict sums, long columns, long *known
    ) {
        unsigned before = 0, word;
        long of_pairs = 0, of_both = 0;
        for (long at = 0; at < size; at++, before = word) {
            word = words[at];
            for (int pair = 0; pair < (at ? 2 : 1); pair++) {
                int row = rows[pair ? first_pair + ((before * 40503u + word * 9973u) & mask) : word];
                if (row <= 0) continue;
                if (row >= table_rows) return -1;
                of_pairs += pair;
                of_both++;
                if (seen[row] == tick) continue;
                seen[row] = tick;
                headway_add_row(table + row * columns, sums, columns);
            }
        }
        known[0] = of_both - of_pairs;
        known[1] = of_pairs;
        return 0;
    }

    /* The rows of the words of patches, of which the last may be filled up with unknown words (row 0). Counts frequent ones, and
       the others together. -1: a row of another table. */
    CYTHON_UNUSED static int headway_place_words(
        const unsigned *words, long size, const int *rows, long table_rows, long frequent, int *counted, int *placed, long room
    ) {
        for (long at = 0, place = 0; at < room; at++) {
            int row = at < size ? rows[words[at]] : 0;
            if (row < 0 || row >= table_rows) return -1;
            counted[row <= frequent ? row : 0]++;
            placed[at] = place + row;
            place = (at + 1) % HEADWAY_PATCH ? place + table_rows : 0;
        }
        return 0;
    }

    /* out = bias + the rows of a patch */
    HEADWAY_WIDE static void headway_sum_patch(
        const float *table, const int *rows, const float *bias, float *restrict out, long size
    ) {
        const float *r[HEADWAY_PATCH];
        for (int k = 0; k < HEADWAY_PATCH; k++) r[k] = table + rows[k] * size;
        for (long j = 0; j < size; j++) out[j] = bias[j] + r[0][j] + r[1][j] + r[2][j] + r[3][j] + r[4][j] + r[5][j] + r[6][j] + r[7][j];
    }

    /* Each of `counts` with three neighbours on either side, weighed; `counts` has three zeros before and after them. */
    HEADWAY_WIDE static void headway_smooth(const double *counts, double *restrict out, long size) {
        for (long i = 0; i < size; i++) {
            const double *c = counts + i;
            out[i] = c[0] + 2.0 * c[1] + 3.0 * c[2] + 4.0 * c[3] + 3.0 * c[4] + 2.0 * c[5] + c[6];
        }
    }

    HEADWAY_WIDE static void headway_relu_all(float *x, long size) {
        for (long i = 0; i < size; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i];
    }

    HEADWAY_WIDE static void headway_silu_all(float *x, long size) {
        for (long i = 0; i < size; i++) x[i] = x[i] * (0.5f * headway_tanh(0.5f * x[i]) + 0.5f);
    }

    #define HEADWAY_PARTS 4 /* of a mixture */
    #define HEADWAY_EDGES 16 /* at a time */

    /* Terms of a mixture of logistic distributions, and its shares below some edges, from their exponentials. */
    HEADWAY_WIDE static void headway_terms(
        const double *edges, const double *middles, const double *scales, double (*restrict terms)[HEADWAY_EDGES], long size
    ) {
        for (int part = 0; part < HEADWAY_PARTS; part++)
            for (long i = 0; i < size; i++) terms[part][i] = (middles[part] - edges[i]) / scales[part];
    }

    HEADWAY_WIDE static void headway_below(
        const double *weights, double (*restrict terms)[HEADWAY_EDGES], double *restrict below, long size
    ) {
        for (long i = 0; i < size; i++) below[i] = 0.0;
        for (int part = 0; part < HEADWAY_PARTS; part++)
            for (long i = 0; i < size; i++) below[i] += weights[part] / (1.0 + terms[part][i]);
    }

    /* The shares of the bins between edges, at least `least` each. Nothing is below the first edge or above the last one. */
    CYTHON_UNUSED static void headway_mixture(
        const double *edges, const double *weights, const double *middles, const double *scales, double least,
        double *restrict shares, long bins
    ) {
        double terms[HEADWAY_PARTS][HEADWAY_EDGES], below[HEADWAY_EDGES], before = 0.0, total = 0.0, share;
        for (long bin = 0; bin < bins; bin += HEADWAY_EDGES) {
            long size = bins - bin < HEADWAY_EDGES ? bins - bin : HEADWAY_EDGES;
            headway_terms(edges + bin + 1, middles, scales, terms, size);
            for (int part = 0; part < HEADWAY_PARTS; part++)
                for (long i = 0; i < size; i++) terms[part][i] = exp(terms[part][i]);
            headway_below(weights, terms, below, size);
            if (bin + size == bins) below[size - 1] = 1.0;
            for (long i = 0; i < size; i++) {
                share = below[i] - before;
                shares[bin + i] = share = share < least ? least : share;
                total += share;
                before = below[i];
            }
        }
        for (long bin = 0; bin < bins; bin++) shares[bin] /= total;
    }
    """
    long headway_id(PyObject *value) except? -1
    void headway_add_product(const float *a, const float *weights, float *out, long rows, long columns) noexcept nogil
    void headway_normal(const float *x, const float *mean, const float *by, float bound, float *out, long size) noexcept nogil
    void headway_normal_of_doubles(const double *x, const float *mean, const float *by, float bound, float *out, long size) noexcept nogil
    void headway_add_row(const float *a, float *out, long size) noexcept nogil
    void headway_add_steps(float by, const signed char *a, float *out, long size) noexcept nogil
    void headway_step(const float *by_row, float *gates, float *row, long rows, long hidden) noexcept nogil
    enum: PATCH_WORDS "HEADWAY_PATCH"
    enum: PARTS "HEADWAY_PARTS"
    int headway_sum_grams(
        const unsigned *words, long size, const int *rows, unsigned first_pair, unsigned mask, unsigned char *seen,
        unsigned char tick, const float *table, long table_rows, float *sums, long columns, long *known
    ) noexcept nogil
    int headway_place_words(
        const unsigned *words, long size, const int *rows, long table_rows, long frequent, int *counted, int *placed, long room
    ) noexcept nogil
    void headway_sum_patch(const float *table, const int *rows, const float *bias, float *out, long size) noexcept nogil
    void headway_standard(const float *x, const double *mean, const double *by, double bound, float *out, long size) noexcept nogil
    void headway_mixture(const double *edges, const double *weights, const double *middles, const double *scales, double least, double *shares, long bins) noexcept nogil
    void headway_smooth(const double *counts, double *out, long size) noexcept nogil
    float tanh_of "headway_tanh"(float x) noexcept nogil
    void headway_tanh_all(float *x, long size) noexcept nogil
    void headway_silu_all(float *x, long size) noexcept nogil
    void headway_relu_all(float *x, long size) noexcept nogil


cdef inline int layer(const float[::1] x, const float[:, ::1] weights, const float[::1] bias, float[::1] into) except -1:
    """into = bias + x @ weights"""
    copy_row(bias, into)
    return add_product(x, weights, into)


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


cdef inline int copy_first(const float[::1] x, float[::1] into) except -1:
    """into = the first values of x"""
    if x.shape[0] < into.shape[0]:
        raise ValueError("a vector that is too short")
    if into.shape[0]:
        memcpy(&into[0], &x[0], into.shape[0] * sizeof(float))
    return 0


cdef inline int copy_row_of(const float[:, ::1] table, Py_ssize_t row, float[::1] into) except -1:
    """into = table[row]"""
    if not 0 <= row < table.shape[0] or table.shape[1] != into.shape[0]:
        raise ValueError("a row of another table")
    if into.shape[0]:
        memcpy(&into[0], &table[row, 0], into.shape[0] * sizeof(float))
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


cdef inline int take_words(tuple words, unsigned int bound, unsigned int *into) except -1:
    """The ids of words, each below the bound. There is room for them."""
    cdef Py_ssize_t at
    cdef long word
    for at in range(len(words)):
        word = headway_id(PyTuple_GET_ITEM(words, at))
        if not 0 <= word < bound:
            raise IndexError("a word beyond the vocabulary")
        into[at] = word
    return 0


cdef inline int read_patches(
    const float[:, ::1] table, int *placed, Py_ssize_t size, const float[::1] bias, const float[:, ::1] by_row,
    const float[::1] gate_bias, float[::1] gates, float[::1] row,
) except -1:
    """An LSTM over patches, each the sum of some rows of a table, of which there are `size` (`headway_place_words`). `row` is the
    patch, the state and the cell."""
    cdef Py_ssize_t width = bias.shape[0], hidden = by_row.shape[0] - width, at
    if table.shape[1] != width or hidden < 0 or row.shape[0] != width + 2 * hidden:
        raise ValueError("weights that do not fit")
    if not by_row.shape[1] == gate_bias.shape[0] == gates.shape[0] == 4 * hidden:
        raise ValueError("gates of another size")
    if not width or not hidden:
        return 0
    for at in range(0, size, PATCH_WORDS):
        headway_sum_patch(&table[0, 0], placed + at, &bias[0], &row[0], width)
        headway_silu_all(&row[0], width)
        memcpy(&gates[0], &gate_bias[0], gates.shape[0] * sizeof(float))
        headway_step(&by_row[0, 0], &gates[0], &row[0], width + hidden, hidden)
    return 0


cdef inline int standardize(
    const float[::1] x, const double[::1] mean, const double[::1] by, double bound, float[::1] into
) except -1:
    """As `normalize`, in double precision."""
    if not x.shape[0] == mean.shape[0] == by.shape[0] == into.shape[0]:
        raise ValueError("vectors of different lengths")
    if into.shape[0]:
        headway_standard(&x[0], &mean[0], &by[0], bound, &into[0], into.shape[0])
    return 0


cdef inline int mixture(
    const double[::1] edges, const double *weights, const double *middles, const double *scales, double least,
    double *shares, Py_ssize_t bins,
) except -1:
    """The shares of the bins of a mixture of `PARTS` logistic distributions, at least `least` each, before they are divided
    by their sum."""
    if edges.shape[0] != bins + 1:
        raise ValueError("shares of other bins")
    if bins:
        headway_mixture(&edges[0], weights, middles, scales, least, shares, bins)
    return 0


cdef inline void silu_all(float[::1] x) noexcept:
    """Each value x becomes x * sigmoid(x)."""
    if x.shape[0]:
        headway_silu_all(&x[0], x.shape[0])


cdef inline void relu_all(float[::1] x) noexcept:
    """Each value below 0 becomes 0."""
    if x.shape[0]:
        headway_relu_all(&x[0], x.shape[0])


cdef inline double within(double x, double low, double high) noexcept nogil:
    """x, cut at the bounds. NaN stays NaN."""
    if x < low:
        return low
    if x > high:
        return high
    return x
