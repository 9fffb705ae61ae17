"""Other draws of a recorded workload, so that a comparison over seeds has confidence intervals.

A block bootstrap (Künsch 1989): blocks of equal length in time are drawn with replacement and put one after another in the
trace's own order. Bursts and rhythms shorter than a block stay, and so does the trend. A block drawn twice brings its own
prefixes and sessions.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from random import Random

from benchmarks.measures import mean_rate
from benchmarks.workloads.format import WorkloadError, WorkloadRequest

BLOCKS = 20


class Resampler:
    """The blocks of one trace, whose arrival times are `arrivals_s`, rising."""

    def __init__(self, arrivals_s: Sequence[float], blocks: int = BLOCKS) -> None:
        """Raises WorkloadError if all requests arrive at once: there is nothing to cut."""
        if mean_rate(arrivals_s) is None:
            raise WorkloadError("further draws need a workload with at least two different arrival times")
        start_s = arrivals_s[0]
        self._length_s = (arrivals_s[-1] - start_s) / blocks
        cuts = [bisect_left(arrivals_s, start_s + at * self._length_s) for at in range(1, blocks)]
        #: Requests by block; the last request stands at the end of the last block and belongs to it.
        self.sizes = [end - begin for begin, end in itertools.pairwise((0, *cuts, len(arrivals_s)))]

    def draw(self, seed: int) -> list[int]:
        """How often each block stands in the draw of `seed`. A draw with less than two blocks that are not
        empty has no rate and is drawn anew."""
        for attempt in itertools.count():
            random = Random(f"{seed}/blocks/{attempt}")
            counted = Counter(random.randrange(len(self.sizes)) for _ in self.sizes)
            drawn = [counted[block] for block in range(len(self.sizes))]
            if sum(times for times, size in zip(drawn, self.sizes, strict=True) if size) > 1:
                break
        return drawn

    def put_together(
        self, requests: Iterable[WorkloadRequest], drawn: Sequence[int]
    ) -> Iterator[WorkloadRequest]:
        """A draw of the trace's `requests`, which are gone through once; one block is held at a time."""
        coming = iter(requests)
        place, earlier_s = 0, 0.0
        for block, (times, size) in enumerate(zip(drawn, self.sizes, strict=True)):
            held = list(itertools.islice(coming, size)) if times else []
            for copy in range(times):
                later_s = (place - block) * self._length_s
                place += 1
                for request in held:
                    # Rounding must not put the last of a block behind the first of the next.
                    earlier_s = max(earlier_s, request.arrival_s + later_s)
                    yield _copied(request, copy, earlier_s)
            if not times:
                next(itertools.islice(coming, size, size), None)  # passed over

    def requests(self, requests: Iterable[WorkloadRequest], seed: int) -> Iterator[WorkloadRequest]:
        """The trace itself for seed 0, else the draw of `seed`."""
        return iter(requests) if seed == 0 else self.put_together(requests, self.draw(seed))


def _copied(request: WorkloadRequest, copy: int, arrival_s: float) -> WorkloadRequest:
    """Copies differ in their ids, sessions and prefixes; the first keeps the trace's own prefixes."""
    hashes = request.prefix_hashes
    if hashes and copy:
        # Other ids, whatever the size of the trace's own.
        digests = (blake2b(f"{each}~{copy}".encode(), digest_size=7).digest() for each in hashes)
        hashes = tuple(int.from_bytes(digest, "big") for digest in digests)
    return replace(
        request,
        arrival_s=arrival_s,
        id=f"{request.id}~{copy}",
        prefix_hashes=hashes,
        session=None if request.session is None else f"{request.session}~{copy}",
    )
