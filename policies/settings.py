"""What policies are built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from router.core.interfaces import Option, TextEstimates, TextEstimator
from router.core.types import Request, Targets


class TargetTable:
    """What holds for each scope at this moment: `PolicySettings.targets` of a running fleet."""

    def __init__(self, targets: Mapping[str | None, Targets]) -> None:
        self.use(targets)

    def use(self, targets: Mapping[str | None, Targets]) -> None:
        """These hold from now on; None is the fleet, which has to be there."""
        self._targets, self._fleet = targets, targets[None]

    def __call__(self, key: str | None) -> Targets:
        """What holds for a key; for an unknown one, and None, the fleet's."""
        return self._targets.get(key, self._fleet)


def _same_targets(key: str | None) -> Targets:
    return Targets()


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Settings of all policies.

    `confidence` is the probability with which an SLO shall be kept (a policy tolerates `epsilon`, the
    rest). `ttft_weight` in [0, 1] is the weight of TTFT beside E2E in the latency policy's score: 0 looks
    at the whole answer, 1 at the first token only. `cached_tokens` tells how many tokens of a request's
    prompt an instance (by name) should hold in its prefix cache; None if nobody knows. `targets` tells what
    holds for a key (None: the fleet) at this moment. `text` are the text-only estimators by name, empty
    without an artifact. `tree_times` tells by option p90 of TTFT from the request's arrival and p90 of TPOT, in
    seconds, from boosted trees; None where there are none.
    """

    confidence: float = 0.9
    ttft_weight: float = 0.0
    cached_tokens: Callable[[Request, str], float] | None = None
    targets: Callable[[str | None], Targets] = _same_targets
    text: Mapping[str, TextEstimator] = field(default_factory=dict)
    tree_times: Callable[[Request, Sequence[Option]], Sequence[tuple[float, float]] | None] | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise ValueError("confidence must be between 0 and 1")
        if not 0.0 <= self.ttft_weight <= 1.0:
            raise ValueError("ttft_weight must be from 0 to 1")

    @property
    def epsilon(self) -> float:
        """The greatest tolerated probability that an SLO is missed."""
        return round(1.0 - self.confidence, 12)


__all__ = ["PolicySettings", "Targets", "TextEstimates", "TextEstimator"]
