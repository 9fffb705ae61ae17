"""`relevance`: the best reliable answer among options that meet the SLO and the money cap.

The score is a lower confidence bound of quality: predicted quality - one standard deviation. A prior from the fleet file
has no deviation and counts as it is.

- Options with P(an SLO is missed) <= epsilon and an expected price within `max_cost_usd`: the greatest bound.
- If no option satisfies both, the price limit is dropped. (Eligibility has removed options that cannot pay for any
  answer, and the answer is cut at the cap.)
- If no option meets the SLO: the least P(miss), then the greatest bound.

Options with equal bounds (replicas): the least expected E2E, then instance, then model name. Unknown quality comes last.
Deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from policies.expected import expected_s, p_misses
from policies.picking import Reasons, format_s, known, name_of, would_miss
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request

#: The bound is so many standard deviations below the mean.
_DEVIATIONS = 1.0
_SAME = 1e-9


class BestQuality(Policy):
    """See the module's docstring. The score is the bound, negated."""

    name = "relevance"
    predicts = True

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        bounds = [quality_bound(option) for option in options]
        misses = p_misses(options)
        meeting = [at for at, miss in enumerate(misses) if miss <= self.epsilon]
        within = [at for at in meeting if not _too_expensive(options[at], request.max_cost_usd)]
        allowed = within or meeting
        among = allowed or [at for at, miss in enumerate(misses) if miss == min(misses)]
        least = max(bounds[at] for at in among) - _SAME
        equal = [at for at in among if bounds[at] >= least]
        index = min(equal, key=lambda at: (expected_s(options[at]), name_of(options[at])))

        def why(at: int) -> str:
            if misses[at] > self.epsilon:
                return would_miss(misses[at])
            if within and at not in within:
                return "expected to cost more than max_cost_usd allows"
            if bounds[at] < bounds[index] - _SAME:
                return f"lower quality: at least {_format_bound(bounds[at])}, against {_format_bound(bounds[index])}"
            times_s = [expected_s(options[each]) for each in (at, index)]
            return f"same quality but not faster: {format_s(times_s[0])} expected, against {format_s(times_s[1])}"

        others = [at for at in equal if at != index] if allowed else []
        return Choice(
            index, known(-bound for bound in bounds), Reasons(len(options), index, why), alternatives=others
        )


def quality_bound(option: Option) -> float:
    """Lower confidence bound of the option's quality; minus infinity if the quality is unknown."""
    prediction = option.prediction
    quality = option.candidate.quality if prediction is None else prediction.quality
    if quality is None:
        return -inf
    deviation = None if prediction is None else prediction.quality_sd
    return quality - _DEVIATIONS * (deviation or 0.0)


def _too_expensive(option: Option, cap_usd: float | None) -> bool:
    prediction = option.prediction
    if cap_usd is None or prediction is None or prediction.cost_usd is None:
        return False
    return prediction.cost_usd > cap_usd


def _format_bound(quality: float) -> str:
    return "unknown" if quality == -inf else f"{quality:.3f}"
