"""The draws of a workload, one for each seed, as files that every process can read: seed 0 is a recorded trace as it is, other
seeds resample it. All is read and checked against the fleet before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.compare.resample import Resampler
from benchmarks.measures import rate_between
from benchmarks.scenarios import Scenario
from benchmarks.simulator import Fleet, check
from benchmarks.workloads.describe import Description, passing
from benchmarks.workloads.fetch import checksum
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest, read, read_header, write

#: The longest time of one run. In simulation instances are probed every few seconds of it.
MOST_DAYS = 366


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """The model that all requests of a comparison name, and the SLO (ms) of those without one."""

    model: str
    slo: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Draw:
    """One seed's workload as a file of which the first `requests` count. Its times are its own, before
    scaling: those of the first and the last request. `resampled`: it was drawn from a recorded trace."""

    seed: int
    file: Path
    requests: int
    first_s: float
    last_s: float
    resampled: bool = False

    @property
    def rate_per_s(self) -> float | None:
        return rate_between(self.requests, self.first_s, self.last_s)


@dataclass(frozen=True, slots=True)
class Draws:
    """All draws, with the first one's header and description. `made_of` identifies the workload."""

    header: Header
    described: Mapping[str, Any]
    each: tuple[Draw, ...]
    made_of: Mapping[str, Any]


def from_file(
    path: Path, fleet: Fleet, defaults: RequestDefaults, seeds: Sequence[int], limit: int | None, out: Path
) -> Draws:
    """The draws of the first `limit` requests of a workload file. Those that are resampled are kept in
    `OUT/workloads`, so `fleet` and `defaults` must be those of the runs. Raises WorkloadError naming the line."""
    header = read_header(path)
    number = 0

    def counted() -> Iterator[WorkloadRequest]:
        nonlocal number
        for request in islice(read(path), limit):
            number += 1
            yield request

    try:
        description = _checked(counted(), fleet, defaults)
    except WorkloadError as error:
        message = str(error)
        if message.startswith(f"{path}, line "):
            raise
        raise WorkloadError(f"{path}{_line_of(path, number)}: {message}") from None
    made_of = {"sha256": checksum(path), "limit": limit}
    resampler = Resampler(description.arrivals_s) if any(seeds) else None
    draws = []
    for seed in seeds:
        if resampler is None or seed == 0:
            times_s = description.arrivals_s
            draws.append(Draw(0, path, len(times_s), times_s[0], times_s[-1]))
        else:
            drawn = resampler.requests(islice(read(path, check_ids=False), limit), seed)
            draws.append(kept(out, seed, header, drawn, resampled=True))
    return Draws(header, description.as_dict(), tuple(draws), made_of)


def from_scenario(
    scenario: Scenario,
    fleet: Fleet,
    defaults: RequestDefaults,
    seeds: Sequence[int],
    out: Path,
    environment: Mapping[str, str],
) -> Draws:
    """The draws of a scenario, kept in `OUT/workloads`: built anew for each seed (prompts, routing parameters,
    generators), and a recorded trace resampled too."""
    draws: list[Draw] = []
    described: list[tuple[Header, Description]] = []
    for seed in seeds:
        try:
            header, requests = scenario.requests(seed, environment)
            recorded = "files" in header.details
            if recorded:
                requests = list(Resampler([each.arrival_s for each in requests]).requests(requests, seed))
            description = _checked(requests, fleet, defaults)
        except WorkloadError as error:
            raise WorkloadError(f"scenario {scenario.name}: {error}") from None
        described.append((header, description))
        draws.append(kept(out, seed, header, requests, resampled=recorded and seed != 0))
    header, description = described[0]
    made_of = {**scenario.made_of(), "files": header.details.get("files")}
    return Draws(header, description.as_dict(), tuple(draws), made_of)


def check_span(what: str, span_s: float) -> None:
    """Raises WorkloadError, which begins with `what`, for requests that arrive over more than MOST_DAYS."""
    if span_s > MOST_DAYS * 86400:
        raise WorkloadError(
            f"{what}: the requests arrive over {span_s / 86400:,.0f} days; at most {MOST_DAYS} are possible"
        )


def _checked(requests: Iterable[WorkloadRequest], fleet: Fleet, defaults: RequestDefaults) -> Description:
    """Check all requests against the fleet, and describe them on the way."""
    description = Description()
    check(passing(requests, description), fleet, model=defaults.model, slo=defaults.slo)
    return description


def _line_of(path: Path, number: int) -> str:
    """`, line N` of a workload's request; empty without requests."""
    if number == 0:
        return ""
    with path.open("rb") as lines:
        filled = (line for line, text in enumerate(lines, start=1) if text.strip())
        # The header is the first of them.
        return f", line {next(islice(filled, number, None))}"


def kept(
    out: Path, seed: int, header: Header, requests: Iterable[WorkloadRequest], *, resampled: bool
) -> Draw:
    """Write a draw to `OUT/workloads`."""
    path = out / "workloads" / f"{seed}.jsonl"
    first_s, last_s = 0.0, 0.0

    def watched() -> Iterator[WorkloadRequest]:
        nonlocal first_s, last_s
        for number, request in enumerate(requests):
            last_s = round(request.arrival_s, 6)  # as it is written
            if number == 0:
                first_s = last_s
            yield request

    count = write(path, replace(header, seed=seed, requests=None), watched())
    return Draw(seed, path, count, first_s, last_s, resampled)
