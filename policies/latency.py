"""`latency`: the least time, with the delay to other requests and the risk that the SLO is missed.

It takes the option of the least `policies.expected.ExpectedTime`. If every option misses the SLO (P(miss) > 1 - epsilon) and the
best one has prompts without a first token, the request is deferred.

If more SLOs are missed than predicted (`policies.calibration_guard`), a request with an SLO goes to the instance with
the fewest sequences, weighted by the instance's speed. At level 1 only options that meet the SLO (P(miss) <= epsilon) count,
if there are any; at level 2 all options do.

Ties: instance, then model name. Deterministic. Predicting each instance's latency with the new request in it follows
Block (arXiv 2508.03611).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from policies.calibration_guard import CalibrationGuard
from policies.expected import ExpectedTime, p_miss, p_misses
from policies.picking import Reasons, at_most, format_s, least, name_of
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Candidate, Request

#: The reason for options passed over while P(miss) is distrusted.
BUSIER = "busier (predictions are not used: more SLOs were missed than predicted)"
#: Exploration may take an option whose time exceeds the least by at most this share.
SIMILAR = 0.05


class LeastLatency(Policy):
    """See the module's docstring. The score is the minimised time in seconds."""

    predicts = True

    def __init__(self, epsilon: float, time: ExpectedTime, name: str = "latency") -> None:
        self.name = name
        self.epsilon = epsilon
        self.time = time
        self._guard = CalibrationGuard(epsilon)

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        misses = p_misses(options)
        times_s = self.time.of(request, options, misses)
        scores = [None if time_s == inf else time_s for time_s in times_s]
        every = range(len(options))
        if self._guard.level and request.slo is not None:
            meeting = at_most(misses, self.epsilon) if self._guard.level == 1 else []
            index = least_busy(options, meeting or every)
            return Choice(index, scores, Reasons(len(options), index, lambda at: BUSIER))
        index = least(options, every, times_s)
        least_s = times_s[index]
        lost = request.slo is not None and min(misses) > 1.0 - self.epsilon
        return Choice(
            index,
            scores,
            Reasons(len(options), index, lambda at: _slower(times_s[at], least_s)),
            alternatives=[at for at in every if at != index and times_s[at] <= least_s * (1.0 + SIMILAR)],
            defer=lost and options[index].instance.awaiting_first_token > 0,
        )

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Count the prompt among those of its instance, and record P(miss) to compare it with the outcome."""
        option = options[choice.index]
        self.time.placed(request, option)
        if request.slo is not None:
            self._guard.predicted(request.id, p_miss(option))

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """Compare the outcome with P(miss)."""
        self._guard.observed(request.id, met)


def _slower(time_s: float, least_s: float) -> str:
    return (
        "more time in all (TTFT, E2E, the delay to other requests, the risk of a miss): "
        f"{format_s(time_s)}, against {format_s(least_s)}"
    )


def least_busy(options: Sequence[Option], among: Sequence[int]) -> int:
    """Index of the option with the fewest sequences. They are weighted by the time of a decode step of one sequence if
    all options have an engine profile. Needs no prediction."""
    profiles = [option.instance.profiles.get(option.candidate.model) for option in options]
    known = all(profile is not None for profile in profiles)

    def load(at: int) -> tuple[float, tuple[str, str]]:
        instance, profile = options[at].instance, profiles[at]
        step_s = profile.step_s(0, 1, 0.0) / instance.speed if known and profile is not None else 1.0
        return (instance.running + 1) * step_s, name_of(options[at])

    return min(among, key=load)
