# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, nonecheck=True, auto_pickle=False
"""`router.core.options.Options` and the loops of `router.core.option_columns`, compiled. See there for what each computes."""

from router.core.options import Option

cimport cython
from cpython.dict cimport PyDict_GetItemWithError
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject

from router.native.fields cimport Field, number, read, write, write_all

cdef extern from *:
    """
    #ifndef HEADWAY_SOURCE
    #define HEADWAY_SOURCE ""
    #endif
    """
    const char *HEADWAY_SOURCE

cdef extern from "Python.h":
    object PyType_GenericAlloc(type kind, Py_ssize_t items)
    PyObject *PySequence_Fast_GET_ITEM(object of, Py_ssize_t at)  # of a list or a tuple; it does not check its bounds

SOURCE = HEADWAY_SOURCE.decode()

cdef long ENGINE_QUEUE = 4
cdef double SHARED_STEPS = 0.5, MOST_BUSY = 0.9, LATER = 3.0
cdef type OPTION = Option

cdef Field AWAITING = Field("awaiting_first_token"), CANDIDATE = Field("candidate"), CONTEXT = Field("context_tokens")
cdef Field FAMILY = Field("family"), HOURLY_USD = Field("usd_per_hour"), PROMISED = Field("promised_tpot_s")
cdef Field DRAINING = Field("draining"), EJECTED = Field("ejected_for"), HEALTHY = Field("healthy"), IN_FLIGHT = Field("in_flight")
cdef Field INSTANCE = Field("instance"), NAME = Field("instance"), MODEL = Field("model"), MOST = Field("max_concurrency"), PENDING = Field("pending_prefill_tokens")
cdef Field PREDICTION = Field("prediction"), PROFILES = Field("profiles"), REPORT = Field("report"), REPORTED_AT = Field("reported_at")
cdef Field RETURNED_AT = Field("returned_at"), RUNNING = Field("running"), SPEED = Field("speed")
cdef Field BATCHED = Field("max_batched_tokens"), EXTRA_S = Field("per_token_extra_s"), FLOOR_S = Field("floor_s"), KV_TOKEN_S = Field("per_kv_token_s")
cdef Field OVERHEAD_S = Field("overhead_s"), PAIR_S = Field("per_pair_s"), SEQ_S = Field("per_seq_s"), TOKEN_S = Field("per_token_s")


cdef object option_of(candidate, instance, prediction):
    option = PyType_GenericAlloc(OPTION, 0)
    write(CANDIDATE, option, candidate)
    write(INSTANCE, option, instance)
    write(PREDICTION, option, prediction)
    return option


cdef enum:
    MOST_SINGLY = 8
    FEW = 32


cdef class Options:
    """See `router.core.options`."""

    cdef public object columns
    cdef readonly object roster
    cdef object _candidates, _instances, _profiles  # of the roster
    cdef list _made
    cdef Py_ssize_t _singly

    def __init__(self, options=(), columns=None, roster=None):
        self.columns, self.roster = columns, roster
        if roster is None:
            self._made = list(options)
            return
        self._candidates, self._instances, self._profiles = roster[0], roster[1], roster[2]
        if not len(self._candidates) == len(self._instances) == len(self._profiles):
            raise ValueError("columns of different lengths")
        self._made = [None] * len(self._candidates)
        self._singly = 0 if len(self._made) > FEW else MOST_SINGLY

    def __len__(self):
        return len(self._made)

    def __getitem__(self, at):
        if type(at) is slice:
            return self._all()[at]
        cdef Py_ssize_t place = at, size = len(self._made)
        if place < 0:
            place += size
        if not 0 <= place < size:
            raise IndexError("an option that is not there")
        option = self._made[place]
        if option is not None:
            return option
        self._singly += 1
        if self._singly > MOST_SINGLY:
            return self._all()[place]
        self._make(place, place + 1)
        return self._made[place]

    def __iter__(self):
        return iter(self._all())

    def predicted(self, columns):
        cdef Py_ssize_t at
        self.columns = columns
        for at in range(len(self._made)):
            if self._made[at] is not None:
                (prediction,) = columns.each(at, at + 1)
                write(PREDICTION, self._made[at], prediction)

    cdef list _all(self):
        for each in self._made:
            if each is None:  # `in` would compare the options
                self._make(0, len(self._made))
                break
        return self._made

    cdef int _make(self, Py_ssize_t first, Py_ssize_t end) except -1:
        """Make these options, where they are not made."""
        cdef Py_ssize_t at
        cdef list predictions = None
        if self.columns is not None:
            predictions = self.columns.each(first, end)
            if len(predictions) != end - first:
                raise ValueError("columns of different lengths")
        for at in range(first, end):
            if self._made[at] is None:
                self._made[at] = option_of(
                    self._candidates[at], self._instances[at], None if predictions is None else predictions[at - first]
                )
        return 0


