"""From a name and options to a workload: load, mix, slice, restrict, scale, add routing parameters. All from one seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from benchmarks.workloads import streams
from benchmarks.workloads.clients import ClientPool
from benchmarks.workloads.fetch import Loaded, load
from benchmarks.workloads.format import MOST_TOKENS, Header, WorkloadError, WorkloadRequest
from benchmarks.workloads.options import BuildOptions, header
from benchmarks.workloads.restrict import restrict
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.generators import PROCESSES, Process, conversations, generate
from benchmarks.workloads.sources.source import Choices, Source
from benchmarks.workloads.streams import Stream, Survey, survey

#: Without a duration or a limit a generator stops here.
DEFAULT_REQUESTS = 1000
DEFAULT_RATE_PER_S = 1.0
#: More than this is drawn from a trace's aggregates or a process only when a limit is given; and before a process's start.
MOST_DRAWN = 5_000_000


class NoArrival(WorkloadError):
    """A generator has no request in the time that was asked for."""


def build(
    name: str, options: BuildOptions, environment: Mapping[str, str]
) -> tuple[Header, list[WorkloadRequest]]:
    """The workload `name` (a source or a generator) under `options`, all of it in memory."""
    header, stream = plan(name, options, environment)
    return header, list(stream())


def plan(name: str, options: BuildOptions, environment: Mapping[str, str]) -> tuple[Header, Stream]:
    """The workload `name` under `options`, as a stream. Sets are read, requests are not kept."""
    return _Builder(name, options, environment).workload()


class _Builder:
    """One build: loads sets at most once and gathers the header's details."""

    def __init__(self, name: str, options: BuildOptions, environment: Mapping[str, str]) -> None:
        self._name = name
        self._options = options
        self._environment = environment
        self._loaded: dict[str, Loaded] = {}
        self._details: dict[str, Any] = {}
        for part in (name, *options.mix):
            if part not in SOURCES and part not in PROCESSES:
                raise WorkloadError(f"unknown workload {part!r} (known: {', '.join([*SOURCES, *PROCESSES])})")
        texts = options.prompts or name
        self._own_texts = texts in SOURCES and SOURCES[texts].texts
        if options.length_wins == "prompts" and not (
            options.prompts or (self._own_texts and options.lengths)
        ):
            raise WorkloadError("--length-wins prompts needs --prompts (or a set of texts with --lengths)")
        used = {name, options.prompts, options.lengths, options.arrivals, *options.mix}
        unused = sorted(set(options.files) - used)
        if unused:
            raise WorkloadError(f"--file {unused[0]}=...: that set is not part of this workload")
        self._check_effects()

    def _check_effects(self) -> None:
        """Raises WorkloadError for an option that changes nothing of this workload."""
        options, usual = self._options, BuildOptions()
        parts = {self._name, *options.mix}
        timed, texts = parts | {options.arrivals}, parts | {options.prompts, options.lengths}
        generated = not parts.isdisjoint(PROCESSES)
        answered = [name for name, source in SOURCES.items() if source.models]
        answers = not texts.isdisjoint(answered), f"a set with answers of models ({', '.join(answered)})"
        for option, given, (used, needed) in (
            ("--cv", options.cv != usual.cv, ("gamma" in timed, "gamma arrivals")),
            ("--period", options.period_s != usual.period_s, ("daycycle" in timed, "daycycle arrivals")),
            ("--depth", options.depth != usual.depth, ("daycycle" in timed, "daycycle arrivals")),
            ("--turns", options.turns != usual.turns, (generated, "a generator")),
            ("--models", options.choices.models is not None, answers),
            ("--native-lengths", options.choices.native_lengths, answers),
            ("--quality", options.choices.quality, answers),
            ("--complete", options.choices.complete, answers),
        ):
            if given and not used:
                raise WorkloadError(f"{option}: needs {needed}")

    def workload(self) -> tuple[Header, Stream]:
        stream = self._mixed() if self._options.mix else self._alone()
        seen = survey(stream)
        if not seen.requests:
            raise WorkloadError(f"{self._name}: no request is left after the cuts")
        stream = self._with_max_tokens(stream, seen)
        routing, seed, mean = self._options.routing, self._options.seed, seen.mean_output_tokens
        built = header(self._name, self._options, self._loaded, self._details, seen.requests)
        return built, lambda: routing.apply(stream(), seed, mean)

    # --- one workload, or several as one ------------------------------------------------------------------
    def _alone(self) -> Stream:
        options = self._options
        stream, scalable = self._base(options.rate_per_s or DEFAULT_RATE_PER_S * (options.rate_scale or 1.0))
        stream = streams.cut(self._restricted(stream), options.limit)
        factor = options.rate_scale
        if scalable and options.rate_per_s is not None:
            factor = options.rate_per_s / self._own_rate(stream, self._name)
        if not scalable or factor is None:
            return stream
        self._details["time_divided_by"] = round(factor, 9)
        return streams.faster(stream, factor)

    def _mixed(self) -> Stream:
        """The base and the further workloads, each at its share of the whole rate and with its own arrivals."""
        options = self._options
        shares = self._shares()
        whole = options.rate_per_s
        if whole is None:
            whole = self._base_rate() * (options.rate_scale or 1.0) / shares[self._name]
        parts: list[Stream] = []
        for place, (name, share) in enumerate(shares.items()):
            rate = whole * share
            stream, scalable = self._base(rate) if name == self._name else self._further(name, rate)
            stream = self._restricted(stream)
            if scalable:
                stream = streams.faster(stream, rate / self._own_rate(stream, name))
            parts.append(streams.apart(stream, place, len(shares)))
        self._details["mix"] = {
            name: {"share": share, "rate_per_s": whole * share} for name, share in shares.items()
        }
        return streams.cut(streams.interleave(parts), options.limit)

    def _shares(self) -> dict[str, float]:
        """The base first; it has what the others leave where it is not named itself."""
        mix = {name: share for name, share in self._options.mix.items() if share > 0}
        rest = 1 - sum(share for name, share in mix.items() if name != self._name)
        own = mix.get(self._name, rest)
        if not (own > 0 and abs(rest - own) < 1e-6):
            raise WorkloadError(f"--mix: the shares and that of {self._name} must add up to 1")
        return {self._name: own, **{name: share for name, share in mix.items() if name != self._name}}

    def _base_rate(self) -> float:
        """The rate that the base has by itself, with the default one for what has no times."""
        timed = self._options.arrivals or self._name
        if timed not in SOURCES or not SOURCES[timed].timed:
            return DEFAULT_RATE_PER_S
        _, loaded = self._source(timed)
        if loaded.traffic is not None:
            return loaded.traffic.mean_rate_per_s(*self._span(loaded.traffic))
        return self._own_rate(self._restricted(self._base(DEFAULT_RATE_PER_S)[0]), self._name)

    # --- parts --------------------------------------------------------------------------------------------
    def _base(self, rate_per_s: float) -> tuple[Stream, bool]:
        """The base with its texts and lengths; whether its times are still to be scaled to the rate. Only a
        trace's are: what is drawn is drawn at the rate."""
        stream, scalable = self._timed(rate_per_s)
        if self._options.lengths is not None:
            stream = self._with_lengths_of(self._options.lengths, stream)
        if self._options.prompts is not None:
            stream = self._with_prompts_of(self._options.prompts, stream)
        return stream, scalable

    def _timed(self, rate_per_s: float) -> tuple[Stream, bool]:
        options, name = self._options, self._name
        arrivals = options.arrivals
        if name in PROCESSES:
            if arrivals is not None:
                raise WorkloadError(f"{name} is an arrival process itself: leave out --arrivals")
            most = None
            if options.duration_s is None and not (options.mix and options.limit):
                # Length bounds may drop some of them; they are drawn before the limit is applied.
                most = options.limit or DEFAULT_REQUESTS
            times = self._process_times(name, rate_per_s, most, options.seed)
            return streams.at(self._generated(name, options.seed), times), False
        source, loaded = self._source(name)
        if arrivals is None and source.timed:
            if loaded.traffic is not None:
                return self._drawn(name, loaded.traffic, rate_per_s), False
            return self._sliced(loaded.requests), True
        if loaded.traffic is not None:
            raise WorkloadError(f"--arrivals: requests of {name} are drawn with their times")
        requests = self._shuffled(loaded.requests, options.seed)
        process = arrivals or "poisson"
        if process in PROCESSES:
            times = self._process_times(process, rate_per_s, len(requests), options.seed)
            return streams.at(lambda: iter(requests), times), False
        other, trace = self._source(process)
        if not other.timed:
            raise WorkloadError(f"--arrivals {process}: this set has no arrival times")
        self._details["arrivals_from"] = process
        if trace.traffic is not None:
            timed = self._drawn(process, trace.traffic, rate_per_s)
        else:
            timed = self._sliced(trace.requests)
        of_trace = streams.at(lambda: iter(requests), lambda: (each.arrival_s for each in timed()))
        return of_trace, trace.traffic is None

    def _further(self, name: str, rate_per_s: float) -> tuple[Stream, bool]:
        """A part of a mix that is not the base: from its beginning, with its own lengths and arrivals (a set
        without times: Poisson)."""
        # Parts of a mix draw independently of each other.
        digest = blake2b(f"{self._options.seed}/mix/{name}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "big")
        if name in PROCESSES:
            times = self._times(Process(name, rate_per_s, *self._shape()), seed, 0.0, float("inf"), None)
            return streams.at(self._generated(name, seed), times), False
        source, loaded = self._source(name)
        traffic = loaded.traffic
        if traffic is not None:
            factor = rate_per_s / traffic.mean_rate_per_s(0.0, traffic.end_s)
            return lambda: traffic.draw(seed, 0.0, traffic.end_s, factor), False
        if source.timed:
            return lambda: iter(loaded.requests), True
        requests = self._shuffled(loaded.requests, seed)
        times = self._times(Process("poisson", rate_per_s), seed, 0.0, float("inf"), len(requests))
        return streams.at(lambda: iter(requests), times), False

    def _source(self, name: str) -> tuple[Source, Loaded]:
        source = SOURCES.get(name)
        if source is None:
            raise WorkloadError(f"unknown set {name!r} (known: {', '.join(SOURCES)})")
        if name not in self._loaded:
            files = self._options.files.get(name, ())
            # The choice of models is the prompt set's; a set without models heeds none of it.
            choices = self._options.choices if source.models else Choices()
            self._loaded[name] = load(source, files, choices, self._environment)
        return source, self._loaded[name]

    def _generated(self, name: str, seed: int) -> Stream:
        lengths, turns = self._options.generator_lengths, self._options.turns
        if turns <= 1:
            return lambda: generate(name, lengths, seed)
        self._details["turns"] = turns
        return lambda: conversations(generate(name, lengths, seed), turns, seed)

    def _shuffled(self, requests: Sequence[WorkloadRequest], seed: int) -> list[WorkloadRequest]:
        """A seeded order that depends on each request's id alone, so that a part of a set keeps its order."""
        draws = {request.id: random.Random(f"{seed}/order/{request.id}").random() for request in requests}
        return sorted(requests, key=lambda request: draws[request.id])

    # --- times --------------------------------------------------------------------------------------------
    def _shape(self) -> tuple[float, float, float]:
        return self._options.cv, self._options.period_s, self._options.depth

    def _process_times(
        self, name: str, rate_per_s: float, most: int | None, seed: int
    ) -> Callable[[], Iterator[float]]:
        process = Process(name, rate_per_s, *self._shape())
        self._details["arrivals"] = process.as_dict()
        start_s, end_s = self._options.start_s, self._options.end_s
        for option, arrivals in (
            ("--start", rate_per_s * start_s),
            (
                "--duration",
                rate_per_s * (end_s - start_s) if most is None and not self._options.limit else 0.0,
            ),
        ):
            if arrivals > MOST_DRAWN:
                raise WorkloadError(
                    f"{option}: about {arrivals:,.0f} requests of {name} arrive in this time; at most {MOST_DRAWN:,}"
                    " are drawn for it"
                )
        return self._times(process, seed, start_s, end_s, most)

    def _times(
        self, process: Process, seed: int, start_s: float, end_s: float, most: int | None
    ) -> Callable[[], Iterator[float]]:
        def times() -> Iterator[float]:
            begun = itertools.dropwhile(lambda at_s: at_s < start_s, process.times(seed))
            inside = itertools.takewhile(lambda at_s: at_s < end_s, begun)
            at_s = None
            for at_s in itertools.islice(inside, most):
                yield at_s - start_s
            if at_s is None:
                raise NoArrival(
                    f"{self._name}: no arrival in that window at {process.rate_per_s:g} requests/s"
                )

        return times

    def _sliced(self, requests: Sequence[WorkloadRequest]) -> Stream:
        start_s, end_s = self._options.start_s, self._options.end_s
        inside = [request for request in requests if start_s <= request.arrival_s < end_s]
        if not inside:
            raise WorkloadError(
                f"{self._name}: nothing arrives in the window from {start_s:g} s"
                f" (the trace ends at {requests[-1].arrival_s:g} s)"
            )
        return lambda: (replace(request, arrival_s=request.arrival_s - start_s) for request in inside)

    def _span(self, traffic: ClientPool) -> tuple[float, float]:
        return self._options.start_s, min(self._options.end_s, traffic.end_s)

    def _drawn(self, name: str, traffic: ClientPool, rate_per_s: float) -> Stream:
        """Requests drawn from aggregates, at the requested rate, else at the published one."""
        options = self._options
        start_s, end_s = self._span(traffic)
        published = traffic.mean_rate_per_s(start_s, end_s)
        if not published > 0:
            raise WorkloadError(
                f"{name}: nothing arrives in the window from {start_s:g} s (the trace ends at {traffic.end_s:g} s)"
            )
        if options.rate_per_s is not None or options.mix:
            factor = rate_per_s / published
        else:
            factor = options.rate_scale or 1.0
        expected = published * factor * (end_s - start_s)
        if options.limit is None and expected > MOST_DRAWN:
            raise WorkloadError(
                f"{name}: about {expected:,.0f} requests; give --rate, --rate-scale, --duration or --limit"
            )
        self._details["rates_multiplied_by"] = factor
        self._details["published_rate_per_s"] = published
        return lambda: traffic.draw(options.seed, start_s, end_s, factor)

    def _own_rate(self, stream: Stream, name: str) -> float:
        rate = survey(stream).rate_per_s
        if rate is None:
            option = "--mix" if self._options.rate_per_s is None else "--rate"
            raise WorkloadError(f"{name}: {option} needs at least two different arrival times")
        return rate

    # --- texts and lengths --------------------------------------------------------------------------------
    def _with_lengths_of(self, name: str, stream: Stream) -> Stream:
        _, loaded = self._source(name)
        if loaded.traffic is not None:
            raise WorkloadError(f"--lengths {name}: its lengths are drawn with its arrivals")
        self._details["lengths_from"] = name
        pool = self._shuffled(loaded.requests, self._options.seed)
        prompts_too = self._options.length_wins == "workload" or self._options.prompts is not None
        return streams.with_lengths(stream, pool, prompts_too=prompts_too)

    def _with_prompts_of(self, name: str, stream: Stream) -> Stream:
        source, loaded = self._source(name)
        if not source.texts:
            raise WorkloadError(f"--prompts {name}: this set has no texts")
        self._details["prompts_from"] = name
        pool = self._shuffled(loaded.requests, self._options.seed)
        return streams.with_prompts(stream, pool, own_lengths=self._options.length_wins == "prompts")

    def _restricted(self, stream: Stream) -> Stream:
        return lambda: restrict(stream(), self._options.bounds)

    def _with_max_tokens(self, stream: Stream, seen: Survey) -> Stream:
        """`max_tokens` of each request. One value for all by default: a client does not know how long its
        answer will be, and a router that knows it would have an easy life."""
        choice, bound = self._options.max_tokens, self._options.bounds.max_output_tokens
        if choice == "exact":
            self._details["max_tokens"] = "each request's own output_tokens"
            return streams.each(
                stream, lambda request: replace(request, max_tokens=request.longest_output_tokens())
            )
        value: int | None
        if choice == "auto":
            longest = seen.longest_output
            value = bound or (min(MOST_TOKENS, max(16, 1 << (longest - 1).bit_length())) if longest else None)
        else:
            value = min(choice, bound) if bound else choice
        self._details["max_tokens"] = value
        return streams.each(stream, lambda request: replace(request, max_tokens=value))
