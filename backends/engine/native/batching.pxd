# The types of `backends.engine.batching` when it is compiled as `backends.engine.native.batching`.

cimport cython

from backends.engine.native.decoding cimport Active, Decoding
from backends.engine.native.kv cimport KvBlocks
from backends.engine.native.series cimport count_within, span_s


cdef class Engine:
    cdef public object profile
    cdef public bint prefix_caching, every_token
    cdef readonly KvBlocks kv
    cdef readonly Py_ssize_t limit_tokens, preemptions_total, prefix_queries_total, prefix_hits_total
    cdef readonly Py_ssize_t prompt_tokens_total, generation_tokens_total
    cdef public object on_gaps
    cdef Py_ssize_t _spared, _block
    cdef object _unit, _waiting
    cdef readonly dict _all
    cdef dict _running, _prefilling
    cdef readonly Decoding _decoding
    cdef double _decoded_at_s, _idle_from_s
    cdef readonly bint _prompts_only
    cdef readonly Py_ssize_t _stretch
    cdef readonly double _start_s
    cdef public double _first_s, _slope_s, _end_s
    cdef readonly list _chunks
    cdef list _out

    @cython.locals(copied=Engine, inside=dict, active=Active)
    cpdef copy(self)
    @cython.locals(room=Py_ssize_t)
    cpdef submit(self, seq, double now)
    @cython.locals(active=Active)
    cpdef Py_ssize_t abort(self, seq_id, double now) except -1
    cpdef next_at(self)
    cpdef list advance(self, double now)
    cdef _catch_up(self, double now)
    cdef _plan_if_idle(self)
    @cython.locals(preempted=bint, growing=dict, decoding=Py_ssize_t, budget=Py_ssize_t, left=Py_ssize_t, pairs=double,
                   more=double, active=Active, count=Py_ssize_t)
    cpdef _plan(self)
    @cython.locals(budget=Py_ssize_t, left=Py_ssize_t, pairs=double)
    cdef bint _plan_prompts(self) except -1
    @cython.locals(pairs=double, active=Active, count=Py_ssize_t)
    cdef tuple _admit_waiting(self, Py_ssize_t left)
    @cython.locals(found=list, cached=Py_ssize_t, parked=Py_ssize_t, count=Py_ssize_t, need=Py_ssize_t, blocks=Py_ssize_t)
    cdef Py_ssize_t _admit(self, Active active, Py_ssize_t budget) except -1
    @cython.locals(before=Py_ssize_t, after=Py_ssize_t, full=Py_ssize_t)
    cdef double _schedule_chunk(self, Active active, Py_ssize_t count) except? -1
    cdef Py_ssize_t _blocks(self, Py_ssize_t tokens)
    cdef Py_ssize_t _hashed_blocks(self, seq) except -1
    @cython.locals(active=Active)
    cdef _preempt_last(self)
    @cython.locals(tokens=Py_ssize_t, context=Py_ssize_t, own=Py_ssize_t)
    cdef _leave(self, Active active, bint in_step, bint preempted=*)
    @cython.locals(more=bint, at_s=double, ahead=Py_ssize_t, active=Active)
    cdef _finish_steps(self, Py_ssize_t count)
    @cython.locals(sequences=dict, ended=dict, active=Active)
    cdef _give_tokens(self, Py_ssize_t count, double at_s)
    @cython.locals(sequences=dict, start_s=double, one=Active)
    cdef _report_gaps(self, tell, Py_ssize_t count, double at_s)
    @cython.locals(first=bint)
    cdef _end_prefill(self, Active active, double at_s)
    @cython.locals(count=Py_ssize_t)
    cdef _settle(self, double now)
    cdef _cut_stretch(self)