cdef inline bint of_roster(options) noexcept:
    return type(options) is Options and (<Options>options)._candidates is not None


cdef list all_of(options):
    """Options that were given."""
    return (<Options>options)._made if type(options) is Options else options if type(options) is list else list(options)


cdef object instances_of(options):
    """Their instances: a list or a tuple."""
    if of_roster(options):
        return (<Options>options)._instances
    cdef list found = []
    for option in all_of(options):
        found.append(read(INSTANCE, option))
    return found


cdef object profiles_of(options):
    """The engine profile of each option's model at its instance: a list or a tuple."""
    if of_roster(options):
        return (<Options>options)._profiles
    cdef list found = []
    for option in all_of(options):
        found.append(profile_of(option, read(INSTANCE, option)))
    return found


cdef object candidates_of(options):
    """Their candidates: a list or a tuple."""
    if of_roster(options):
        return (<Options>options)._candidates
    cdef list found = []
    for option in all_of(options):
        found.append(read(CANDIDATE, option))
    return found


def parts_of(options):
    return candidates_of(options), instances_of(options)


def predicted(options):
    if of_roster(options):
        return (<Options>options).columns is not None
    return read(PREDICTION, options[0]) is not None


def set_predictions(options, columns):
    if type(options) is Options:
        (<Options>options).predicted(columns)
        return
    given = all_of(options)
    write_all(PREDICTION, given, columns.each(0, len(given)))


def models_of(candidates):
    cdef dict found = {}
    last_model = last_family = found  # none that a candidate has
    for candidate in candidates:
        model, family = read(MODEL, candidate), read(FAMILY, candidate)
        if model is not last_model or family is not last_family:
            found[model] = family
            last_model, last_family = model, family
    return found


cdef enum:
    LOAD = 6  # values of a load


@cython.final
cdef class Loads:
    """A list of loads, each put together when it is read."""

    cdef PyObject **_values
    cdef Py_ssize_t _size

    def __cinit__(self, instances):
        cdef Py_ssize_t size = len(instances)
        cdef PyObject **to
        self._values = to = <PyObject **>PyMem_Malloc(max(size, 1) * LOAD * sizeof(PyObject *))
        if to == NULL:
            raise MemoryError
        for instance in instances:
            if self._size == size:
                raise ValueError("instances that become more")
            keep(read(IN_FLIGHT, instance), to)
            keep(read(AWAITING, instance), to + 1)
            keep(read(PENDING, instance), to + 2)
            keep(read(CONTEXT, instance), to + 3)
            keep(read(REPORT, instance), to + 4)
            keep(read(REPORTED_AT, instance), to + 5)
            to += LOAD
            self._size += 1

    def __dealloc__(self):
        cdef Py_ssize_t at
        for at in range(self._size * LOAD):
            Py_XDECREF(self._values[at])
        PyMem_Free(self._values)

    def __len__(self):
        return self._size

    def __getitem__(self, Py_ssize_t at):
        if not 0 <= at < self._size:
            raise IndexError("a load that is not there")
        cdef PyObject **of = self._values + at * LOAD
        return <object>of[0], <object>of[1], <object>of[2], <object>of[3], <object>of[4], <object>of[5]


cdef inline void keep(object value, PyObject **to) noexcept:
    Py_INCREF(value)
    to[0] = <PyObject *>value


def loads_of(options):
    return Loads(instances_of(options))


def doubtful(instances):
    cdef list found = []
    cdef Py_ssize_t at = 0
    for instance in instances:
        most = read(MOST, instance)
        if (
            not read(HEALTHY, instance) or read(DRAINING, instance) or read(EJECTED, instance)
            or read(RETURNED_AT, instance) is not None or (most is not None and read(IN_FLIGHT, instance) >= most)
            or read(AWAITING, instance) >= ENGINE_QUEUE
        ):
            found.append(at)
        at += 1
    return found


cdef inline object profile_of(option, instance):
    """The engine profile of an option's model at its instance; None if unknown."""
    cdef PyObject *found = PyDict_GetItemWithError(<dict?>read(PROFILES, instance), read(MODEL, read(CANDIDATE, option)))
    return None if found == NULL else <object>found


cdef double larger(double a, double b) noexcept:
    return b if b > a else a


cdef double prefill_s(profile, long prompt_tokens, long cached_tokens) except? -1.0:
    """`EngineProfile.prefill_s`"""
    cdef long most = read(BATCHED, profile), chunks = 1, rest = 0, tokens = prompt_tokens - cached_tokens
    cdef double floor_s = number(FLOOR_S, profile), token_s = number(TOKEN_S, profile), linear_s, pairs
    if tokens < most:
        linear_s = larger(floor_s, tokens * token_s)
    else:
        if most < 1:
            raise ZeroDivisionError("a step without tokens")
        chunks, rest = tokens // most, tokens % most
        linear_s = chunks * larger(floor_s, most * token_s)
        if rest:
            linear_s += larger(floor_s, rest * token_s)
            chunks += 1
    pairs = tokens * (cached_tokens + (tokens + 1) / 2.0)
    return chunks * number(OVERHEAD_S, profile) + linear_s + pairs * number(PAIR_S, profile) + tokens * number(EXTRA_S, profile)


