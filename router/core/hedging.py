"""When a second attempt beside the first pays.

A request whose first token is not there at the predicted 95 % quantile of TTFT may have met a stuck instance. Let
m be the probability of a miss that was predicted at its dispatch, v that of the best other candidate now.

- That nothing came until t makes a miss more likely: m' = m / P(TTFT > t), where TTFT is taken as lognormal with
  the predicted median and 95 % quantile, and m as no less than P(TTFT > its target). At the target m' is 1.
- A hedge rescues it with probability m' x (1 - v), at the price of the loser's prompt, and of the difference
  between the two answers where the hedge wins.
- It is sent if gain x worth > expected extra price. `worth` is what a kept SLO is worth, in prices of an answer.
  If it does not pay yet, it is thought over again each time the wait has grown by a quarter.

Both are paid; the sum of both is reserved against a money cap (`RequestMoney.output_bound`). Source: "The tail at
scale" (Dean and Barroso, CACM 56(2), 2013) for waiting until the 95 % quantile; the calibrated gain is ours.
"""

from __future__ import annotations

from math import log
from statistics import NormalDist

from router.core.interfaces import Option
from router.core.request_state import AttemptState
from router.core.types import Prediction, Request

_NORMAL = NormalDist()
#: Standard deviations from the median to the 95 % quantile.
_TO_P95 = _NORMAL.inv_cdf(0.95)
_LEAST_SPREAD = 0.05
_LEAST_TAIL = 1e-9
_GROWS = 1.25
#: Least gain in the probability of keeping the SLO: below it predictions cannot tell.
LEAST_GAIN = 0.1


def may(request: Request) -> bool:
    """Whether a request may have a second attempt at all: where a late first token breaks a target."""
    slo = request.slo
    if not request.hedges or not request.decodes or slo is None:
        return False
    return slo.ttft_s is not None or slo.e2e_s is not None


def hedge_at(request: Request, prediction: Prediction) -> float | None:
    """When the first token is so late that a second attempt may pay (on the runner's clock); None for never."""
    if prediction.ttft_s_p95 is None or not may(request):
        return None
    return request.arrived_at + prediction.ttft_s_p95


def again_at(request: Request, now: float) -> float | None:
    """When to think it over again; None once every target that a first token breaks has passed."""
    slo = request.slo
    targets = [] if slo is None else [each for each in (slo.ttft_s, slo.e2e_s) if each is not None]
    at = request.arrived_at + _GROWS * (now - request.arrived_at)
    return at if at > now and targets and at < request.arrived_at + max(targets) else None


def _later_than(attempt: AttemptState, waited_s: float) -> float:
    """P(TTFT > this long after the arrival), as predicted at the dispatch."""
    told = attempt.prediction
    if told.ttft_s_p50 is None or told.ttft_s_p95 is None or min(told.ttft_s_p50, waited_s) <= 0.0:
        return 1.0
    spread = max(log(max(told.ttft_s_p95 / told.ttft_s_p50, 1.0)) / _TO_P95, _LEAST_SPREAD)
    return max(1.0 - _NORMAL.cdf(log(waited_s / told.ttft_s_p50) / spread), _LEAST_TAIL)


def gain(request: Request, attempt: AttemptState, other: Prediction, now: float) -> float:
    """How much a second attempt adds to the probability that the SLO is kept."""
    missed = attempt.prediction.p_miss or 0.0
    slo = request.slo
    if slo is not None and slo.ttft_s is not None:
        missed = max(missed, _later_than(attempt, slo.ttft_s))
    missed = min(1.0, missed / _later_than(attempt, now - request.arrived_at))
    return missed * (1.0 - (1.0 if other.p_miss is None else other.p_miss))


def pays(request: Request, attempt: AttemptState, option: Option, worth: float, now: float) -> bool:
    """Whether a second attempt at `option` gains more than it costs."""
    other = option.prediction
    if other is None:
        return False
    gained = gain(request, attempt, other, now)
    if gained < LEAST_GAIN:
        return False
    prompt_tokens = request.prompt_tokens
    cost_usd = attempt.prediction.cost_usd or 0.0
    prompt_usd = attempt.candidate.price.cost_usd(prompt_tokens, 0)
    other_prompt_usd = option.candidate.price.cost_usd(prompt_tokens, 0)
    dearer_usd = (other.cost_usd or 0.0) + prompt_usd - cost_usd  # if the hedge wins
    extra_usd = gained * dearer_usd + (1.0 - gained) * other_prompt_usd
    return gained * worth * cost_usd >= extra_usd
