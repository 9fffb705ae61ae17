# What a module was compiled from (`router.compiled.digest`), which it tells as its SOURCE. `setup.py` defines it.

cdef extern from *:
    """
    #ifndef HEADWAY_SOURCE
    #define HEADWAY_SOURCE ""
    #endif
    """
    const char *HEADWAY_SOURCE
