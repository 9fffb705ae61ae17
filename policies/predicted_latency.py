"""`predicted_latency`: the least positive headroom under the SLO, as llm-d schedules by predicted latency;
`most_headroom`: the most, which is llm-d's other strategy.

An option's headroom is the SLO's target less the predicted p90, of TTFT and of TPOT. Options are parted in two:

1. those that keep every target. Each headroom is put on [0, 1] among them, and the least
   0.8 x TTFT's + 0.2 x TPOT's is taken (best fit: what has more to spare is left for requests that need it), or
   with `most_headroom` the most;
2. if there is none, those that miss one: idle ones first, then those that miss only TPOT, then only TTFT, then both;
   among these the least 0.8 x and 0.2 x of what is missed, put on [0, 1] in the same way.

One request in a hundred explores: it is placed by rule 2 though rule 1 has options. A request without an SLO goes
where TTFT + TPOT x expected tokens is least. Ties are drawn evenly (by the request's seed when it has one).

After llm-d's latency-scorer (its README and the predicted-latency guide). What is added here: an E2E target, which
llm-d does not have, counts beside that of TTFT, since both are met or missed in whole seconds; and what predicts
knows kinds of hardware (`predictors.learned.trees`). Without trees the p95 of TTFT and the TPOT of the options' own
predictions serve. What is left out: keeping to an instance because it holds the prompt, which llm-d does for matches
of 99 % at any price up to 5 s of TTFT; here the trees are told of the match.

Best fit fills an instance until its p90 is the target: requests that come later then take those already there past
it, and replicas that are alike gain nothing by it. The most headroom spreads instead, and keeps more SLOs unless
there is more work than all can do; so it is the one to measure others against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from random import Random
from typing import NamedTuple

from policies.picking import by_name, told_s
from router.core.interfaces import Choice, Option
from router.core.types import Request, Slo

#: Weights of the headroom (and of what is missed) in TTFT and in TPOT, and the part of requests that explore.
_TTFT_WEIGHT, _TPOT_WEIGHT = 0.8, 0.2
EXPLORE = 0.01

#: By option p90 of TTFT from the arrival and of TPOT in seconds; None where nobody can tell.
TreeTimes = Callable[[Request, Sequence[Option]], Sequence[tuple[float, float]] | None]


class _Room(NamedTuple):
    """An option's headroom in seconds, negative where a target is missed; 0 without a target."""

    ttft_s: float
    tpot_s: float

    @property
    def keeps(self) -> bool:
        return self.ttft_s >= 0.0 and self.tpot_s >= 0.0


class PredictedLatency:
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
            return _least(options, range(len(options)), scores, scores, draw, 1.0, "slower")

        slo = request.slo
        rooms = [_room(slo, option, of) for option, of in zip(options, times, strict=True)]
        keeping = [at for at, room in enumerate(rooms) if room.keeps]
        missing = [at for at, room in enumerate(rooms) if not room.keeps]
        ttfts_s = [ttft_s for ttft_s, _ in times]
        propensity = 1.0
        if keeping and missing:
            explores = draw.random() < EXPLORE
            propensity = EXPLORE if explores else 1.0 - EXPLORE
            if explores:
                keeping = []
        if keeping:
            blend = _blend([rooms[at] for at in keeping])
            reason = "more headroom: kept free for requests that need it"
            if self._most:
                blend = [-value for value in blend]
                reason = "less headroom"
        else:
            keeping = _least_bad(options, rooms, missing)
            blend = _blend([_missed(rooms[at]) for at in keeping])
            reason = "further from its SLO, or busy"
        ranks = [inf] * len(options)
        for at, value in zip(keeping, blend, strict=True):
            ranks[at] = value
        choice = _least(options, keeping, ranks, ttfts_s, draw, propensity, reason)
        return Choice(
            choice.index,
            choice.scores,
            [
                f"predicted to miss its SLO: TTFT {told_s(ttfts_s[at])}"
                if why is not None and not rooms[at].keeps
                else why
                for at, why in enumerate(choice.reasons)
            ],
            choice.propensity,
        )

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Nothing to count."""


def _own_times(option: Option) -> tuple[float, float]:
    """(TTFT, TPOT) in seconds of the option's own prediction, infinite where it is not known."""
    prediction = option.prediction
    if prediction is None:
        return inf, inf
    return (
        inf if prediction.ttft_s_p95 is None else prediction.ttft_s_p95,
        inf if prediction.tpot_s is None else prediction.tpot_s,
    )


def _e2e_s(option: Option, times: tuple[float, float]) -> float:
    """Predicted time of a whole answer of the expected length; TTFT alone where no answer is decoded."""
    ttft_s, tpot_s = times
    prediction = option.prediction
    tokens = 1.0 if prediction is None else prediction.output_tokens_p50 or 1.0
    return ttft_s + tpot_s * (tokens - 1.0) if tokens > 1.0 else ttft_s


def _room(slo: Slo, option: Option, times: tuple[float, float]) -> _Room:
    ttft_s = inf if slo.ttft_s is None else slo.ttft_s - times[0]
    if slo.e2e_s is not None:
        ttft_s = min(ttft_s, slo.e2e_s - _e2e_s(option, times))
    return _Room(
        0.0 if ttft_s == inf else ttft_s,
        0.0 if slo.tpot_s is None else slo.tpot_s - times[1],
    )


def _missed(room: _Room) -> _Room:
    """How far beyond its targets an option is, in seconds."""
    return _Room(max(-room.ttft_s, 0.0), max(-room.tpot_s, 0.0))


def _least_bad(options: Sequence[Option], rooms: Sequence[_Room], missing: Sequence[int]) -> list[int]:
    """Of options that miss a target the idle ones; without any, those that miss the least of a kind."""
    idle = [at for at in missing if options[at].instance.running == 0]
    if idle:
        return idle
    kinds = [(rooms[at].ttft_s < 0.0, rooms[at].tpot_s < 0.0) for at in missing]
    best = min(kinds)  # (no TTFT missed, TPOT missed) < (TTFT, no TPOT) < (both)
    return [at for at, kind in zip(missing, kinds, strict=True) if kind == best]


def _blend(rooms: Sequence[_Room]) -> list[float]:
    """0.8 x TTFT's + 0.2 x TPOT's, each put on [0, 1] among the given; one that does not differ has no weight."""
    ttfts = _unit([room.ttft_s for room in rooms])
    tpots = _unit([room.tpot_s for room in rooms])
    if ttfts is None:
        return [0.0] * len(rooms) if tpots is None else tpots
    if tpots is None:
        return ttfts
    return [_TTFT_WEIGHT * ttft + _TPOT_WEIGHT * tpot for ttft, tpot in zip(ttfts, tpots, strict=True)]


def _unit(values: Sequence[float]) -> list[float] | None:
    """Values put on [0, 1]; None if all are the same. What is not finite is beyond the others."""
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
    reason: str,
) -> Choice:
    """The least rank among some options, ties drawn evenly in the order of their names."""
    least = min(ranks[at] for at in among)
    tied = {at for at in among if ranks[at] == least}
    index = next(iter(tied))
    if len(tied) > 1:
        names = [at for at in by_name(options) if at in tied]
        index = names[int(draw.random() * len(names))]
        propensity /= len(names)
    reasons: list[str | None] = [reason] * len(options)
    reasons[index] = None
    scores = [score_s if isfinite(score_s) else None for score_s in scores_s]
    return Choice(index, scores, reasons, propensity)
