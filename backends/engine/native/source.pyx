# cython: language_level=3

cdef extern from *:
    """
    #ifndef HEADWAY_SOURCE
    #define HEADWAY_SOURCE ""
    #endif
    """
    const char *HEADWAY_SOURCE

#: What the engine model in `backends.engine.native` was compiled from (`router.compiled.digest`).
SOURCE = HEADWAY_SOURCE.decode()
