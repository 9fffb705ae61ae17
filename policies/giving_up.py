"""Which SLOs are given up under load. `slo` and `cost` send such a request only where it delays no other (`has_room`); if it
would delay some everywhere, it waits, or with a hard SLO is refused.

Under load some SLOs are missed anyway, and a long prompt or answer takes the time of several others. So the SLO of a request is
given up if its best chance is below epsilon, or below its price: r - 0.3, times its work over the mean work of the last requests.
For a hard SLO the price is twice that: a refused request takes no time at all, one that is late takes all of it.

r says how scarce instances are that meet SLOs. It falls towards 0.1 with each request that finds one, and rises, to at most 0.6,
with each that finds none, whether it is placed or refused. Requests with a money cap do not raise it: they may be unable to pay
for such an instance. Nor do those of more than the mean work: what is given up must not raise the price. Work is the instance's
time that the answer takes (`EngineProfile.machine_s`; cached tokens need none), in times of a mean request on the same instance. So
it hardly depends on which instances are free.

The idea comes from schedules that know all arrivals and lengths (`benchmarks.oracles`): in overload they let the few longest
requests miss. To accept what is worth most for the room that it takes is the rule of the fractional knapsack (Dantzig, 1957).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from policies.expected import CachedTokens, none_cached
from router.core.interfaces import Option
from router.core.profile import EngineProfile
from router.core.types import Request

#: Factors of the scarcity for a request that finds an option that meets its SLO, and for one that finds none.
SCARCITY_DOWN, _SCARCITY_UP = 0.995, 1.3
_LEAST_SCARCITY, _MOST_SCARCITY = 0.1, 0.6
#: Up to this scarcity only SLOs with hardly a chance are given up.
FREE_SCARCITY = 0.3
#: The price of a hard SLO over that of a soft one.
_HARD_PRICE = 2.0
#: The mean request is that of about so many.
_MEAN_OF = 500
#: A promised TPOT counts as broken if the predicted TPOT is above this share of it.
_TPOT_MARGIN = 1.0 / 1.2
#: The same for a request whose SLO is lost: it can wait for more room.
_LOST_MARGIN = 1.0 / 1.5
#: Lost requests fill an engine's KV memory up to this share.
_LOST_KV_USAGE = 0.8

#: The reason of an option that is passed over for such a request.
GIVEN_UP = "the SLO is given up, and the request would delay others there"


class Work(NamedTuple):
    """What an answer is made of, and the engine that would make it."""

    profile: EngineProfile
    fixed_slots: bool
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float


class GivingUp:
    """See the module's docstring."""

    def __init__(self, epsilon: float, cached_tokens: CachedTokens = none_cached) -> None:
        self.scarcity = _LEAST_SCARCITY
        self._epsilon = epsilon
        self._cached_tokens = cached_tokens
        self._mean = 0.0, 0.0, 0.0  # prompt, cached and output tokens of a mean request
        self._worked = 0

    def work(self, request: Request, option: Option) -> Work | None:
        """The request's work at an option; None if unknown."""
        instance, prediction = option.instance, option.prediction
        profile = instance.profiles.get(option.candidate.model)
        if profile is None or prediction is None:
            return None
        prompt, cached = request.prompt_tokens, 0.0
        if request.prefix:
            cached = min(self._cached_tokens(request, instance.name), prompt - 1)
        return Work(profile, instance.fixed_slots, prompt, cached, prediction.output_tokens_mean or 0.0)

    def least_chance(self, request: Request, work: Work | None) -> float:
        """The chance that a request of this work must have."""
        price = self.scarcity - FREE_SCARCITY
        if price <= 0.0:
            return self._epsilon
        if request.hard:
            price *= _HARD_PRICE
        price *= self._times_mean(work)
        return price if price > self._epsilon else self._epsilon

    def decided(self, request: Request, work: Work | None, miss: float) -> None:
        """A request with an SLO was placed, or refused because no option meets it; `miss` is the P(miss) that it found."""
        if miss <= self._epsilon:
            fallen = self.scarcity * SCARCITY_DOWN
            self.scarcity = fallen if fallen > _LEAST_SCARCITY else _LEAST_SCARCITY
        elif request.max_cost_usd is None and self._times_mean(work) <= 1.0:
            self.scarcity = min(_MOST_SCARCITY, self.scarcity * _SCARCITY_UP)
        if work is not None:
            self._worked += self._worked < _MEAN_OF
            step, (prompt, cached, output) = 1.0 / self._worked, self._mean
            self._mean = (
                prompt + step * (work.prompt_tokens - prompt),
                cached + step * (work.cached_tokens - cached),
                output + step * (work.output_tokens - output),
            )

    def _times_mean(self, work: Work | None) -> float:
        """The work, in times of a mean request on the same instance. Unknown work counts as the mean."""
        if work is None or not self._worked:
            return 1.0
        profile, fixed_slots, prompt, cached, output = work
        mean_prompt, mean_cached, mean_output = self._mean
        mean_s = profile.machine_s(mean_prompt, mean_output, fixed_slots, mean_cached)
        return profile.machine_s(prompt, output, fixed_slots, cached) / mean_s


# --- room for such requests -----------------------------------------------------------------------------
def promises_broken(option: Option, *, lost: bool = False) -> int:
    """Requests running at the option's instance whose promised TPOT breaks if this request joins them. `lost`: the SLO of this
    request is lost."""
    promised, prediction = option.instance.promised_tpot_s, option.prediction
    if not promised or prediction is None or prediction.tpot_s is None:
        return 0
    return bisect_left(promised, prediction.tpot_s / (_LOST_MARGIN if lost else _TPOT_MARGIN))


def has_room(option: Option) -> bool:
    """Whether a request whose SLO is lost delays no other there."""
    instance = option.instance
    usage = instance.report.kv_usage
    return (
        not promises_broken(option, lost=True)
        and not instance.awaiting_first_token
        and (usage is None or usage < _LOST_KV_USAGE)
    )
