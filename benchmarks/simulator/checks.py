"""What a check says of an answer whose true quality is known (`router.core.events.Check`)."""

from __future__ import annotations

from random import Random
from statistics import NormalDist

from benchmarks.simulator.arrivals import Arrival
from router.core.events import Check, Checked

_NORMAL = NormalDist()
#: A check takes this long: about 150 tokens of a verdict. The load that it is for its own engine is not simulated.
CHECK_S = 3.0


def drawn_score(seed: str, quality: float, dprime: float) -> float:
    """A score from 0 to 1 of an answer of this true quality. The scores of good and of poor answers are `dprime` apart, in
    standard deviations, before they are mapped to that range. The same seed gives the same score."""
    return _NORMAL.cdf(Random(seed).gauss((2.0 * quality - 1.0) * dprime / 2.0, 1.0))


def outcome_of(check: Check, arrival: Arrival, seed: int) -> tuple[float, Checked]:
    """How long a check takes, and what comes of it. A check that exceeds its time limit, or of an answer whose true quality
    is unknown, gives no score."""
    limits, model = arrival.request.check, check.candidate.model
    assert limits is not None  # noqa: S101 (only such requests have their answers checked)
    if limits.limit_s < CHECK_S or model not in arrival.quality:
        return min(CHECK_S, limits.limit_s), Checked(check.request_id, check.attempt, None)
    score = drawn_score(f"{seed} {check.request_id} {model}", arrival.quality[model], limits.dprime)
    return CHECK_S, Checked(check.request_id, check.attempt, score)
