"""From a name and options to a workload: load, mix, slice, restrict, scale, add wishes. All from one seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.measures import mean_rate
from benchmarks.workloads.fetch import Loaded, load
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest
from benchmarks.workloads.mixes import Wishes
from benchmarks.workloads.restrict import Bounds, restrict
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.generators import PROCESSES, Lengths, Process, generate
from benchmarks.workloads.sources.source import Choices, Source
from benchmarks.workloads.text import text_tokens

#: Without a duration or a limit a generator stops here.
DEFAULT_REQUESTS = 1000
DEFAULT_RATE_PER_S = 1.0


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Everything that shapes a workload. Times in seconds of the trace's own clock, before any scaling."""

    seed: int = 0
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)  # by source name
    choices: Choices = Choices()
    rate_per_s: float | None = None
    rate_scale: float | None = None
    start_s: float = 0.0
    duration_s: float | None = None
    limit: int | None = None
    arrivals: str | None = None  # a process or a timed source
    cv: float = 4.0
    period_s: float = 86400.0
    depth: float = 0.6
    prompts: str | None = None  # a source with texts
    lengths: str | None = None  # a source whose lengths are taken
    generator_lengths: Lengths = Lengths()
    length_wins: Literal["workload", "prompts"] = "workload"
    bounds: Bounds = Bounds()
    max_tokens: int | Literal["auto", "exact"] = "auto"
    wishes: Wishes = Wishes()

    def __post_init__(self) -> None:
        for option, value in (
            ("--rate", self.rate_per_s),
            ("--rate-scale", self.rate_scale),
            ("--duration", self.duration_s),
            ("--limit", self.limit),
        ):
            if value is not None and not value > 0:
                raise WorkloadError(f"{option}: must be above 0")
        if self.start_s < 0:
            raise WorkloadError("--start: must be at least 0")
        if self.rate_per_s is not None and self.rate_scale is not None:
            raise WorkloadError("--rate and --rate-scale cannot both be given")
        if self.length_wins == "prompts" and self.prompts is None:
            raise WorkloadError("--length-wins prompts needs --prompts")


def build(
    name: str, options: BuildOptions, environment: Mapping[str, str]
) -> tuple[Header, list[WorkloadRequest]]:
    """The workload `name` (a source or a generator) under `options`."""
    return _Builder(name, options, environment).build()


