"""What is counted for one combination of labels.

Buckets are those of OpenTelemetry's semantic conventions for generative AI metrics
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/) where they exist.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from router.compiled import CONSTRUCTS
from router.core.types import Outcome

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_BUCKETS = tuple(0.01 * 2**i for i in range(14))
TOKEN_BUCKETS = tuple(float(4**i) for i in range(14))
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
DECISION_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2)


class Histogram:
    """Counts of values by inclusive upper bound, for Prometheus."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the counts of a histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


if CONSTRUCTS:
    from router.native.construction import Histogram  # type: ignore[no-redef]


def _histogram(bounds: tuple[float, ...]) -> Histogram:
    made: Histogram = field(default_factory=partial(Histogram, bounds))
    return made


@dataclass(slots=True, eq=False)
class Series:
    """All that is counted for one combination of labels."""

    requests: int = 0
    offered: int = 0
    met: int = 0
    overruns: int = 0
    attempts: int = 0
    hedged: int = 0
    overrun_usd: float = 0.0
    ttft: Histogram = _histogram(TTFT_BUCKETS)
    tpot: Histogram = _histogram(TPOT_BUCKETS)
    duration: Histogram = _histogram(DURATION_BUCKETS)
    input_tokens: Histogram = _histogram(TOKEN_BUCKETS)
    output_tokens: Histogram = _histogram(TOKEN_BUCKETS)
    ratio_ttft: Histogram = _histogram(RATIO_BUCKETS)
    ratio_e2e: Histogram = _histogram(RATIO_BUCKETS)
    ratio_output_tokens: Histogram = _histogram(RATIO_BUCKETS)


class Labels(NamedTuple):
    policy: str
    requested: str
    model: str
    instance: str
    operation: str
    outcome: Outcome
