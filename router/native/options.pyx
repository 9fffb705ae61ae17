# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, nonecheck=True, auto_pickle=False
"""The loops of `router.core.option_columns`, compiled. See there for what each computes."""

from router.core.interfaces import Option

from cpython.dict cimport PyDict_GetItemWithError
from cpython.ref cimport PyObject

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

SOURCE = HEADWAY_SOURCE.decode()

cdef double SHARED_STEPS = 0.5
cdef type OPTION = Option

cdef Field AWAITING = Field("awaiting_first_token"), CANDIDATE = Field("candidate"), CONTEXT = Field("context_tokens")
cdef Field FAMILY = Field("family"), HOURLY_USD = Field("usd_per_hour"), PROMISED = Field("promised_tpot_s")
cdef Field DRAINING = Field("draining"), EJECTED = Field("ejected_for"), HEALTHY = Field("healthy"), IN_FLIGHT = Field("in_flight")
cdef Field INSTANCE = Field("instance"), MODEL = Field("model"), MOST = Field("max_concurrency"), PENDING = Field("pending_prefill_tokens")
cdef Field PREDICTION = Field("prediction"), PROFILES = Field("profiles"), REPORT = Field("report"), REPORTED_AT = Field("reported_at")
cdef Field RETURNED_AT = Field("returned_at"), RUNNING = Field("running"), SPEED = Field("speed"), WAITING = Field("waiting")
cdef Field BATCHED = Field("max_batched_tokens"), EXTRA_S = Field("per_token_extra_s"), FLOOR_S = Field("floor_s"), KV_TOKEN_S = Field("per_kv_token_s")
cdef Field OVERHEAD_S = Field("overhead_s"), PAIR_S = Field("per_pair_s"), SEQ_S = Field("per_seq_s"), TOKEN_S = Field("per_token_s")


def parts_of(options):
    cdef list candidates = [], instances = []
    for option in options:
        candidates.append(read(CANDIDATE, option))
        instances.append(read(INSTANCE, option))
    return candidates, instances


def set_predictions(options, list predictions):
    write_all(PREDICTION, list(options), predictions)


def models_of(candidates):
    cdef dict found = {}
    last_model = last_family = found  # none that a candidate has
    for candidate in candidates:
        model, family = read(MODEL, candidate), read(FAMILY, candidate)
        if model is not last_model or family is not last_family:
            found[model] = family
            last_model, last_family = model, family
    return found


def loads_of(options):
    cdef list found = []
    for option in options:
        instance = read(INSTANCE, option)
        found.append((
            read(IN_FLIGHT, instance), read(AWAITING, instance), read(PENDING, instance), read(CONTEXT, instance),
            read(REPORT, instance), read(REPORTED_AT, instance),
        ))
    return found


def all_free(tuple members):
    cdef list found = []
    for member in members:
        instance = (<tuple?>member)[1]
        most = read(MOST, instance)
        if (
            not read(HEALTHY, instance) or read(DRAINING, instance) or read(EJECTED, instance)
            or read(RETURNED_AT, instance) is not None or (most is not None and read(IN_FLIGHT, instance) >= most)
            or read(WAITING, read(REPORT, instance))
        ):
            return None
    for member in members:
        option = PyType_GenericAlloc(OPTION, 0)
        write(CANDIDATE, option, (<tuple?>member)[0])
        write(INSTANCE, option, (<tuple?>member)[1])
        write(PREDICTION, option, None)
        found.append(option)
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
    if all_cached is not None and len(all_cached) != len(options):
        raise ValueError("columns of different lengths")
    last = None
    for option in options:
        if all_cached is not None:
            cached = <long>min(<double>all_cached[at], tokens - 1)
            at += 1
        instance = read(INSTANCE, option)
        profile = profile_of(option, instance)
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
    if len(all_tokens) != len(options) or len(prefills_s) != len(options):
        raise ValueError("columns of different lengths")
    for option in options:
        given, prefill = all_tokens[at], <double>prefills_s[at]
        at += 1
        instance = read(INSTANCE, option)
        profile = profile_of(option, instance)
        if profile is None or given is None:
            found.append(0.0)
            continue
        tokens = given
        step_s = number(SEQ_S, profile) + (prompt_tokens + tokens / 2.0) * number(KV_TOKEN_S, profile)
        found.append(number(RUNNING, instance) * (prefill + SHARED_STEPS * tokens * step_s / number(SPEED, instance)))
    return found


def hourly_usd(options, list among):
    cdef Py_ssize_t at
    cdef list found = []
    for at in among:
        price = read(HOURLY_USD, read(INSTANCE, options[at]))
        if price is None:
            return None
        found.append(price)
    return found


def any_promised(options):
    for option in options:
        if read(PROMISED, read(INSTANCE, option)):
            return True
    return False


def each_kind(options, among, costs_usd, kind_of):
    cdef Py_ssize_t at, place, size = len(among)
    cdef list places = among, costs = costs_usd, found = []
    cdef double last_speed = 0.0, speed
    if len(costs) != size:
        raise ValueError("columns of different lengths")
    last = last_cost = kind = None
    for at in range(size):
        place = places[at]
        option, cost = options[place], costs[at]
        instance = read(INSTANCE, option)
        profile, speed = profile_of(option, instance), number(SPEED, instance)
        if profile is None or profile is not last or speed != last_speed or cost != last_cost:
            last, last_speed, last_cost = profile, speed, cost
            kind = kind_of(option, profile, cost)
        found.append(kind)
    return found
