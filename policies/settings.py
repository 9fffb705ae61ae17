"""The settings that policies are built with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policies.expected import CachedTokens, none_cached
from router.core.interfaces import Option, TextEstimator
from router.core.types import Request, Targets


class TargetTable:
    """The targets of each scope in a running fleet: `PolicySettings.targets`."""

    def __init__(self, targets: Mapping[str | None, Targets]) -> None:
        self.use(targets)

    def use(self, targets: Mapping[str | None, Targets]) -> None:
        """Use these targets from now on, by key. None, for the fleet, must be present."""
        self._targets, self._fleet = targets, targets[None]

    def __call__(self, key: str | None) -> Targets:
        """The targets of a key; those of the fleet for None and for an unknown key."""
        return self._targets.get(key, self._fleet)


def _same_targets(key: str | None) -> Targets:
    return Targets()


#: (p90 of TTFT from the request's arrival, p90 of TPOT) of each option in seconds; None if nothing predicts them.
TreeTimes = Callable[[Request, Sequence[Option]], Sequence[tuple[float, float]] | None]


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The settings of all policies.

    - `confidence`: the required probability that an SLO is met. A policy tolerates `epsilon`, the rest.
    - `ttft_weight` in [0, 1]: the weight of TTFT beside E2E in the time that `latency` and `slo` minimise. 0 counts the
      whole answer, 1 only the first token.
    - `cached_tokens`: how many tokens of a request's prompt the instance of that name probably holds in its prefix
      cache.
    - `targets`: the current targets of a key (None: the fleet).
    - `text`: the text-only estimators by name; empty without an artifact.
    - `tree_times`: what boosted trees predict; None without them.
    """

    confidence: float = 0.9
    ttft_weight: float = 0.0
    cached_tokens: CachedTokens = none_cached
    targets: Callable[[str | None], Targets] = _same_targets
    text: Mapping[str, TextEstimator] = field(default_factory=dict)
    tree_times: TreeTimes | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise ValueError("confidence must be between 0 and 1")
        if not 0.0 <= self.ttft_weight <= 1.0:
            raise ValueError("ttft_weight must be from 0 to 1")

    @property
    def epsilon(self) -> float:
        """The greatest tolerated probability that an SLO is missed."""
        return round(1.0 - self.confidence, 12)
