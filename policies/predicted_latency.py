"""`predicted_latency`: the least positive headroom under the SLO, after llm-d's scheduling by predicted latency.
`most_headroom`: the greatest headroom, which is llm-d's other strategy.

An option's headroom is the SLO's target minus the predicted p90, for TTFT and for TPOT. There are two rules:

1. If some options meet every target: each headroom is scaled to [0, 1] among them, and the least
   0.8 x TTFT headroom + 0.2 x TPOT headroom wins (best fit: options with more headroom stay free for requests that need
   it). With `most_headroom` the greatest wins.
2. Otherwise: idle options come first, then those that miss only TPOT, then only TTFT, then both. Among these the least
   0.8 x TTFT excess + 0.2 x TPOT excess wins, scaled to [0, 1] in the same way.

One request in a hundred explores: rule 2 places it although rule 1 has options. A request without an SLO goes to the
least TTFT + TPOT x expected tokens. Ties are drawn evenly, by `request.seed` if it is set.

Source: llm-d's latency-scorer (its README and the predicted-latency guide), with these differences:

- An E2E target, which llm-d does not have, counts beside the TTFT target: both are met or missed in whole seconds.
- The predictor knows kinds of hardware (`predictors.learned.trees`). Without trees the policy uses the p95 of TTFT and
  the TPOT of the options' own predictions.
- llm-d keeps a request at an instance that holds 99 % of its prompt, at any price up to 5 s of TTFT. Here the match is
  an input of the trees instead.

Best fit fills an instance until its p90 reaches the target. Later requests then push the ones already there past it,
and equal replicas gain nothing by it. `most_headroom` spreads requests and meets more SLOs, unless the load exceeds the
fleet's capacity. So it is the one to compare other policies with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from random import Random
from typing import NamedTuple

from policies.picking import Reasons, by_name, format_s, known
from policies.settings import TreeTimes
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request, Slo

#: Weights of the headroom (and of the excess) in TTFT and in TPOT.
_TTFT_WEIGHT, _TPOT_WEIGHT = 0.8, 0.2
#: Share of requests that explore.
EXPLORE = 0.01


class _Headroom(NamedTuple):
    """In seconds: negative if the target is missed, 0 without a target."""

    ttft_s: float
    tpot_s: float

    @property
    def meets(self) -> bool:
        return self.ttft_s >= 0.0 and self.tpot_s >= 0.0


class PredictedLatency(Policy):
    """See the module's docstring. The score is the predicted TTFT, or E2E for a request without an SLO, in seconds."""

    name = "predicted_latency"
    predicts = True

    def __init__(self, tree_times: TreeTimes | None = None, *, most: bool = False) -> None:
        self._tree_times = tree_times
        self._most = most
        if most:
            self.name = "most_headroom"

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        times = None if self._tree_times is None else self._tree_times(request, options)
        if times is None:
            times = [_own_times(option) for option in options]
        draw = rng if request.seed is None else Random(request.seed)
        if request.slo is None:
            scores = [_e2e_s(option, of) for option, of in zip(options, times, strict=True)]
            return _least(options, range(len(options)), scores, scores, draw, 1.0, lambda at: "slower")

        slo = request.slo
        headrooms = [_headroom(slo, option, of) for option, of in zip(options, times, strict=True)]
        meeting = [at for at, headroom in enumerate(headrooms) if headroom.meets]
        missing = [at for at, headroom in enumerate(headrooms) if not headroom.meets]
        ttfts_s = [ttft_s for ttft_s, _ in times]
        propensity = 1.0
        if meeting and missing:
            explores = draw.random() < EXPLORE
            propensity = EXPLORE if explores else 1.0 - EXPLORE
            if explores:
                meeting = []
        if meeting:
            among = meeting
            blend = _blend([headrooms[at] for at in among])
            reason = "more headroom: kept free for requests that need it"
            if self._most:
                blend = [-value for value in blend]
                reason = "less headroom"
        else:
            among = _least_excess(options, headrooms, missing)
            blend = _blend([_excess(headrooms[at]) for at in among])
            reason = "further from its SLO, or busy"
        ranks = [inf] * len(options)
        for at, value in zip(among, blend, strict=True):
            ranks[at] = value

        def why(at: int) -> str:
            if headrooms[at].meets:
                return reason
            return f"predicted to miss its SLO: TTFT {format_s(ttfts_s[at])}"

        return _least(options, among, ranks, ttfts_s, draw, propensity, why)


