"""The value of asking one model, checking its answer, and asking another model if the check finds it poor.

- q: the probability that the first answer is good: its predicted quality.
- The check sees z ~ N(d/2, 1) of a good answer and N(-d/2, 1) of a poor one (signal detection with equal variances:
  Green and Swets, 1966). d follows from the check's AUC, which is Phi(d / sqrt 2). After it the answer is good with
  probability p: logit p = logit q + d z.
- Answers to one prompt fail together. So with p the other model's quality changes too, to q' + b (p - q). b is
  _CORRELATION x the ratio of the standard deviations of both answers' qualities.
- The second answer pays if q' + b (p - q) - p is more than `price`, its cost in units of quality. So it pays if p is below a
  threshold. How often that happens, and the expected quality, are known before the first answer (`plan`).

A check gives a score on some scale, and may be lenient or strict. `ScoreScale` turns the score into z by its rank among recent
scores. So only d of a check must be known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from math import exp, inf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

from policies.expected import p_miss
from policies.quality_price_estimator import Offer
from router.core.interfaces import CheckedAnswer, Option
from router.core.types import Prediction, Request

_NORMAL = NormalDist()
_NO_PREDICTION = Prediction()
#: Correlation of the qualities of two models' answers to one prompt, beyond what is predicted: its median over pairs of models
#: on held-out prompts (docs/pickers.md).
_CORRELATION = 0.35
#: Predicted qualities are taken as at least this far from 0 and 1.
_EDGE = 0.01
#: The first scores of `ScoreScale`, and the mean quality of their answers.
_FIRST_SCORES = tuple(0.05 + 0.1 * at for at in range(10))
_FIRST_QUALITY = 0.7
#: It compares with this many recent scores. The precision of z, and its largest value.
_MEMORY = 500
_EXACT_Z, _MOST_Z = 1e-3, 6.0


def dprime(auc: float) -> float:
    """d of a check, from the probability that it rates a good answer above a poor one (0.5 <= auc < 1)."""
    return sqrt(2.0) * _NORMAL.inv_cdf(auc)


class Plan(NamedTuple):
    """How often the other model is asked, and the expected quality of what is delivered."""

    goes_on: float
    quality: float


def plan(quality: float, other: float, price: float, d: float) -> Plan | None:
    """The plan to ask for the `other` answer, at a `price` in units of quality, after one of this expected quality. None if
    that never pays."""
    quality = _inside(quality)
    slope = _slope(quality, other)
    if d <= 0.0 or slope >= 1.0:
        return None
    threshold = (other - slope * quality - price) / (1.0 - slope)
    if threshold <= 0.0:
        return None
    if threshold >= 1.0:
        return Plan(1.0, other)
    z = (_logit(threshold) - _logit(quality)) / d
    good = quality * _NORMAL.cdf(z - d / 2)  # it is good, and the other model is asked all the same
    goes_on = good + (1.0 - quality) * _NORMAL.cdf(z + d / 2)
    gained = goes_on * (other - slope * quality) - (1.0 - slope) * good
    return Plan(goes_on, quality + gained)


def offer(first: Offer, other: Offer, check_usd: float, quality_usd: float, d: float) -> Offer | None:
    """The offer of a model whose answer is checked for `check_usd`, with the `other` answer where it pays at `quality_usd` for a
    unit of quality. None if it never pays."""
    other_risk = other.quality - other.value
    found = plan(first.quality, other.quality, other.cost_usd / quality_usd + other_risk, d)
    if found is None:
        return None
    risk = first.quality - first.value + found.goes_on * other_risk
    cost_usd = first.cost_usd + check_usd + found.goes_on * other.cost_usd
    return Offer(found.quality - risk, cost_usd, found.quality)


def after(quality: float, z: float, d: float) -> float:
    """The expected quality of an answer after its check."""
    return 1.0 / (1.0 + exp(-_logit(_inside(quality)) - d * z))


def other_after(other: float, quality: float, checked: float) -> float:
    """The expected quality of another model's answer, if the check has moved that of the first one from `quality` to
    `checked`."""
    quality = _inside(quality)
    return other + _slope(quality, other) * (checked - quality)


def best(
    request: Request,
    options: Sequence[Option],
    offers: Sequence[Offer],
    by_model: Sequence[int],
    quality_usd: float,
) -> tuple[int, Offer | None]:
    """The second look of least score: its first option, and its offer (None: there is none). A cheaper model is asked
    first."""
    least, found, check = (inf, 0), None, request.check
    assert check is not None  # noqa: S101 (the caller looks)
    for first in by_model:
        tokens = _prediction(options[first]).output_tokens_mean or 0.0
        check_usd = check.cost_usd(request.prompt_tokens, tokens)
        for other in by_model:
            if offers[first].cost_usd + check_usd >= offers[other].cost_usd:
                continue
            if not _may_follow(request, options[first], options[other]):
                continue
            each = offer(offers[first], offers[other], check_usd, quality_usd, check.dprime)
            if each is not None:
                score = each.cost_usd - quality_usd * each.value, first
                if score < least:
                    least, found = score, each
    return least[1], found


def may_replace(request: Request, answer: CheckedAnswer, option: Option, epsilon: float) -> bool:
    """Whether this option may answer in place of the checked answer: in time, and within the money cap."""
    if option.candidate.model == answer.candidate.model or p_miss(option) > epsilon:
        return False
    cap_usd = request.max_cost_usd
    return cap_usd is None or answer.cost_usd + _long_answer_usd(request, option) <= cap_usd


def _may_follow(request: Request, first: Option, other: Option) -> bool:
    """Whether `other` may be asked after the answer of `first` was checked: all steps are in time if each is within its 95 %
    quantile, and the money cap pays for both answers."""
    cap_usd, slo, check = request.max_cost_usd, request.slo, request.check
    if cap_usd is not None and _long_answer_usd(request, first) + _long_answer_usd(request, other) > cap_usd:
        return False
    if slo is None or check is None:
        return True
    answer_s, then = _prediction(first).e2e_s_p95, _prediction(other)
    for target_s, then_s in ((slo.ttft_s, then.ttft_s_p95), (slo.e2e_s, then.e2e_s_p95)):
        if target_s is not None and (
            answer_s is None or then_s is None or answer_s + check.limit_s + then_s > target_s
        ):
            return False
    return slo.tpot_s is None or p_miss(other) <= p_miss(first)


def _long_answer_usd(request: Request, option: Option) -> float:
    """The price of a long answer: the 90 % quantile of its length. An unknown length counts as the request's bound."""
    tokens = _prediction(option).output_tokens_p90
    bound = inf if request.max_tokens is None else request.max_tokens
    least = bound if tokens is None else min(tokens, bound)
    return inf if least == inf else option.candidate.price.cost_usd(request.prompt_tokens, least)


