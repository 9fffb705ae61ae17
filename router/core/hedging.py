"""When a second attempt beside the first one pays.

If a request has no first token at the predicted 95 % quantile of TTFT, its instance may be stuck. Let m be the
probability of a miss that was predicted at its dispatch, and v that of the best other candidate now.

- No token until time t makes a miss more likely: m' = m / P(TTFT > t). TTFT is taken as lognormal with the predicted
  median and 95 % quantile, and m as at least P(TTFT > its target). At the target m' is 1.
- A hedge saves the SLO with probability m' x (1 - v). It costs the loser's prompt, and the price difference of the two
  answers if the hedge wins.
- It is sent if gain x worth > expected extra price. `worth` is the value of a met SLO, in prices of an answer. If it
  does not pay yet, it is considered again each time the wait has grown by a quarter.

Both attempts are paid. The sum of both counts against a money cap (`RequestMoney.output_bound`). Source: "The tail at
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
#: The least gain in the probability of meeting the SLO: predictions are not exact enough for less.
LEAST_GAIN = 0.1


def may(request: Request) -> bool:
    """Whether a request may have a second attempt at all: a late first token must break one of its targets."""
    slo = request.slo
    if not request.hedges or not request.decodes or slo is None:
        return False
    return slo.ttft_s is not None or slo.e2e_s is not None


def hedge_at(request: Request, prediction: Prediction) -> float | None:
    """When the first token is late enough for a second attempt (on the runner's clock); None for never."""
    if prediction.ttft_s_p95 is None or not may(request):
        return None
    return request.arrived_at + prediction.ttft_s_p95


def again_at(request: Request, now: float) -> float | None:
    """When to consider a hedge again; None when every target that depends on the first token has passed."""
    slo = request.slo
    targets = [] if slo is None else [each for each in (slo.ttft_s, slo.e2e_s) if each is not None]
    at = request.arrived_at + _GROWS * (now - request.arrived_at)
    return at if at > now and targets and at < request.arrived_at + max(targets) else None


def _later_than(attempt: AttemptState, waited_s: float) -> float:
    """P(TTFT > this long after the arrival), as predicted at the dispatch."""
    predicted = attempt.prediction
    if (
        predicted.ttft_s_p50 is None
        or predicted.ttft_s_p95 is None
        or min(predicted.ttft_s_p50, waited_s) <= 0.0
    ):
        return 1.0
    spread = max(log(max(predicted.ttft_s_p95 / predicted.ttft_s_p50, 1.0)) / _TO_P95, _LEAST_SPREAD)
    return max(1.0 - _NORMAL.cdf(log(waited_s / predicted.ttft_s_p50) / spread), _LEAST_TAIL)


def gain(request: Request, attempt: AttemptState, other: Prediction, now: float) -> float:
    """The increase of the probability that the SLO is met, by a second attempt."""
    missed = attempt.prediction.p_miss or 0.0
    slo = request.slo
    if slo is not None and slo.ttft_s is not None:
        missed = max(missed, _later_than(attempt, slo.ttft_s))
    missed = min(1.0, missed / _later_than(attempt, now - request.arrived_at))
    return missed * (1.0 - (1.0 if other.p_miss is None else other.p_miss))


def pays(request: Request, attempt: AttemptState, option: Option, worth: float, now: float) -> bool:
    """Whether a second attempt at `option` is worth more than it costs."""
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
