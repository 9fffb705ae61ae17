"""`latency`: the least expected E2E among options that keep the SLO with the wanted confidence.

Among options with P(an SLO is missed) <= epsilon (all, for a request without an SLO): the least
(1 - w) x E[E2E] + w x median TTFT, w being `ttft_weight`. If there is none: the least P(miss), then that
same time. Ties break on instance, then model name. Headway's contract; predicting each instance's latency
with the new request in it follows Block (arXiv 2508.03611). Deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from policies.picking import name_of, told_s
from router.core.interfaces import Choice, Option
from router.core.types import Request


class LeastLatency:
    """See the module's docstring. The score is the expected time in seconds."""

    name = "latency"
    predicts = True

    def __init__(self, epsilon: float = 0.1, ttft_weight: float = 0.0) -> None:
        self.epsilon = epsilon
        self.ttft_weight = ttft_weight

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        times_s = [expected_s(option, self.ttft_weight) for option in options]
        misses = [p_miss(option) for option in options]
        index = least_time(options, times_s, misses, self.epsilon)
        reasons = [
            None if at == index else why_passed_over(at, index, times_s, misses, self.epsilon)
            for at in range(len(options))
        ]
        return Choice(index, [None if time_s == inf else time_s for time_s in times_s], reasons)

    def taken(self, request: Request, option: Option) -> None:
        """Nothing to count."""


def expected_s(option: Option, ttft_weight: float) -> float:
    """Expected time of an option in seconds, TTFT weighted in; infinite when it is not known."""
    prediction = option.prediction
    if prediction is None or prediction.e2e_s_mean is None:
        return inf
    if not ttft_weight or prediction.ttft_s_p50 is None:
        return prediction.e2e_s_mean
    return (1.0 - ttft_weight) * prediction.e2e_s_mean + ttft_weight * prediction.ttft_s_p50


def p_miss(option: Option) -> float:
    """Probability that the option misses the SLO; 0 without an SLO, 1 without a prediction."""
    prediction = option.prediction
    if prediction is None:
        return 1.0
    return 0.0 if prediction.p_miss is None else prediction.p_miss


def least_time(
    options: Sequence[Option], times_s: Sequence[float], misses: Sequence[float], epsilon: float
) -> int:
    """Index of the least time among misses <= epsilon; if there is none, of the least miss."""
    keeping = [index for index, miss in enumerate(misses) if miss <= epsilon]
    if keeping:
        return min(keeping, key=lambda index: (times_s[index], name_of(options[index])))
    return min(
        range(len(options)), key=lambda index: (misses[index], times_s[index], name_of(options[index]))
    )


def why_passed_over(
    at: int, index: int, times_s: Sequence[float], misses: Sequence[float], epsilon: float
) -> str:
    """Why option `at` was passed over for option `index`."""
    if misses[at] > epsilon:
        return f"would miss its SLO with probability {misses[at]:.2f}"
    return f"slower: {_told(times_s[at])} against {_told(times_s[index])} expected"


def _told(time_s: float) -> str:
    return told_s(None if time_s == inf else time_s)