def _prediction(option: Option) -> Prediction:
    return option.prediction or _NO_PREDICTION


class ScoreScale:
    """Turns a check's scores into z by their rank among recent scores. z of good and poor answers together has a known
    distribution, because the mean quality of the answers is predicted."""

    def __init__(self) -> None:
        self._recent = deque(_FIRST_SCORES)
        self._sorted = list(_FIRST_SCORES)
        self._quality = _FIRST_QUALITY

    def z(self, score: float, quality: float, d: float) -> float:
        """The z of a score, where this quality was predicted. The scale learns from it."""
        count = len(self._sorted)
        rank = (bisect_left(self._sorted, score) + bisect_right(self._sorted, score) + 1) / (2 * count + 2)
        self._quality += (quality - self._quality) / (count + 1)
        self._recent.append(score)
        insort(self._sorted, score)
        if count >= _MEMORY:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        low, high = -_MOST_Z, _MOST_Z
        while high - low > _EXACT_Z:
            z = (low + high) / 2
            good, poor = _NORMAL.cdf(z - d / 2), _NORMAL.cdf(z + d / 2)
            if self._quality * good + (1.0 - self._quality) * poor < rank:
                low = z
            else:
                high = z
        return (low + high) / 2


def _slope(quality: float, other: float) -> float:
    other = _inside(other)
    return _CORRELATION * sqrt(other * (1.0 - other) / (quality * (1.0 - quality)))


def _inside(quality: float) -> float:
    return min(max(quality, _EDGE), 1.0 - _EDGE)


def _logit(p: float) -> float:
    return log(p / (1.0 - p))
