"""`slo`: best fit. Of the options that keep the SLO with the wanted confidence, the one cheapest to occupy.

Among options with P(an SLO is missed) <= epsilon, in this order:

1. the cheapest to occupy, so that dear and fast instances stay free for requests that need them: the
   instance's price per hour where every one of these options tells it, else the expected price by tariff;
2. the slowest: the longest time of a lone decode step (engine profile; without one the predicted TPOT);
3. among equal instances the least P(miss), so that replicas share the load, then the least E2E.

If none keeps the SLO: the least P(miss), then the least E2E. A request without an SLO has nothing to fit,
so it goes where its expected E2E is least. Ties break on instance, then model name. Deterministic.

Best fit under an SLO is the idea of PolyServe (arXiv 2507.17769) and of llm-d's least positive headroom;
both fill the most loaded server first. Here that holds between kinds of hardware, not between replicas:
filling one replica to the brim frees no better one, and costs attainment.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from policies.latency import expected_s, least_time, p_miss, why_passed_over
from policies.picking import name_of
from router.core.interfaces import Choice, Option
from router.core.types import Request


class BestFit:
    """See the module's docstring. The score is P(miss), or the expected E2E for a request without an SLO."""

    name = "slo"
    predicts = True

    def __init__(self, epsilon: float = 0.1) -> None:
        self.epsilon = epsilon

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        times_s = [expected_s(option, 0.0) for option in options]
        misses = [p_miss(option) for option in options]
        keeping = [index for index, miss in enumerate(misses) if miss <= self.epsilon]
        if request.slo is None or not keeping:
            index = least_time(options, times_s, misses, self.epsilon)
            reasons = [
                None if at == index else why_passed_over(at, index, times_s, misses, self.epsilon)
                for at in range(len(options))
            ]
            scores = times_s if request.slo is None else misses
            return Choice(index, [None if score == inf else score for score in scores], reasons)

        hourly = all(options[index].instance.usd_per_hour is not None for index in keeping)
        occupancy = {index: _occupancy(options[index], hourly) for index in keeping}
        index = min(
            keeping,
            key=lambda at: (occupancy[at], misses[at], times_s[at], name_of(options[at])),
        )
        reasons = [
            None if at == index else self._why(at, misses, occupancy, occupancy[index])
            for at in range(len(options))
        ]
        return Choice(index, misses, reasons)

    def taken(self, request: Request, option: Option) -> None:
        """Nothing to count."""

    def _why(
        self,
        at: int,
        misses: Sequence[float],
        occupancy: dict[int, tuple[float, float]],
        taken: tuple[float, float],
    ) -> str:
        if misses[at] > self.epsilon:
            return f"would miss its SLO with probability {misses[at]:.2f}"
        if occupancy[at][0] > taken[0]:
            return "dearer to occupy, and a cheaper one keeps the SLO"
        if occupancy[at][1] > taken[1]:
            return "faster than needed: kept free for requests that need it"
        return f"an equal with more risk: P(miss) {misses[at]:.3f}"


def _occupancy(option: Option, hourly: bool) -> tuple[float, float]:
    """How dear it is to occupy an option: its price (to three digits: less is no difference
    that a prediction can tell), then its speed (negated step time in seconds)."""
    instance, prediction = option.instance, option.prediction
    cost_usd = instance.usd_per_hour if hourly else (prediction.cost_usd if prediction else None)
    profile = instance.profiles.get(option.candidate.model)
    if profile is not None:
        step_s = profile.step_s(0, 1, 0.0) / instance.speed
    else:
        step_s = (prediction.tpot_s if prediction else None) or 0.0
    return (0.0 if cost_usd is None else float(f"{cost_usd:.3g}")), -step_s
