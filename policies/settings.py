"""What policies are built with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.core.types import Request


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Settings of all policies.

    `confidence` is the probability with which an SLO shall be kept (a policy tolerates `epsilon`, the
    rest). `ttft_weight` in [0, 1] is the weight of TTFT beside E2E in the latency policy's score: 0 looks
    at the whole answer, 1 at the first token only. `cached_tokens` tells how many tokens of a request's
    prompt an instance (by name) should hold in its prefix cache; None if nobody knows.
    """

    confidence: float = 0.9
    ttft_weight: float = 0.0
    cached_tokens: Callable[[Request, str], float] | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise ValueError("confidence must be between 0 and 1")
        if not 0.0 <= self.ttft_weight <= 1.0:
            raise ValueError("ttft_weight must be from 0 to 1")

    @property
    def epsilon(self) -> float:
        """The greatest tolerated probability that an SLO is missed."""
        return round(1.0 - self.confidence, 12)
