"""Whether a hard SLO can be kept: now, by the options that are free, or later, when its turn in the queue comes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from router.core.interfaces import Option
from router.core.state import Instance
from router.core.types import Candidate, Request

_ROUNDING = 1e-9
#: Of the median time of decoding, what an answer takes at least.
_LEAST_OF_MEDIAN = 0.5


def least_miss(options: Sequence[Option]) -> float:
    """The least predicted probability that the SLO is missed."""
    return min(map(_p_miss, options))


def keeping(options: Sequence[Option], confidence: float) -> tuple[list[Option], list[tuple[Candidate, str]]]:
    """The options that keep the SLO with this confidence, and the others with why not."""
    epsilon = 1.0 - confidence + _ROUNDING
    kept, risky = [], []
    for option in options:
        miss = _p_miss(option)
        if miss <= epsilon:
            kept.append(option)
        else:
            risky.append((option.candidate, f"would miss its hard SLO with probability {miss:.2f}"))
    return kept, risky


def _p_miss(option: Option) -> float:
    return (option.prediction.p_miss if option.prediction is not None else None) or 0.0


def gap_s(instances: Iterable[Instance]) -> float | None:
    """Mean seconds between slots that come free at any of these; None before any has."""
    known = [each.release_gap_s for each in instances if each.healthy and each.release_gap_s is not None]
    return 1.0 / sum(1.0 / max(each_s, 1e-6) for each_s in known) if known else None


def wait_s(turns: int, instances: Iterable[Instance], confidence: float) -> float:
    """Seconds that the wait for so many slots stays below with this confidence: slots come free like arrivals of a
    Poisson stream, so the nth takes n gaps, give or take root n."""
    return (gap_s(instances) or 0.0) * (turns + NormalDist().inv_cdf(confidence) * math.sqrt(turns))


def least_decode_s(request: Request, options: Iterable[Option]) -> float:
    """What decoding takes at least, by half the median: an E2E target leaves that much less for the wait."""
    if request.slo is None or request.slo.e2e_s is None or not request.decodes:
        return 0.0
    decode_s = [
        told.e2e_s_p50 - told.ttft_s_p50
        for told in (option.prediction for option in options)
        if told is not None and told.e2e_s_p50 is not None and told.ttft_s_p50 is not None
    ]
    return _LEAST_OF_MEDIAN * min(decode_s, default=0.0)