class _Builder:
    """One build: loads sets at most once and gathers what the header tells."""

    def __init__(self, name: str, options: BuildOptions, environment: Mapping[str, str]) -> None:
        if name not in SOURCES and name not in PROCESSES:
            raise WorkloadError(
                f"unknown workload {name!r} (known: {', '.join([*SOURCES, *PROCESSES])})",
            )
        self._name = name
        self._options = options
        self._environment = environment
        self._loaded: dict[str, Loaded] = {}
        self._details: dict[str, Any] = {}
        unused = sorted(set(options.files) - {name, options.prompts, options.lengths, options.arrivals})
        if unused:
            raise WorkloadError(f"--file {unused[0]}=...: that set is not part of this workload")

    def build(self) -> tuple[Header, list[WorkloadRequest]]:
        options = self._options
        requests, timed = self._timed_requests()
        if options.lengths is not None:
            requests = self._with_lengths_of(options.lengths, requests)
        if options.prompts is not None:
            requests = self._with_prompts_of(options.prompts, requests)
        requests = list(restrict(requests, options.bounds))
        requests = requests[: options.limit]
        if not requests:
            raise WorkloadError(f"{self._name}: no request is left after the cuts")
        if timed:
            requests = self._at_rate(requests)
        requests = list(options.wishes.apply(self._with_max_tokens(requests), options.seed))
        return self._header(requests), requests

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

    def _timed_requests(self) -> tuple[list[WorkloadRequest], bool]:
        """The base requests with their arrival times; whether the times are a trace's (and may be scaled)."""
        options = self._options
        arrivals = options.arrivals
        if self._name in PROCESSES:
            if arrivals is not None:
                raise WorkloadError(
                    f"{self._name} is an arrival process itself; --arrivals does not go with it"
                )
            times = self._process_times(self._name, None)
            return _at(
                generate(self._name, len(times), options.generator_lengths, options.seed), times
            ), False
        source, loaded = self._source(self._name)
        if arrivals is None and source.timed:
            return self._slice(loaded.requests), True
        process = arrivals or "poisson"
        if process in PROCESSES:
            times = self._process_times(process, len(loaded.requests))
            return _at(self._shuffled(loaded.requests), times), False
        other, trace = self._source(process)
        if not other.timed:
            raise WorkloadError(f"--arrivals {process}: this set has no arrival times")
        times = [request.arrival_s for request in self._slice(trace.requests)]
        self._details["arrivals_from"] = process
        return _at(self._shuffled(loaded.requests), times), True

    def _shuffled(self, requests: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
        """A seeded order that depends on each request's id alone, so that a part of a set keeps its order."""
        draws = {
            request.id: random.Random(f"{self._options.seed}/order/{request.id}").random()
            for request in requests
        }
        return sorted(requests, key=lambda request: draws[request.id])

    def _process_times(self, name: str, most: int | None) -> list[float]:
        options = self._options
        rate = options.rate_per_s or DEFAULT_RATE_PER_S * (options.rate_scale or 1.0)
        process = Process(name, rate, options.cv, options.period_s, options.depth)
        self._details["arrivals"] = process.told()
        if most is None and options.duration_s is None:
            # Length bounds may drop some of them; they are drawn before the limit is applied.
            most = options.limit or DEFAULT_REQUESTS
        end_s = None if options.duration_s is None else options.start_s + options.duration_s
        times: list[float] = []
        for at_s in process.times(options.seed):
            if (end_s is not None and at_s >= end_s) or (most is not None and len(times) >= most):
                break
            if at_s >= options.start_s:
                times.append(at_s - options.start_s)
        if not times:
            raise WorkloadError(f"{self._name}: no arrival in that window at {rate:g} requests/s")
        return times

    def _slice(self, requests: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
        start_s, duration_s = self._options.start_s, self._options.duration_s
        end_s = float("inf") if duration_s is None else start_s + duration_s
        inside = [
            replace(request, arrival_s=request.arrival_s - start_s)
            for request in requests
            if start_s <= request.arrival_s < end_s
        ]
        if not inside:
            raise WorkloadError(
                f"{self._name}: nothing arrives in the window from {start_s:g} s"
                f" (the trace ends at {requests[-1].arrival_s:g} s)"
            )
        return inside

    def _with_lengths_of(self, name: str, requests: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
        _, loaded = self._source(name)
        pool = self._shuffled(loaded.requests)
        self._details["lengths_from"] = name
        return [
            replace(
                request,
                prompt_tokens=own.prompt_tokens,
                output_tokens=own.output_tokens,
                prefix_hashes=None,
            )
            for request, own in zip(requests, itertools.cycle(pool), strict=False)
        ]

    def _with_prompts_of(self, name: str, requests: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
        source, loaded = self._source(name)
        if not source.texts:
            raise WorkloadError(f"--prompts {name}: this set has no texts")
        pool = self._shuffled(loaded.requests)
        self._details["prompts_from"] = name
        mixed = []
        for index, request in enumerate(requests):
            turn, place = divmod(index, len(pool))
            own = pool[place]
            # A text that comes again is numbered: two requests share no prefix by accident.
            text = f"[{turn + 1}] {own.prompt}" if turn else (own.prompt or "")
            request = replace(request, prompt=text, prefix_hashes=None, quality=own.quality)  # noqa: PLW2901 (the item, changed)
            if self._options.length_wins == "prompts":
                request = replace(  # noqa: PLW2901 (the item, changed)
                    request, prompt_tokens=text_tokens(text), output_tokens=own.output_tokens
                )
            mixed.append(request)
        return mixed

    def _at_rate(self, requests: list[WorkloadRequest]) -> list[WorkloadRequest]:
        factor = self._options.rate_scale
        if self._options.rate_per_s is not None:
            own = mean_rate([request.arrival_s for request in requests])
            if own is None:
                raise WorkloadError("--rate needs at least two different arrival times")
            factor = self._options.rate_per_s / own
        if factor is None:
            return requests
        self._details["time_divided_by"] = round(factor, 9)
        return [replace(request, arrival_s=request.arrival_s / factor) for request in requests]

    def _with_max_tokens(self, requests: Iterable[WorkloadRequest]) -> list[WorkloadRequest]:
        """`max_tokens` of each request. One value for all by default: a client does not know how long its
        answer will be, and a router that is told would have an easy life."""
        requests = list(requests)
        choice, bound = self._options.max_tokens, self._options.bounds.max_output_tokens
        if choice == "exact":
            self._details["max_tokens"] = "each request's own output_tokens"
            return [replace(request, max_tokens=request.longest_output_tokens()) for request in requests]
        if choice == "auto":
            longest = max((request.longest_output_tokens() or 0 for request in requests), default=0)
            value = bound or (max(16, 1 << (longest - 1).bit_length()) if longest else None)
        else:
            value = min(choice, bound) if bound else choice
        self._details["max_tokens"] = value
        return [replace(request, max_tokens=value) for request in requests]

    def _header(self, requests: Sequence[WorkloadRequest]) -> Header:
        options = self._options
        sliced = {
            "start_s": options.start_s or None,
            "duration_s": options.duration_s,
            "limit": options.limit,
        }
        cuts = {
            **options.bounds.told(),
            **{name: value for name, value in sliced.items() if value is not None},
        }
        names = [self._name, *(name for name in self._loaded if name != self._name)]
        licences = {name: SOURCES[name].licence for name in names if name in SOURCES}
        files = {
            name: {"route": loaded.route, "sha256": dict(loaded.sha256)}
            for name, loaded in self._loaded.items()
        }
        models = {
            name: {
                ours: list(theirs)
                for ours, theirs in (options.choices.models or SOURCES[name].models).items()
            }
            for name in self._lengths_of()
            if name in SOURCES and SOURCES[name].models
        }
        if self._name in PROCESSES and options.lengths is None:
            lengths = options.generator_lengths
            self._details["lengths"] = {
                "distribution": "log-normal",
                "prompt_median": lengths.prompt_median,
                "prompt_sigma": lengths.prompt_sigma,
                "output_median": lengths.output_median,
                "output_sigma": lengths.output_sigma,
            }
        return Header(
            source=" + ".join(names),
            licence="; ".join(f"{name}: {licence}" for name, licence in licences.items()) or None,
            seed=options.seed,
            requests=len(requests),
            cuts=cuts,
            length_wins=self._length_wins(),
            details={
                **self._details,
                **({"files": files} if files else {}),
                **({"output_tokens_of_models": models} if models else {}),
                **options.wishes.told(),
            },
        )

    def _lengths_of(self) -> tuple[str, ...]:
        """The sets that answer lengths come from."""
        options = self._options
        if options.prompts is not None and options.length_wins == "prompts":
            return (options.prompts,)
        return (options.lengths or self._name,)

    def _length_wins(self) -> str | None:
        options = self._options
        if options.prompts is None:
            return (
                None if options.lengths is None else f"{options.lengths}: prompts are made up to its lengths"
            )
        if options.length_wins == "prompts":
            return f"{options.prompts}: its own prompt and answer lengths are kept"
        return f"{options.lengths or self._name}: prompts of {options.prompts} are lengthened or cut to prompt_tokens"


def _at(requests: Sequence[WorkloadRequest], times: Sequence[float]) -> list[WorkloadRequest]:
    """The requests at these times, as many as there are of both."""
    return [replace(request, arrival_s=at_s) for request, at_s in zip(requests, times, strict=False)]