def prefills_s(options, long prompt_tokens, cached_tokens=None):
    cdef Py_ssize_t at = 0
    cdef long tokens = prompt_tokens if prompt_tokens > 1 else 1, cached = 0, last_cached = 0
    cdef double seconds = 0.0
    cdef list all_cached = cached_tokens, found = []
    instances, profiles = instances_of(options), profiles_of(options)
    if all_cached is not None and len(all_cached) != len(instances):
        raise ValueError("columns of different lengths")
    last = None
    for instance in instances:
        if all_cached is not None:
            cached = <long>min(<double>all_cached[at], tokens - 1)
        profile = <object>PySequence_Fast_GET_ITEM(profiles, at)
        at += 1
        if profile is None:
            found.append(0.0)
            continue
        if profile is not last or cached != last_cached:
            last, last_cached, seconds = profile, cached, prefill_s(profile, tokens, cached)
        found.append(seconds / number(SPEED, instance))
    return found


def delays_s(options, output_tokens, long prompt_tokens, list prefills_s):
    cdef Py_ssize_t at = 0
    cdef double tokens, step_s
    cdef list all_tokens = output_tokens, found = []
    instances, profiles = instances_of(options), profiles_of(options)
    if len(all_tokens) != len(instances) or len(prefills_s) != len(instances):
        raise ValueError("columns of different lengths")
    for instance in instances:
        given, prefill, profile = all_tokens[at], <double>prefills_s[at], <object>PySequence_Fast_GET_ITEM(profiles, at)
        at += 1
        if profile is None or given is None:
            found.append(0.0)
            continue
        tokens = given
        step_s = number(SEQ_S, profile) + (prompt_tokens + tokens / 2.0) * number(KV_TOKEN_S, profile)
        found.append(number(RUNNING, instance) * (prefill + SHARED_STEPS * tokens * step_s / number(SPEED, instance)))
    return found


def later_s(options, list prefills_s, list ttfts_s, dict sent, double share):
    cdef Py_ssize_t at = 0
    cdef double prefill, prompts, busy
    cdef PyObject *known
    cdef list found = []
    candidates = candidates_of(options)
    if len(prefills_s) != len(candidates) or len(ttfts_s) != len(candidates):
        raise ValueError("columns of different lengths")
    for candidate in candidates:
        prefill, prompts, busy = prefills_s[at], 0.0, 0.0
        known = PyDict_GetItemWithError(sent, read(NAME, candidate))
        if known != NULL:
            prompts, busy = (<tuple?><object>known)[0], (<tuple?><object>known)[1]
        busy = busy * share
        prompts = prompts * share / (1.0 - (busy if busy < MOST_BUSY else MOST_BUSY))
        found.append(LATER * prompts * prefill * (larger(<double>ttfts_s[at], prefill) - prefill / 2.0))
        at += 1
    return found


def hourly_usd(options, list among):
    cdef Py_ssize_t at
    cdef list found = []
    instances = instances_of(options)
    cdef Py_ssize_t size = len(instances)
    for at in among:
        if not 0 <= at < size:
            raise IndexError("an option that is not there")
        price = read(HOURLY_USD, <object>PySequence_Fast_GET_ITEM(instances, at))
        if price is None:
            return None
        found.append(price)
    return found


def any_promised(options):
    for instance in instances_of(options):
        if read(PROMISED, instance):
            return True
    return False


def each_kind(options, among, costs_usd, kind_of):
    cdef Py_ssize_t at, place, size = len(among)
    cdef list places = among, costs = costs_usd, found = []
    cdef double last_speed = 0.0, speed
    if len(costs) != size:
        raise ValueError("columns of different lengths")
    instances, profiles = instances_of(options), profiles_of(options)
    cdef Py_ssize_t known = len(instances)
    last = last_cost = kind = None
    for at in range(size):
        place, cost = places[at], costs[at]
        if not 0 <= place < known:
            raise IndexError("an option that is not there")
        profile = <object>PySequence_Fast_GET_ITEM(profiles, place)
        speed = number(SPEED, <object>PySequence_Fast_GET_ITEM(instances, place))
        if profile is None or profile is not last or speed != last_speed or cost != last_cost:
            last, last_speed, last_cost = profile, speed, cost
            kind = kind_of(options[place], profile, cost)
        found.append(kind)
    return found
