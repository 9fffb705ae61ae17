# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True, nonecheck=True, auto_pickle=False
"""The history of an instance of `predictors.kernels.reference.histories`, compiled. See there for what it computes."""

import numpy as np

from libc.math cimport log, log1p, log2, rint

from predictors.kernels.native.networks cimport SUMMARY, LatencyNetwork
from predictors.kernels.native.networks import target_rows
from predictors.kernels.native.source cimport HEADWAY_SOURCE
from router.native.fields cimport Field, number, read

SOURCE = HEADWAY_SOURCE.decode()

cdef Field AWAITING = Field("awaiting_first_token"), CONTEXT = Field("context_tokens"), IN_FLIGHT = Field("in_flight")
cdef Field KV_USAGE = Field("kv_usage"), PENDING = Field("pending_prefill_tokens"), REPORT = Field("report")
cdef Field REPORTED_AT = Field("reported_at"), RUNNING = Field("running"), WAITING = Field("waiting")

cdef enum:
    DISPATCHED, FIRST_TOKEN, ENDED, LOST, REPORTED


cdef int push(Ring *ring, double moment) noexcept:
    if ring.size < ring.room:
        ring.moments[ring.size] = moment
        ring.size += 1
    else:
        ring.moments[ring.first] = moment
        ring.first = (ring.first + 1) % ring.room
    return 0


cdef double oldest(const Ring *ring) noexcept:
    return ring.moments[ring.first] if ring.size else 0.0


cdef double newest(const Ring *ring) noexcept:
    return ring.moments[(ring.first + ring.size - 1) % ring.room] if ring.size else 0.0


cdef double share_of(const Ring *ring) noexcept:
    return 1.0 / ring.size if ring.size else 0.0


