"""What policies expect of an option: its time, its risk, and the time that it takes from other requests.

`ExpectedTime` is what `latency` minimises, and `slo` without the risk of a miss, in seconds:

    (1 - w) x (E[E2E] + added + later + P(miss) x allowed) + w x median TTFT,    w = `ttft_weight`

- `added`: the delay that the request causes to the sequences already there: its prefill, and a part of each decode step. Without
  it all requests would crowd the fastest instance, and each would cost the others more than it gains.
- `later`: the delay to the prompts that come while this one is prefilled. For x seconds of prefill that end t seconds from now,
  on an instance that gets r prompts a second and is busy with prefills for the share u of the time, it is

      3 x r / (1 - u) x x (t - x / 2)

  It grows with the square of x: a long prompt costs most on a narrow instance, and where many short ones arrive. Short prompts
  use a wide instance (of a larger tensor degree, or a faster GPU) while it is quiet, and go elsewhere as r and u grow there. r
  and u are exponential averages over the prompts that the policy sent to the instance.
- `allowed`: the time that the SLO allows for the whole answer. So a miss costs as much as an answer that takes this time.

Routing by marginal cost instead of own cost goes back to Pigou (The Economics of Welfare, 1920). `later` is the rise of the
relative value of an M/G/1 queue, r / (2 (1 - u)) x ((w + x)^2 - w^2) for a backlog w: the first step of policy iteration from
arrivals that are split at random, with sizes that differ by queue (Hyytiä, Penttinen and Aalto, European Journal of Operational
Research 218, 2012). The factor 3 is Headway's own: decoding takes a part of the engine too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf
from typing import cast

from router.core.interfaces import Option, Options
from router.core.option_columns import delays_s, later_s, parts_of, prefills_s
from router.core.types import Request, Slo

#: Of the averages of r and u.
_HORIZON_S = 60.0
#: What is older than this many horizons is forgotten.
_OLDEST = 10.0
_NONE = 0.0, 0.0

#: Expected tokens of the request's prompt that are in the prefix cache of an instance.
CachedTokens = Callable[[Request, str], float]


def none_cached(request: Request, instance: str) -> float:
    """Nothing is known of prefix caches."""
    return 0.0


class ExpectedTime:
    """See the module's docstring. What comes from the engine profile (`added`, `later`) is 0 without one."""

    def __init__(self, ttft_weight: float = 0.0, cached_tokens: CachedTokens = none_cached) -> None:
        self.ttft_weight = ttft_weight
        self._cached_tokens = cached_tokens
        #: By instance: prompts and the seconds of their prefills, each times exp((when it came - `_since_s`) / horizon).
        self._sent: dict[str, tuple[float, float]] = {}
        self._since_s = self._last_s = 0.0

    def of(
        self, request: Request, options: Sequence[Option], misses: Sequence[float] | None = None
    ) -> list[float]:
        """The time of each option in seconds; infinite if unknown. Without `misses`, their P(miss), risk does not count."""
        tokens: Sequence[float | None]
        if isinstance(options, Options):
            columns = options.columns
            e2es_s, ttfts_s, tokens = columns.e2e_s_mean, columns.ttft_s_p50, columns.output_tokens_mean
        else:
            e2es_s, ttfts_s, tokens = _of_each(options)
        cached = _cached(request, options, self._cached_tokens) if request.prefix else None
        prefills = prefills_s(options, request.prompt_tokens, cached)
        added = delays_s(options, tokens, request.prompt_tokens, prefills)
        now_s = request.arrived_at if request.arrived_at > self._last_s else self._last_s
        share = exp((self._since_s - now_s) / _HORIZON_S) / _HORIZON_S
        later = later_s(options, prefills, ttfts_s, self._sent, share)
        rest, weight, allowed_s = 1.0 - self.ttft_weight, self.ttft_weight, 0.0
        if misses is None:
            misses = [0.0] * len(options)
        elif request.slo is not None:
            allowed_s = _allowed_s(request.slo, tokens)
        return [
            rest * (e2e_s + delay_s + each + miss * allowed_s) + weight * ttft_s if e2e_s < inf else inf
            for e2e_s, delay_s, each, miss, ttft_s in zip(e2es_s, added, later, misses, ttfts_s, strict=True)
        ]

    def placed(self, request: Request, option: Option) -> None:
        """The prompt of `request` was sent there."""
        self._last_s = request.arrived_at if request.arrived_at > self._last_s else self._last_s
        age = (self._last_s - self._since_s) / _HORIZON_S
        if age > _OLDEST:
            kept = exp(-age)
            self._sent = {
                name: (prompts * kept, busy_s * kept)
                for name, (prompts, busy_s) in self._sent.items()
                if prompts > 1.0
            }
            self._since_s, age = self._last_s, 0.0
        cached = _cached(request, [option], self._cached_tokens) if request.prefix else None
        (prefill_s,) = prefills_s([option], request.prompt_tokens, cached)
        name, weight = option.candidate.instance, exp(age)
        prompts, busy_s = self._sent.get(name, _NONE)
        self._sent[name] = prompts + weight, busy_s + weight * prefill_s


def _of_each(options: Sequence[Option]) -> tuple[Sequence[float], Sequence[float], Sequence[float | None]]:
    """By option: mean E2E, infinite if unknown; median TTFT, the E2E if unknown; and expected tokens of the answer, None without a
    prediction."""
    e2es_s = [expected_s(option) for option in options]
    ttfts_s = [
        e2e_s if (found := option.prediction) is None or found.ttft_s_p50 is None else found.ttft_s_p50
        for option, e2e_s in zip(options, e2es_s, strict=True)
    ]
    return e2es_s, ttfts_s, _output_tokens(options)


def _allowed_s(slo: Slo, tokens: Sequence[float | None]) -> float:
    """How long the SLO lets the answer take in seconds, by its longest expected length. A target that is not set allows
    nothing."""
    if slo.e2e_s is not None:
        return slo.e2e_s
    return (slo.ttft_s or 0.0) + (slo.tpot_s or 0.0) * max([each or 0.0 for each in tokens])


def expected_s(option: Option) -> float:
    """Expected E2E of an option in seconds; infinite if unknown."""
    prediction = option.prediction
    return inf if prediction is None or prediction.e2e_s_mean is None else prediction.e2e_s_mean


def added_s(
    request: Request, options: Sequence[Option], cached_tokens: CachedTokens = none_cached
) -> list[float]:
    """By option: expected seconds that the request adds to the E2E of all sequences at its instance, in total."""
    cached = _cached(request, options, cached_tokens) if request.prefix else None
    prefills = prefills_s(options, request.prompt_tokens, cached)
    return delays_s(options, _output_tokens(options), request.prompt_tokens, prefills)


def _cached(request: Request, options: Sequence[Option], cached_tokens: CachedTokens) -> list[float]:
    """By option: expected tokens of the prompt in the prefix cache."""
    return [cached_tokens(request, candidate.instance) for candidate in parts_of(options)[0]]


def _output_tokens(options: Sequence[Option]) -> Sequence[float | None]:
    """By option: expected tokens of the answer; None without a prediction."""
    if isinstance(options, Options):
        return options.columns.output_tokens_mean
    return [
        None if (found := option.prediction) is None else found.output_tokens_mean or 0.0
        for option in options
    ]


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
    return [1.0 if (found := option.prediction) is None else found.p_miss or 0.0 for option in options]
