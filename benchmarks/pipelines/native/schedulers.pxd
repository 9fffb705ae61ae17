# The types of `benchmarks.pipelines.schedulers` when it is compiled as `benchmarks.pipelines.native.schedulers`.

cimport cython

from benchmarks.pipelines.native.engine cimport Engine, Link, Node, Query, Scheduler


cdef class MaxFlow(Scheduler):
    cdef list _flows, _kv_free
    cdef double _high_water, _output_tokens, _feed_below
    cdef Py_ssize_t _layers

    @cython.locals(link=Link)
    cpdef bint admit(self, Query query)
    @cython.locals(node=Node, sink=Node, link=Link, taken=Link, tokens=Py_ssize_t, expected=Py_ssize_t, path=list)
    cdef bint _route(self, Query query)
    @cython.locals(best=Link, link=Link, least=double, total=double, load=double)
    cdef Link _next(self, Node node, Py_ssize_t tokens, Py_ssize_t expected)
    cdef bint _has_room(self, Node node, Py_ssize_t tokens, Py_ssize_t expected)


cdef class Swarm(Scheduler):
    cdef list _hop_s

    @cython.locals(query=Query, came=Link, link=Link, hop_s=double, sender=Node)
    cpdef send(self, Node node)


cdef class RandomChoice(Scheduler):
    cdef object _random

    cpdef list allowed(self, Node node, list free)
    @cython.locals(query=Query, link=Link, candidate=Link)
    cpdef send(self, Node node)


cdef class ShortestQueue(RandomChoice):
    cpdef list allowed(self, Node node, list free)


@cython.locals(link=Link, share=double, left=double, bandwidth=double, receiver=Node)
cdef list _free_links(Node node)
