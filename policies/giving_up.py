"""Which SLOs are given up under load. `slo` and `cost` send such a request only where it delays no other (`policies.room`); if it
would delay some everywhere, it waits, or with a hard SLO is refused.

Under load some SLOs are missed anyway, and a long prompt or answer takes the time of several others. So the SLO of a request is
given up if its best chance is below epsilon, or below its price: r - 0.3, times its work over the mean work of the last requests.
For a hard SLO the price is twice that: a refused request takes no time at all, one that is late takes all of it.

r says how scarce instances are that meet SLOs. It falls towards 0.1 with each request that finds one, and rises, to at most 0.6,
with each that finds none, whether it is placed or refused. Requests with a money cap do not raise it: they may be unable to pay
for such an instance. Nor do those of more than the mean work: what is given up must not raise the price. Work is the instance's
time that the answer takes (`EngineProfile.machine_s`); cached tokens need none.

The idea comes from schedules that know all arrivals and lengths (`benchmarks.oracles`): in overload they let the few longest
requests miss. To accept what is worth most for the room that it takes is the rule of the fractional knapsack (Dantzig, 1957).
"""

from __future__ import annotations

from policies.expected import CachedTokens
from router.core.interfaces import Option
from router.core.types import Request

#: Factors of the scarcity for a request that finds an option that meets its SLO, and for one that finds none.
SCARCITY_DOWN, _SCARCITY_UP = 0.995, 1.3
_LEAST_SCARCITY, _MOST_SCARCITY = 0.1, 0.6
#: Up to this scarcity only SLOs with hardly a chance are given up.
_FREE_SCARCITY = 0.3
#: The price of a hard SLO over that of a soft one.
_HARD_PRICE = 2.0
#: The mean work is that of about so many requests.
_WORK_OF = 500

#: The reason of an option that is passed over for such a request.
GIVEN_UP = "the SLO is given up, and the request would delay others there"


class GivingUp:
    """See the module's docstring."""

    def __init__(self, epsilon: float, cached_tokens: CachedTokens | None = None) -> None:
        self.scarcity = _LEAST_SCARCITY
        self._epsilon = epsilon
        self._cached_tokens = cached_tokens
        self._mean_work_s = 0.0
        self._worked = 0

    def work_s(self, request: Request, option: Option) -> float:
        """Seconds of the instance's time that the answer takes; 0 if unknown."""
        instance, prediction = option.instance, option.prediction
        profile = instance.profiles.get(option.candidate.model)
        if profile is None or prediction is None:
            return 0.0
        prompt, cached = request.prompt_tokens, 0.0
        if request.prefix and self._cached_tokens is not None:
            cached = min(self._cached_tokens(request, instance.name), prompt - 1)
        output = prediction.output_tokens_mean or 0.0
        return profile.machine_s(prompt, output, instance.fixed_slots, cached) / instance.speed

    def least_chance(self, request: Request, work_s: float) -> float:
        """The chance that a request of this work must have. Unknown work counts as the mean."""
        price = self.scarcity - _FREE_SCARCITY
        if request.hard:
            price *= _HARD_PRICE
        if work_s and self._mean_work_s:
            price *= work_s / self._mean_work_s
        return price if price > self._epsilon else self._epsilon

    def decided(self, request: Request, work_s: float, miss: float) -> None:
        """A request with an SLO was placed, or refused because no option meets it; `miss` is the P(miss) that it found."""
        if work_s:
            self._worked += self._worked < _WORK_OF
            self._mean_work_s += (work_s - self._mean_work_s) / self._worked
        if miss <= self._epsilon:
            fallen = self.scarcity * SCARCITY_DOWN
            self.scarcity = fallen if fallen > _LEAST_SCARCITY else _LEAST_SCARCITY
        elif request.max_cost_usd is None and work_s <= self._mean_work_s:
            self.scarcity = min(_MOST_SCARCITY, self.scarcity * _SCARCITY_UP)
