"""Measured arrivals through the engine model: what this profile would have made of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Rows
from typing import NamedTuple

from backends.engine import Engine, PromptTooLong, Sequence
from benchmarks.calibrate.measured import Measured
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import grouped
from router.core.profile import EngineProfile


class Served(NamedTuple):
    """When a request got its first and its last token, on the arrivals' clock, in seconds, and how many
    requests its engine was running at the first, this one included."""

    first_token_at_s: float
    ended_at_s: float
    streams: int


def simulate(
    profile: EngineProfile, requests: Rows[Measured], *, prefix_caching: bool = False
) -> list[Served]:
    """Serve `requests` (sorted by arrival, output lengths known), each on its replica. One entry a request, in
    the same order. A WorkloadError for a prompt or limits that the engine cannot take."""
    replicas = grouped(range(len(requests)), lambda index: requests[index].replica)
    served: dict[int, Served] = {}
    for indices in replicas.values():
        sequences: dict[int, Sequence] = {}
        try:
            engine = Engine(profile, prefix_caching=prefix_caching, every_token=False)
            for index in indices:
                each = requests[index]
                tokens = each.prompt_tokens, each.output_tokens or 1
                sequences[index] = Sequence(str(index), *tokens, each.prefix)
                engine.submit(sequences[index], each.arrival_s)
        except (PromptTooLong, ValueError) as error:
            raise WorkloadError(f"the engine model cannot run this: {error}") from None
        progress = []
        while (next_s := engine.next_at()) is not None:
            progress += engine.advance(next_s)
        progress += engine.advance(float("inf"))
        ended_at_s = {int(name): at_s for name, at_s, _, finished in progress if finished is not None}
        admissions = sorted(each.admitted_at_s or 0.0 for each in sequences.values())
        ends = sorted(ended_at_s.values())
        for index, sequence in sequences.items():
            first_s = sequence.first_token_at_s
            assert first_s is not None  # noqa: S101 (it has ended)
            streams = bisect_right(admissions, first_s) - bisect_left(ends, first_s)
            served[index] = Served(first_s, ended_at_s[index], streams)
    return [served[index] for index in range(len(requests))]
