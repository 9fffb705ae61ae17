# cython: language_level=3

cdef extern from *:
    """
    #ifndef HEADWAY_SOURCE
    #define HEADWAY_SOURCE ""
    #endif
    """
    const char *HEADWAY_SOURCE

#: What `benchmarks.pipelines.native` was compiled from (`router.compiled.digest`).
SOURCE = HEADWAY_SOURCE.decode()