cdef int add(Recent *recent, double value) noexcept:
    cdef double[9] ordered
    cdef Py_ssize_t i, at
    if recent.size < 9:
        recent.newest[recent.size] = value
        recent.size += 1
    else:
        recent.newest[recent.first] = value
        recent.first = (recent.first + 1) % 9
    for i in range(recent.size):
        at = i
        while at > 0 and ordered[at - 1] > recent.newest[i]:
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = recent.newest[i]
    recent.values[0], recent.values[1], recent.values[2] = 1.0, value, ordered[recent.size // 2]
    recent.values[3], recent.values[4] = ordered[recent.size // 5], ordered[recent.size - 1 - recent.size // 5]
    return 0


cdef double coarse(double tokens) except? -1.0:
    """log2 of tokens, rounded to a quarter."""
    if not tokens > -1.0:
        raise ValueError("a number of tokens below 0")
    return 0.25 * rint(4.0 * log2(tokens + 1.0))


cdef double bounded(double error) noexcept:
    return 3.0 if error > 3.0 else (-3.0 if error < -3.0 else error)


cdef double cached_share(estimate) except? -1.0:
    return <double>estimate.cached_tokens / (<double>estimate.prompt_tokens + 1.0)


cdef double log1p_of(count) except? -1.0:
    """That of a count, 0 for None."""
    return 0.0 if count is None else checked_log1p(count)


cdef double checked_log(double value) except? -1.0:
    """The log of a time. A NaN would stay among the recent values."""
    if not value > 0.0:
        raise ValueError("a time that is not above 0")
    return log(value)


cdef double checked_log1p(double value) except? -1.0:
    """log1p of a count or a time. A NaN would stay in the state of the network."""
    if not value > -1.0:
        raise ValueError("a count or a time below 0")
    return log1p(value)


cdef double[::1] ROW = np.zeros(EVENT_SIZE)  # of the event that is being added: no call is interrupted


cdef class InstanceHistory:
    def __cinit__(self, LatencyNetwork network):
        self._network = network
        self.events, self._waiting = [], []
        if network is not None:
            self._array = network.start()
            self._state = self._array
        self._encoded = True
        self._step_s = 0.02
        self._first_8.room, self._first_32.room, self._arrivals.room, self._ended.room = 8, 32, 16, 16

    @property
    def state(self):
        self.encode()
        return self._array

    cdef int encode(self) except -1:
        """Bring the encoding of the state up to date, which only predictions read."""
        if not self._encoded:
            self._network.encode(self._state)
            self._encoded = True
        return 0

    def waits(self, double dispatched_at):
        self._waiting.append(dispatched_at)

    def stops_waiting(self, double dispatched_at):
        cdef list waiting = self._waiting
        cdef Py_ssize_t low = 0, high = len(waiting), middle
        if not high:
            return
        while low < high:
            middle = (low + high) >> 1
            if <double>waiting[middle] < dispatched_at - 1e-9:
                low = middle + 1
            else:
                high = middle
        waiting.pop(low if low < len(waiting) else -1)

    def dispatched(self, instance, estimate, double step_s, double now):
        self._step_s = step_s
        push(&self._arrivals, now)
        self._add(
            DISPATCHED, instance, now, coarse(estimate.prompt_tokens),
            checked_log(<double>estimate.ttft_s / step_s) + <double>estimate.ttft_bias, cached_share(estimate), 0.0,
        )

    def first_token(self, instance, estimate, double waited_s, double now):
        cdef double ttft = checked_log(waited_s), cached = cached_share(estimate), error
        error = bounded(ttft - checked_log(estimate.ttft_s) - <double>estimate.ttft_bias)
        push(&self._first_8, now)
        push(&self._first_32, now)
        add(&self._ttft[1 if cached > 0.5 else 0], ttft)
        add(&self._ttft_error, error)
        self._add(
            FIRST_TOKEN, instance, now, coarse(estimate.prompt_tokens), ttft - checked_log(self._step_s), cached, error
        )

    def ended(self, instance, estimate, output_tokens, tpot_s, double now):
        cdef double error = 0.0, per_token = 0.0, tpot
        push(&self._ended, now)
        if tpot_s is not None and <double>tpot_s > 0.0:
            tpot = checked_log(<double>tpot_s)
            per_token = tpot - checked_log(self._step_s)
            error = bounded(tpot - checked_log(estimate.tpot_s) - <double>estimate.tpot_bias)
            add(&self._tpot, tpot)
            add(&self._tpot_error, error)
        self._add(ENDED, instance, now, coarse(output_tokens), per_token, cached_share(estimate), error)

    def lost(self, instance, double waited_s, bint decoding, double now):
        self._add(LOST, instance, now, 0.0, 0.0 if decoding else checked_log(waited_s / self._step_s + 1.0), 0.0, 0.0)

    def reported(self, instance, double now):
        self._add(REPORTED, instance, now, 0.0, 0.0, 0.0, 0.0)

    cdef int _add(
        self, int kind, instance, double now, double size, double estimate, double cached, double error
    ) except -1:
        cdef double step_s = self._step_s, since_s, waited_s
        cdef double[::1] row = ROW
        cdef Py_ssize_t i
        report = read(REPORT, instance)
        running, waiting, usage = read(RUNNING, report), read(WAITING, report), read(KV_USAGE, report)
        in_flight, awaiting = read(IN_FLIGHT, instance), read(AWAITING, instance)
        context_tokens, pending_tokens = read(CONTEXT, instance), read(PENDING, instance)
        self._summarised = False
        since_s = now - self._event_at if self._any_event else 0.0
        waited_s = now - <double>self._waiting[0] if self._waiting else 0.0
        row[:5] = 0.0
        row[kind] = 1.0
        row[5] = checked_log1p(since_s / step_s)
        row[6], row[7], row[8], row[9] = size, estimate, cached, error
        row[10] = checked_log1p(in_flight)
        row[11] = checked_log1p(awaiting)
        row[12] = checked_log1p(pending_tokens)
        row[13] = checked_log1p(waited_s / step_s)
        row[14] = checked_log1p(context_tokens)
        row[15], row[16] = log1p_of(running), log1p_of(waiting)
        row[17] = 0.0 if usage is None else <double>usage
        for i in range(EVENT_SIZE):
            if row[i] != row[i]:
                raise ValueError("an event with a value that is no number")
        self._any_event, self._event_at = True, now
        if self._network is None:
            self.events.append(tuple(row))
            return 0
        self._encoded = False
        return self._network.advance(row, self._state)

    def target(self, instance, estimate, double now):
        return tuple(target_rows([self.summary(instance)], [estimate], now)[0].tolist())

    def summary(self, instance):
        cdef const double *seen = self.seen(instance)
        return tuple([seen[i] for i in range(SUMMARY)])

    cdef const double *seen(self, instance) except NULL:
        """The numbers of the summary. They stay the same until the next event."""
        cdef double *seen = &self._summary[0]
        cdef Py_ssize_t waiting, i
        cdef double ahead
        if self._summarised:
            return seen
        report, waiting, reported_at = read(REPORT, instance), len(self._waiting), read(REPORTED_AT, instance)
        ahead = number(AWAITING, instance) + 1.0
        seen[0] = 0.0 if reported_at is None else <double>reported_at
        seen[1] = <double>self._waiting[0] if waiting else 0.0
        seen[2] = <double>self._waiting[waiting // 2] if waiting else 0.0
        seen[3], seen[4], seen[5] = newest(&self._first_8), oldest(&self._first_8), oldest(&self._first_32)
        seen[6], seen[7] = oldest(&self._ended), oldest(&self._arrivals)
        seen[8] = 0.0 if reported_at is None else 1.0
        seen[9] = seen[10] = 1.0 if waiting else 0.0
        seen[11] = 1.0 if self._first_8.size else 0.0
        seen[12], seen[13] = share_of(&self._first_8), share_of(&self._first_32)
        seen[14], seen[15] = share_of(&self._ended), share_of(&self._arrivals)
        seen[16], seen[17], seen[18] = ahead, checked_log1p(number(IN_FLIGHT, instance)), log(ahead)
        seen[19] = checked_log1p(number(CONTEXT, instance))
        seen[20], seen[21] = log1p_of(read(RUNNING, report)), log1p_of(read(WAITING, report))
        usage = read(KV_USAGE, report)
        seen[22] = 0.0 if usage is None else <double>usage
        for i in range(5):
            seen[23 + i], seen[28 + i] = self._ttft[0].values[i], self._ttft[1].values[i]
            seen[33 + i] = self._tpot.values[i]
        for i in range(4):
            seen[38 + i] = self._ttft_error.values[1 + i]
        seen[42], seen[43] = self._tpot_error.values[2], self._tpot_error.values[1]
        self._summarised = True
        return seen
