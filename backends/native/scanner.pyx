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
    cdef const char *quote
    cdef Py_ssize_t slashes, at = start
    while at < stop:
        quote = <const char *> memchr(data + at, c'"', stop - at)
        if quote == NULL:
            return -1
        at, slashes = quote - data, 0
        while at - slashes > start and data[at - slashes - 1] == c'\\':
            slashes += 1
        if slashes % 2 == 0:
            return at if at > start and memchr(data + start, c'\n', at - start) == NULL else -1
        at += 1  # that one was escaped
    return -1


cdef inline bint stands(const char *data, Py_ssize_t size, Py_ssize_t at, bytes part) noexcept:
    """Whether `part` stands at a place of the data."""
    cdef Py_ssize_t part_size = PyBytes_GET_SIZE(part)
    return size - at >= part_size and memcmp(data + at, PyBytes_AS_STRING(part), part_size) == 0


cdef class SseScanner(sse.SseScanner):
    """See `backends.sse.SseScanner`."""

    cdef bytes _event(self, bytes data, Py_ssize_t at, Py_ssize_t stop):
        if data is None or at < 0 or stop > PyBytes_GET_SIZE(data) or at > stop:
            raise ValueError("the event is not in the data")
        cdef const char *begin = PyBytes_AS_STRING(data) + at
        cdef const char *end = begin
        while True:
            end = <const char *> memchr(end, c'\n', stop - at - (end - begin))
            if end == NULL or end - begin + 1 == stop - at:
                raise ValueError("no whole event is in the data")
            if end[1] == c'\n':
                return PyBytes_FromStringAndSize(begin, end - begin)
            end += 1

    cdef tuple _run(self, bytes data, Py_ssize_t at, Py_ssize_t stop):
        cdef bytes before = self._before, after = self._after, seam = self._seam, joined
        if data is None or before is None or after is None or seam is None or at < 0 or stop > PyBytes_GET_SIZE(data):
            raise ValueError("the run is not in the data")
        cdef const char *text = PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), seam_size = PyBytes_GET_SIZE(seam), before_size = PyBytes_GET_SIZE(before)
        if not stands(text, size, at, before):
            return 0, at
        cdef Py_ssize_t first = at + before_size, start = first
        cdef Py_ssize_t quote = text_end(text, start, stop)
        cdef Py_ssize_t count = 0, length = 0, filled = 0, end = at, number
        while quote >= 0:
            if stands(text, size, quote, seam):
                count += 1
                length += quote - start
                start = quote + seam_size
                end = start - before_size
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
        start = first
        for number in range(count):  # the same texts again
            quote = text_end(text, start, stop)
            if quote < 0 or quote - start > length - filled:
                raise ValueError("the run is not in the data")
            memcpy(into + filled, text + start, quote - start)
            filled += quote - start
            start = quote + seam_size
        self._collector.take_texts(self._field, joined)
        return count, end
