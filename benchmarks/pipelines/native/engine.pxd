# The types of `benchmarks.pipelines.engine` when it is compiled as `benchmarks.pipelines.native.engine`.

cimport cython


cdef class Query:
    cdef public Py_ssize_t number, input_tokens, output_tokens, tokens, context_tokens, iteration, hop, place
    cdef public double created_s, entered_s, left_s, sends_at
    cdef public list hops, stays_s


cdef class Link:
    cdef public Py_ssize_t number, token_bytes, sending, entry, layers
    cdef public Node sender, receiver
    cdef public double bandwidth, free_bandwidth, latency_s, flow, load, planned_bandwidth
    cdef public object waiting


cdef class Node:
    cdef public Py_ssize_t number, first_layer, layers, layer, arrived_tokens
    cdef public Py_ssize_t prompt_requests, prompt_tokens, decode_requests, decode_context, kv_room, kv_used
    cdef public double nic, free_in, free_out
    cdef public list links, incoming, outbox, queues, batch, prompt_s, decode_s

    cpdef hold(self, Py_ssize_t layers)
    @cython.locals(layers=Py_ssize_t, layer=Py_ssize_t, step=Py_ssize_t, following=Py_ssize_t, queues=list, queue=list)
    cpdef march(self)
    @cython.locals(prompts=Py_ssize_t, prompt_tokens=Py_ssize_t, decodes=Py_ssize_t, context=Py_ssize_t,
                   query=Query, queue=list, batch=list, left=list)
    cpdef list fill(self)


cdef class Engine


cdef class Scheduler:
    cdef Engine _engine
    cdef Py_ssize_t _places

    cpdef bint admit(self, Query query)
    @cython.locals(query=Query, link=Link, free=list)
    cpdef send(self, Node node)
    cpdef finish(self, Query query)
    cpdef bint wants_more(self, bint after_prompt)


cdef class Engine:
    cdef public Node source, sink
    cdef public list nodes, links, stay_s, stays
    cdef public Scheduler scheduler
    cdef public object lengths, prompt_latency_s, decode_latency_s
    cdef public Py_ssize_t activation_bytes, events, refused, finished
    cdef public double time
    cdef double _window_start, _window_end
    cdef Py_ssize_t _sequence, _queries
    cdef list _heap
    cdef object _now

    cpdef submit(self, double at_s, Py_ssize_t input_tokens, Py_ssize_t output_tokens)
    @cython.locals(heap=list, kind=int, first=tuple, event=tuple)
    cpdef run(self, double until_s)
    @cython.locals(took_s=double)
    cpdef start(self, Link link, Query query, double bandwidth)
    cpdef resend(self, Node node)
    cdef _later(self, double at_s, int kind, subject, query)
    cdef _soon(self, int kind, subject, query)
    cdef _arrive(self, Query query)
    @cython.locals(bandwidth=double)
    cdef _sent(self, Link link, Query query)
    @cython.locals(receiver=Node)
    cdef _delivered(self, Link link, Query query)
    @cython.locals(batch=list, query=Query, prompt_tokens=Py_ssize_t, decodes=Py_ssize_t, layer_s=double, size=double)
    cdef _execute(self, Node node)
    @cython.locals(batch=list)
    cdef _executed(self, Node node)
    @cython.locals(prompt=bint, ended=bint, link=Link, stay_s=double)
    cdef _gather(self, Query query)
