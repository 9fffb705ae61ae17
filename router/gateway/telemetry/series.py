"""What is counted for one combination of labels.

Buckets are those of OpenTelemetry's semantic conventions for generative AI metrics
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/) where they exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from router.core.histogram import Histogram
from router.core.types import Outcome

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_BUCKETS = tuple(0.01 * 2**i for i in range(14))
TOKEN_BUCKETS = tuple(float(4**i) for i in range(14))
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
DECISION_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2)


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
