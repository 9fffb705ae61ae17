"""`latency`: the least expected E2E among options that meet the SLO with the required confidence.

Among options with P(an SLO is missed) <= epsilon (all options for a request without an SLO) it takes the least

    (1 - w) x (E[E2E] + added) + w x median TTFT,    w = `ttft_weight`

`added` is the delay that the request causes to the sequences already there: its prefill, and a part of each decode step
(from the engine profile; 0 without one). Without `added` all requests would crowd the fastest instance, and each would cost
the others more than it gains. If no option meets the SLO: the least P(miss), then the same time.

If more SLOs are missed than predicted (`policies.calibration_guard`), a request with an SLO goes to the instance with
the fewest sequences, weighted by the instance's speed. At level 1 only options that meet the SLO count, if there are
any; at level 2 all options do.

Ties: instance, then model name. Deterministic. Predicting each instance's latency with the new request in it follows
Block (arXiv 2508.03611). Routing by marginal cost instead of own cost goes back to Pigou (The Economics of Welfare,
1920).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import cast

from policies.calibration_guard import CalibrationGuard
from policies.picking import Reasons, at_most, format_s, least, name_of
from router.core.interfaces import Choice, Option, Options, Policy
from router.core.option_columns import delays_s
from router.core.types import Candidate, Request

#: The reason for options passed over while P(miss) is distrusted.
BUSIER = "busier (predictions are not used: more SLOs were missed than predicted)"
#: Exploration may take an option whose time exceeds the least by at most this share.
SIMILAR = 0.05


class LeastLatency(Policy):
    """See the module's docstring. The score is the minimised time in seconds."""

    name = "latency"
    predicts = True

    def __init__(self, epsilon: float, ttft_weight: float = 0.0) -> None:
        self.epsilon = epsilon
        self.ttft_weight = ttft_weight
        self._guard = CalibrationGuard(epsilon, max_level=2)

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        times_s = weighed_s(request, options, self.ttft_weight)
        misses = p_misses(options)
        every = range(len(options))
        meeting = at_most(misses, self.epsilon)
        distrusted = bool(self._guard.level) and request.slo is not None
        if distrusted:
            index = least_busy(options, meeting if meeting and self._guard.level == 1 else every)
            meeting = []
        elif meeting:
            index = least(options, meeting, times_s)
        else:
            index = min(every, key=lambda at: (misses[at], times_s[at], name_of(options[at])))
        bound_s = times_s[index] * (1.0 + SIMILAR)
        reasons = why_not(
            index,
            misses,
            self.epsilon,
            lambda at: _slower(times_s[at], times_s[index]),
            distrusted=distrusted,
        )
        return Choice(
            index,
            [None if time_s == inf else time_s for time_s in times_s],
            reasons,
            alternatives=[at for at in meeting if at != index and times_s[at] <= bound_s],
        )

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Record P(miss), to compare it with the outcome."""
        if request.slo is not None:
            self._guard.predicted(request.id, p_miss(options[choice.index]))

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """Compare the outcome with P(miss)."""
        self._guard.observed(request.id, met)


def why_not(
    index: int, misses: Sequence[float], epsilon: float, slower: Callable[[int], str], *, distrusted: bool
) -> Sequence[str | None]:
    """The reasons of a choice by P(miss), or by the fewest sequences while P(miss) is `distrusted`, and then by time:
    `slower` is the reason of an option that would meet the SLO."""

    def why(at: int) -> str:
        if distrusted:
            return BUSIER
        return would_miss(misses[at]) if misses[at] > epsilon else slower(at)

    return Reasons(len(misses), index, why)


def _slower(time_s: float, taken_s: float) -> str:
    return f"slower, including the delay to other requests: {format_s(time_s)}, against {format_s(taken_s)}"


def would_miss(miss: float) -> str:
    """The reason of an option with this P(miss)."""
    return f"would miss its SLO with probability {miss:.2f}"


def weighed_s(request: Request, options: Sequence[Option], ttft_weight: float) -> list[float]:
    """By option: the time that the policy minimises, in seconds; infinite if unknown."""
    added = added_s(request, options)
    if isinstance(options, Options):
        columns, rest = options.columns, 1.0 - ttft_weight
        if not ttft_weight:
            return [e2e_s + each for e2e_s, each in zip(columns.e2e_s_mean, added, strict=True)]
        return [
            rest * e2e_s + ttft_weight * ttft_s + rest * each
            for e2e_s, ttft_s, each in zip(columns.e2e_s_mean, columns.ttft_s_p50, added, strict=True)
        ]
    return [
        expected_s(option, ttft_weight) + (1.0 - ttft_weight) * each
        for option, each in zip(options, added, strict=True)
    ]


def expected_s(option: Option, ttft_weight: float = 0.0) -> float:
    """Expected time of an option in seconds, with TTFT weighted in; infinite if unknown."""
    prediction = option.prediction
    if prediction is None or prediction.e2e_s_mean is None:
        return inf
    if not ttft_weight or prediction.ttft_s_p50 is None:
        return prediction.e2e_s_mean
    return (1.0 - ttft_weight) * prediction.e2e_s_mean + ttft_weight * prediction.ttft_s_p50


def added_s(request: Request, options: Sequence[Option]) -> list[float]:
    """By option: expected seconds that the request adds to the E2E of all sequences at its instance, in total."""
    if isinstance(options, Options):
        lengths: Sequence[float | None] = options.columns.output_tokens_mean
    else:
        lengths = [
            None if (told := option.prediction) is None else told.output_tokens_mean or 0.0
            for option in options
        ]
    return delays_s(options, lengths, request.prompt_tokens)


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


def p_miss(option: Option) -> float:
    """Probability that the option misses the SLO: 0 without an SLO, 1 without a prediction."""
    prediction = option.prediction
    if prediction is None:
        return 1.0
    return 0.0 if prediction.p_miss is None else prediction.p_miss


def p_misses(options: Sequence[Option]) -> list[float]:
    """`p_miss` of each option."""
    if isinstance(options, Options):
        misses = options.columns.p_miss
        return [0.0] * len(options) if misses[0] is None else cast("list[float]", misses)
    return [1.0 if (told := option.prediction) is None else told.p_miss or 0.0 for option in options]
