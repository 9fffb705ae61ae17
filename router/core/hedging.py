"""When a second attempt beside the first pays.

A request whose first token is not there at the predicted 95 % quantile of TTFT may have met a stuck instance. Let
m be the probability of a miss that was predicted at its dispatch, v that of the best other candidate now.

- That nothing came by the 95 % quantile makes a miss 1 / 0.05 times as likely: m' = min(1, m / 0.05).
- A hedge rescues it with probability m' x (1 - v), at the price of the loser's prompt, and of the difference
  between the two answers where the hedge wins.
- It is sent if gain x worth > expected extra price. `worth` is what a kept SLO is worth, in prices of an answer.

Both are paid; the sum of both is reserved against a money cap (`Live.output_bound`). Source: "The tail at
scale" (Dean and Barroso, CACM 56(2), 2013) for waiting until the 95 % quantile; the calibrated gain is ours.
"""

from __future__ import annotations

from router.core.interfaces import Option
from router.core.live import Attempt
from router.core.types import Prediction, Request

#: Share of answers whose first token is later than predicted for the 95 % quantile.
_LATE = 0.05
#: Least gain in the probability of keeping the SLO: below it predictions cannot tell.
LEAST_GAIN = 0.1


def hedge_at(request: Request, prediction: Prediction) -> float | None:
    """When the first token is so late that a second attempt may pay (on the runner's clock); None for never."""
    slo = request.slo
    if not request.hedges or not request.decodes or slo is None or prediction.ttft_s_p95 is None:
        return None
    if slo.ttft_s is None and slo.e2e_s is None:
        return None  # a late first token breaks no target
    return request.arrived_at + prediction.ttft_s_p95


def gain(attempt: Attempt, other: Prediction) -> float:
    """How much a second attempt adds to the probability that the SLO is kept."""
    missed = min(1.0, (attempt.prediction.p_miss or 0.0) / _LATE)
    return missed * (1.0 - (1.0 if other.p_miss is None else other.p_miss))


def pays(request: Request, attempt: Attempt, option: Option, worth: float) -> bool:
    """Whether a second attempt at `option` gains more than it costs."""
    other = option.prediction
    if other is None:
        return False
    gained = gain(attempt, other)
    if gained < LEAST_GAIN:
        return False
    prompt_tokens = request.prompt_tokens
    cost_usd = attempt.prediction.cost_usd or 0.0
    prompt_usd = attempt.candidate.price.cost_usd(prompt_tokens, 0)
    other_prompt_usd = option.candidate.price.cost_usd(prompt_tokens, 0)
    dearer_usd = (other.cost_usd or 0.0) + prompt_usd - cost_usd  # if the hedge wins
    extra_usd = gained * dearer_usd + (1.0 - gained) * other_prompt_usd
    return gained * worth * cost_usd >= extra_usd
