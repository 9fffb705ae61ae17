"""Workloads as streams: what can be gone through again and again, always with the same requests.

A stage takes a stream and gives one, so that a million requests need no more memory than a few. What it has to know of the whole
is found by going through it once (`survey`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from backends.emulator.text import count_tokens
from benchmarks.measures import rate_between
from benchmarks.workloads.format import WorkloadRequest

Stream = Callable[[], Iterator[WorkloadRequest]]
Stage = Callable[[WorkloadRequest], WorkloadRequest]


@dataclass(slots=True)
class Survey:
    """What one pass over a stream finds. Lengths in tokens; where models differ a request counts with its mean."""

    requests: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    longest_output: int | None = None
    with_output: int = 0
    output_tokens: float = 0.0

    @property
    def rate_per_s(self) -> float | None:
        return rate_between(self.requests, self.first_s, self.last_s)

    @property
    def mean_output_tokens(self) -> float | None:
        return self.output_tokens / self.with_output if self.with_output else None


def survey(stream: Stream) -> Survey:
    seen = Survey()
    for request in stream():
        if not seen.requests:
            seen.first_s = request.arrival_s
        seen.requests += 1
        seen.last_s = request.arrival_s
        longest = request.longest_output_tokens()
        if longest is not None:
            tokens = request.output_tokens
            own = sum(tokens.values()) / len(tokens) if isinstance(tokens, Mapping) else longest
            seen.with_output += 1
            seen.output_tokens += own
            seen.longest_output = max(seen.longest_output or 0, longest)
    return seen


def each(stream: Stream, stage: Stage) -> Stream:
    return lambda: map(stage, stream())


def cut(stream: Stream, limit: int | None) -> Stream:
    return stream if limit is None else lambda: itertools.islice(stream(), limit)


def at(requests: Stream, times: Callable[[], Iterator[float]]) -> Stream:
    """The requests at these times, as many as there are of both."""
    return lambda: (
        replace(request, arrival_s=at_s) for request, at_s in zip(requests(), times(), strict=False)
    )


def faster(stream: Stream, factor: float) -> Stream:
    """All times divided by `factor`."""
    return each(stream, lambda request: replace(request, arrival_s=request.arrival_s / factor))


def with_lengths(stream: Stream, pool: Sequence[WorkloadRequest], *, prompts_too: bool) -> Stream:
    """Lengths of `pool`, in turn. Without `prompts_too` answers only, and prompts stay what they are."""

    def taken(request: WorkloadRequest, own: WorkloadRequest) -> WorkloadRequest:
        request = replace(request, output_tokens=own.output_tokens)
        if not prompts_too:
            return request
        return replace(request, prompt_tokens=own.prompt_tokens, prefix_hashes=None)

    return lambda: map(taken, stream(), itertools.cycle(pool))


def with_prompts(stream: Stream, pool: Sequence[WorkloadRequest], *, own_lengths: bool) -> Stream:
    """Texts of `pool` with their quality, in turn; with `own_lengths` their lengths too, as far as known. A text that comes
    again is numbered: two requests share no prefix by accident."""

    def worded(index: int, request: WorkloadRequest) -> WorkloadRequest:
        turn, place = divmod(index, len(pool))
        own = pool[place]
        text = f"[{turn + 1}] {own.prompt}" if turn else (own.prompt or "")
        request = replace(request, prompt=text, prefix_hashes=None, quality=own.quality)
        if not own_lengths:
            return request
        return replace(
            request,
            prompt_tokens=count_tokens(text),
            output_tokens=request.output_tokens if own.output_tokens is None else own.output_tokens,
        )

    return lambda: itertools.starmap(worded, enumerate(stream()))


def apart(stream: Stream, place: int, parts: int) -> Stream:
    """The stream as part `place` of `parts`: its prefix blocks are those of no other part."""

    def own(request: WorkloadRequest) -> WorkloadRequest:
        if request.prefix_hashes is None:
            return request
        return replace(request, prefix_hashes=tuple(block * parts + place for block in request.prefix_hashes))

    return each(stream, own)


def interleave(streams: Sequence[Stream]) -> Stream:
    """Several streams as one, in order of time, until the first of them ends: to its end all have their
    share. Ties go in the order of the streams."""

    def with_end(place: int, stream: Stream) -> Iterator[tuple[float, int, WorkloadRequest | None]]:
        at_s = -math.inf
        for request in stream():
            at_s = request.arrival_s
            yield at_s, place, request
        yield at_s, place, None

    def merged() -> Iterator[WorkloadRequest]:
        for _, _, request in heapq.merge(
            *itertools.starmap(with_end, enumerate(streams)), key=itemgetter(0, 1)
        ):
            if request is None:
                return
            yield request

    return merged
