# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, nonecheck=True, auto_pickle=False
"""`backends.sse`, compiled, with its loop over events that are alike in C."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp, memcpy

from backends.native cimport sse


cdef extern from *:
    """
    #ifndef HEADWAY_SOURCE
    #define HEADWAY_SOURCE ""
    #endif
    """
    const char *HEADWAY_SOURCE

#: What `backends.native` was compiled from (`router.compiled.digest`).
SOURCE = HEADWAY_SOURCE.decode()


cdef inline Py_ssize_t text_end(const char *data, Py_ssize_t start, Py_ssize_t stop) noexcept:
    """Where the text that begins at `start` has its closing quote; -1 if there is none before `stop`, if the text is empty
    or if a line ends in it."""
    if start >= stop:
        return -1
    cdef const char *quote = <const char *> memchr(data + start, c'"', stop - start)
    if quote == NULL or quote == data + start or memchr(data + start, c'\n', quote - data - start) != NULL:
        return -1
    return quote - data


cdef inline bint stands(const char *data, Py_ssize_t size, Py_ssize_t at, bytes part) noexcept:
    """Whether `part` stands at a place of the data."""
    cdef Py_ssize_t part_size = PyBytes_GET_SIZE(part)
    return size - at >= part_size and memcmp(data + at, PyBytes_AS_STRING(part), part_size) == 0


cdef class SseScanner(sse.SseScanner):
    """See `backends.sse.SseScanner`."""

    cdef tuple _run(self, bytes data, Py_ssize_t at, Py_ssize_t stop):
        cdef bytes after = self._after, seam = self._seam, joined
        if data is None or after is None or seam is None or at < 0 or stop > PyBytes_GET_SIZE(data):
            raise ValueError("the run is not in the data")
        cdef const char *text = PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), seam_size = PyBytes_GET_SIZE(seam)
        cdef Py_ssize_t start = at + self._text_at
        cdef Py_ssize_t quote = text_end(text, start, stop)
        cdef Py_ssize_t count = 0, length = 0, filled = 0, end = at, number
        while quote >= 0:
            if stands(text, size, quote, seam):
                count += 1
                length += quote - start
                start = quote + seam_size
                end = start - self._text_at
                quote = text_end(text, start, stop)
                continue
            if stands(text, size, quote, after):
                count += 1
                length += quote - start
                end = quote + PyBytes_GET_SIZE(after)
            break
        if self._collector is None or not count:
            return count, end
        joined = PyBytes_FromStringAndSize(NULL, length)
        cdef char *into = PyBytes_AS_STRING(joined)
        start = at + self._text_at
        for number in range(count):  # the same texts again
            quote = text_end(text, start, stop)
            if quote < 0 or quote - start > length - filled:
                raise ValueError("the run is not in the data")
            memcpy(into + filled, text + start, quote - start)
            filled += quote - start
            start = quote + seam_size
        self._collector.take_texts(self._field, joined)
        return count, end
