"""Hard SLO admission: can the free options meet the SLO now, or could a queued request still meet it?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist

from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, Considered, Request

_ROUNDING = 1e-9
#: If no option meets a hard SLO with the configured confidence, an idle instance is tried all the same, if its chance is at
#: least this, and if fewer than this number of attempts have ended there, or none for this many seconds. Otherwise a gateway
#: that gets only requests with hard SLOs would never learn that its predictions are too pessimistic.
_TRIED_CHANCE, _FEW_ENDED, _LONG_S = 0.5, 8, 30.0
#: After this many seconds an idle instance is tried whatever its chance, if it can be in time. The engine may have been slow
#: for a short time only, such as after its start, and only an answer would show that it no longer is.
_VERY_LONG_S = 300.0
#: The shortest decode time to expect, as a share of the predicted median.
_LEAST_OF_MEDIAN = 0.5


def least_miss(options: Sequence[Option]) -> float:
    """The lowest predicted probability of an SLO miss."""
    return min(map(_p_miss, options))


def keeping(options: Sequence[Option], confidence: float) -> tuple[list[Option], list[tuple[Candidate, str]]]:
    """The options that meet the SLO with this confidence, and the others, each with a reason."""
    epsilon = 1.0 - confidence + _ROUNDING
    kept, risky = [], []
    for option in options:
        if _p_miss(option) <= epsilon:
            kept.append(option)
        else:
            risky.append((option.candidate, _risk(option)))
    return kept, risky


def trial(options: Sequence[Option], now: float, can_meet: Callable[[Option], bool]) -> Option | None:
    """The option for a hard SLO that no option meets with the required confidence: of the idle instances with few
    recent answers, the most likely one to meet it. None if there is none. `can_meet` says whether an idle instance
    could."""
    unsure = [
        each
        for each in options
        if not each.instance.running
        and _few_recent_answers(each.instance, now)
        and (
            _p_miss(each) <= 1.0 - _TRIED_CHANCE or (_no_recent_answer(each.instance, now) and can_meet(each))
        )
    ]
    return min(unsure, key=_p_miss, default=None)


def _few_recent_answers(instance: Instance, now: float) -> bool:
    ended_at = instance.released_at
    return instance.ended < _FEW_ENDED or ended_at is None or now - ended_at >= _LONG_S


def _no_recent_answer(instance: Instance, now: float) -> bool:
    return instance.released_at is not None and now - instance.released_at >= _VERY_LONG_S


def too_risky(option: Option) -> Considered:
    """An option that is not taken for a hard SLO, scored by the probability of a miss."""
    return Considered(option.candidate, option.prediction, _p_miss(option), _risk(option))


def _risk(option: Option) -> str:
    return f"would miss its hard SLO with probability {_p_miss(option):.2f}"


def _p_miss(option: Option) -> float:
    return (option.prediction.p_miss if option.prediction is not None else None) or 0.0


def gap_s(instances: Iterable[Instance]) -> float | None:
    """Mean seconds between two slots that become free at any of these instances; None before the first two."""
    known = [each.release_gap_s for each in instances if each.healthy and each.release_gap_s is not None]
    return 1.0 / sum(1.0 / max(each_s, 1e-6) for each_s in known) if known else None


def wait_s(turns: int, instances: Iterable[Instance], confidence: float) -> float:
    """Upper bound in seconds, at this confidence, of the wait for `turns` free slots. Slots become free like arrivals of
    a Poisson process: the wait for n slots has a mean of n gaps and a standard deviation of sqrt(n) gaps."""
    return (gap_s(instances) or 0.0) * (turns + NormalDist().inv_cdf(confidence) * math.sqrt(turns))


def least_decode_s(request: Request, options: Iterable[Option]) -> float:
    """The least time that decoding takes: half of the lowest predicted median. An E2E target leaves only the rest for
    the wait. 0 without an E2E target."""
    if request.slo is None or request.slo.e2e_s is None or not request.decodes:
        return 0.0
    decode_s = [
        predicted.e2e_s_p50 - predicted.ttft_s_p50
        for predicted in (option.prediction for option in options)
        if predicted is not None and predicted.e2e_s_p50 is not None and predicted.ttft_s_p50 is not None
    ]
    return _LEAST_OF_MEDIAN * min(decode_s, default=0.0)
