"""The requests that a plan is to serve: a recorded workload, or rates from a generator, drawn by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from typing import ClassVar

from benchmarks.compare.resample import Resampler
from benchmarks.workloads.build import MOST_DRAWN, NoArrival, build
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, read, read_header
from benchmarks.workloads.mixes import parse_amounts
from benchmarks.workloads.options import BuildOptions
from router.config.fields import LARGEST_FLOAT

#: Requests of a draw: more of them make a narrower interval and a slower search.
REQUESTS = 2000
#: A draw lasts so long at least, in seconds: what comes in less time may be over before a fleet that is too small is full.
LEAST_S = 30.0


@dataclass(frozen=True)
class RecordedDemand:
    """A workload file's requests: all seeds are draws of one recording, 0 is the recording itself."""

    recorded: ClassVar = True
    header: Header
    trace: Sequence[WorkloadRequest]

    @classmethod
    def read(cls, path: Path, limit: int | None, least_s: float = LEAST_S) -> RecordedDemand:
        """The first `limit` requests of a file; None: `REQUESTS`, and all that come within `least_s`. Raises WorkloadError."""
        header, requests = read_header(path), read(path)
        trace = list(islice(requests, limit or REQUESTS))
        if not trace:
            raise WorkloadError(f"{path}: no requests in it")
        if limit is None:
            end_s = trace[0].arrival_s + least_s
            trace += takewhile(lambda each: each.arrival_s < end_s, requests)
        return cls(header, trace)

    def requests(self, seed: int) -> Sequence[WorkloadRequest]:
        """Raises WorkloadError if all of them arrive at once."""
        return list(Resampler([each.arrival_s for each in self.trace]).requests(self.trace, seed))


@dataclass(frozen=True)
class GeneratedDemand:
    """A stream for each model, at its rate in requests/s. `options` has what the streams have in common; they last as
    long as `limit` of all streams together take on average (None: `REQUESTS` of them, and `least_s` at least)."""

    recorded: ClassVar = False
    rates_per_s: Mapping[str, float]
    process: str
    options: BuildOptions
    limit: int | None = None
    least_s: float = LEAST_S

    @property
    def header(self) -> Header:
        return Header(
            source=f"{self.process} streams",
            details={
                "rates_per_s": dict(self.rates_per_s),
                "lengths": self.options.generator_lengths.as_dict(),
            },
        )

    def requests(self, seed: int) -> Sequence[WorkloadRequest]:
        """Raises WorkloadError if no stream has one."""
        if self.limit is not None and self.limit > MOST_DRAWN:
            raise WorkloadError(f"--limit: at most {MOST_DRAWN:,} requests are drawn (given: {self.limit:,})")
        rate_per_s = sum(self.rates_per_s.values())
        if not 1 / LARGEST_FLOAT <= rate_per_s <= LARGEST_FLOAT:
            raise WorkloadError(f"--rates: nothing can be planned for {rate_per_s:g} requests/s")
        duration_s = (self.limit or REQUESTS) / rate_per_s
        if self.limit is None:
            duration_s = max(duration_s, self.least_s)
        found: list[WorkloadRequest] = []
        for model, rate_per_s in self.rates_per_s.items():
            options = replace(
                self.options,
                seed=Random(f"{seed}/{model}").randrange(1 << 31),
                rate_per_s=rate_per_s,
                duration_s=duration_s,
            )
            try:
                _, stream = build(self.process, options, {})
            except NoArrival:  # a model of a low rate
                continue
            found += [replace(each, id=f"{model}/{each.id}").with_routing(models=[model]) for each in stream]
        if not found:
            raise WorkloadError("--rates: a draw has no request: give a larger --limit")
        return sorted(found, key=lambda each: (each.arrival_s, each.id))


#: Requests by seed.
Demand = RecordedDemand | GeneratedDemand


def rates(text: str, models: Sequence[str]) -> dict[str, float]:
    """`llama-3.1-8b=4,qwen2.5-7b=2` as requests/s by model. Raises WorkloadError."""
    found = parse_amounts(text, "--rates")
    for model, rate_per_s in found.items():
        if model not in models:
            raise WorkloadError(f"--rates: unknown model {model!r} (known: {', '.join(models)})")
        if rate_per_s <= 0:
            raise WorkloadError(f"--rates: {model}={rate_per_s:g} is not above 0")
    return found