def _own_times(option: Option) -> tuple[float, float]:
    """(TTFT, TPOT) in seconds of the option's own prediction; infinite if unknown."""
    prediction = option.prediction
    if prediction is None:
        return inf, inf
    return (
        inf if prediction.ttft_s_p95 is None else prediction.ttft_s_p95,
        inf if prediction.tpot_s is None else prediction.tpot_s,
    )


def _e2e_s(option: Option, times: tuple[float, float]) -> float:
    """Predicted time in seconds of an answer of the expected length; TTFT alone if nothing is decoded."""
    ttft_s, tpot_s = times
    prediction = option.prediction
    tokens = 1.0 if prediction is None else prediction.output_tokens_p50 or 1.0
    return ttft_s + tpot_s * (tokens - 1.0) if tokens > 1.0 else ttft_s


def _headroom(slo: Slo, option: Option, times: tuple[float, float]) -> _Headroom:
    ttft_s = inf if slo.ttft_s is None else slo.ttft_s - times[0]
    if slo.e2e_s is not None:
        ttft_s = min(ttft_s, slo.e2e_s - _e2e_s(option, times))
    return _Headroom(0.0 if ttft_s == inf else ttft_s, 0.0 if slo.tpot_s is None else slo.tpot_s - times[1])


def _excess(headroom: _Headroom) -> _Headroom:
    """By how many seconds an option misses its targets."""
    return _Headroom(max(-headroom.ttft_s, 0.0), max(-headroom.tpot_s, 0.0))


def _least_excess(
    options: Sequence[Option], headrooms: Sequence[_Headroom], missing: Sequence[int]
) -> list[int]:
    """Of options that miss a target: the idle ones, or without any those of the least bad kind of miss."""
    idle = [at for at in missing if options[at].instance.running == 0]
    if idle:
        return idle
    kinds = [(headrooms[at].ttft_s < 0.0, headrooms[at].tpot_s < 0.0) for at in missing]
    best = min(kinds)  # misses TPOT only < TTFT only < both
    return [at for at, kind in zip(missing, kinds, strict=True) if kind == best]


def _blend(headrooms: Sequence[_Headroom]) -> list[float]:
    """0.8 x TTFT + 0.2 x TPOT, each scaled to [0, 1] among `headrooms`. One that is the same for all has no weight."""
    ttfts = _unit([headroom.ttft_s for headroom in headrooms])
    tpots = _unit([headroom.tpot_s for headroom in headrooms])
    if ttfts is None:
        return [0.0] * len(headrooms) if tpots is None else tpots
    if tpots is None:
        return ttfts
    return [_TTFT_WEIGHT * ttft + _TPOT_WEIGHT * tpot for ttft, tpot in zip(ttfts, tpots, strict=True)]


def _unit(values: Sequence[float]) -> list[float] | None:
    """Values scaled to [0, 1]; None if all are the same. Infinite ones lie outside: 2 or -1."""
    finite = [value for value in values if isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    span = high - low
    if span <= 0.0 and len(finite) == len(values):
        return None
    return [
        ((value - low) / span if span > 0.0 else 0.0) if isfinite(value) else (2.0 if value > 0.0 else -1.0)
        for value in values
    ]


def _least(
    options: Sequence[Option],
    among: Sequence[int],
    ranks: Sequence[float],
    scores_s: Sequence[float],
    draw: Random,
    propensity: float,
    why: Callable[[int], str],
) -> Choice:
    """The least rank among some options. Ties are drawn evenly, in the order of names."""
    least = min(ranks[at] for at in among)
    tied = {at for at in among if ranks[at] == least}
    index = next(iter(tied))
    if len(tied) > 1:
        names = [at for at in by_name(options) if at in tied]
        index = names[int(draw.random() * len(names))]
        propensity /= len(names)
    return Choice(index, known(scores_s), Reasons(len(options), index, why), propensity)
