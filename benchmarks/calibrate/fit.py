"""The fit: a first guess from the data, then a search along the constants' logarithms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.calibrate.errors import residuals
from benchmarks.calibrate.measured import Study
from benchmarks.calibrate.profile import CHUNKED, CONSTANTS, Constants
from benchmarks.measures import quantile
from benchmarks.workloads.format import WorkloadError
from router.core.profile import EngineProfile

#: In natural logarithms: differences that slopes are taken over, one after another; the first step of the
#: search one by one, and where a constant is found.
_WIDTHS = (0.3, 0.1, 0.03)
_STEP, _LEAST = 0.15, 0.02
#: The search begins again until that gains less than this share of the loss.
_WORTH = 0.01
#: Weight of a constant's distance from its start (in logarithms). Where the data show nothing of a
#: constant this holds it where it was; it is far below what the data say of the others.
_PRIOR = 0.03
#: Where nothing is known: larger than what was in use, so that the limit never binds.
_NO_LIMIT_TOKENS = 1 << 22
#: Without chunks an engine's budget is its longest context, and this at least (vLLM v0's default).
_WHOLE_PROMPTS_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was found, its loss on the fitted levels and the first guess's, and how many were tried. `losses`
    are those of all limits tried, in order of loss."""

    constants: Constants
    loss: float
    first_loss: float
    evaluations: int
    losses: tuple[tuple[Mapping[str, int], float], ...] = ()


def fit(
    study: Study,
    start: Constants,
    limits: Mapping[str, Sequence[int]],
    *,
    evaluations: int,
    on_evaluation: Callable[[float], None] = lambda _: None,
) -> Fitted:
    """Fit the study's fit levels and no others. Of several given limits the combination with the least loss
    is taken; each gets `evaluations` at the most. A WorkloadError for limits that the engine cannot have."""
    tried: list[tuple[Mapping[str, int], Fitted]] = []
    for each in combinations(study, start, limits):
        try:
            limited = start.with_limits(each)
        except ValueError as error:
            raise WorkloadError(f"--limit: {error}") from None
        tried.append((each, _search(study, limited, evaluations, on_evaluation)))
    tried.sort(key=lambda one: one[1].loss)
    return replace(tried[0][1], losses=tuple((each, found.loss) for each, found in tried))


def combinations(
    study: Study, start: Constants, limits: Mapping[str, Sequence[int]]
) -> list[Mapping[str, int]]:
    """All limits to try. An engine that does not chunk has to take every request whole, so there a smaller
    budget of a step becomes the longest one's prompt and output."""
    names = sorted(limits)
    longest = max(
        each.prompt_tokens + (each.output_tokens or 1)
        for level in study.levels.values()
        for each in level.requests
    )
    found: list[Mapping[str, int]] = []
    for values in itertools.product(*(limits[name] for name in names)):
        each = {
            "max_batched_tokens": start.profile.max_batched_tokens,
            **dict(zip(names, values, strict=True)),
        }
        if not each.get(CHUNKED, start.profile.chunked_prefill):
            each["max_batched_tokens"] = max(each["max_batched_tokens"], longest, _WHOLE_PROMPTS_TOKENS)
        if each not in found:
            found.append(each)
    return found


class _Spent(Exception):
    """All evaluations are used up."""


class _Cost:
    """The residuals of constants given by their logarithms, and the best that were seen."""

    def __init__(
        self, study: Study, start: Constants, evaluations: int, on_evaluation: Callable[[float], None]
    ) -> None:
        self.study, self.start = study, start
        self.evaluations, self.on_evaluation = evaluations, on_evaluation
        self.levels = study.part(study.split.fit)
        self.origin = self.at = start.logs()
        self.tried = 0
        self.first = self.least = math.inf

    def residuals(self, logs: Iterable[float]) -> list[float]:
        """Raises _Spent when there is no evaluation left."""
        if self.tried >= self.evaluations:
            raise _Spent
        self.tried += 1
        at = [float(value) for value in logs]
        found = residuals(self.study, self.levels, self.start.with_logs(at))
        found += [_PRIOR * (value - origin) for value, origin in zip(at, self.origin, strict=True)]
        cost = math.fsum(each * each for each in found)
        self.on_evaluation(cost)
        if self.tried == 1:
            self.first = cost
        if cost < self.least:
            self.at, self.least = at, cost
        return found


def _search(
    study: Study, start: Constants, evaluations: int, on_evaluation: Callable[[float], None]
) -> Fitted:
    """Simulated times jump where a request takes another step of the engine, so slopes are taken over wide
    differences first: least squares for the valleys in which constants stand for each other, then one
    constant at a time for what slopes miss; again until that gains nothing more."""
    from scipy.optimize import least_squares

    cost = _Cost(study, start, evaluations, on_evaluation)
    try:
        reached = math.inf
        while cost.least < reached * (1 - _WORTH) or cost.tried == 0:
            reached = cost.least
            for width in _WIDTHS:
                at = cost.at
                least_squares(
                    cost.residuals, at, diff_step=[width / max(abs(each), 1e-9) for each in at], max_nfev=8
                )
            _one_by_one(cost)
    except _Spent:
        pass
    return Fitted(start.with_logs(cost.at), cost.least, cost.first, cost.tried)


def _one_by_one(cost: _Cost) -> None:
    """Each constant up or down by its own step, which grows where it helps and halves where it does not."""
    steps = [_STEP] * len(CONSTANTS)
    while max(steps) > _LEAST:
        for index in range(len(CONSTANTS)):
            if steps[index] <= _LEAST / 2:
                continue
            before = cost.least
            for move in (steps[index], -steps[index]):
                cost.residuals([value + move * (place == index) for place, value in enumerate(cost.at)])
                if cost.least < before:
                    steps[index] *= 1.6
                    break
            else:
                steps[index] /= 2


def guess(study: Study) -> Constants:
    """Constants to start from, read off the fit levels: time per token where it is least for a step, the slope
    of TTFT over the prompt's length at the lowest load for prefill, their difference for the client."""
    levels = study.part(study.split.fit)
    tpots = sorted(tpot for level in levels for each in level.requests if (tpot := each.tpot_s))
    base_s = quantile(tpots, 0.05)
    if not base_s:
        raise WorkloadError(
            f"{study.name}: no request of the fit levels has TTFT, E2E and 5 output tokens or more"
        )
    quiet = [
        (each.prompt_tokens, each.ttft_s)
        for each in min(levels, key=lambda level: level.rate_per_s).requests
        if each.ttft_s is not None
    ]
    quiet.sort()
    third = max(1, len(quiet) // 3)
    (short, short_s), (long, long_s) = (
        (quantile(sorted(t for t, _ in part), 0.5) or 0.0, quantile(sorted(s for _, s in part), 0.25) or 0.0)
        for part in (quiet[:third], quiet[-third:])
    )
    per_token_s = (long_s - short_s) / (long - short) if long > short else 0.0
    if per_token_s <= 0:
        per_token_s = short_s / max(short, 1.0) / 2
    typical = quantile(sorted(float(t) for t, _ in quiet), 0.5) or 1.0
    return Constants(
        EngineProfile(
            name=study.name,
            overhead_s=0.3 * base_s,
            floor_s=0.6 * base_s,
            per_token_s=per_token_s / 2,
            per_kv_token_s=0.03 * base_s / typical,
            per_pair_s=per_token_s / 20 / typical,
            kv_capacity_tokens=_NO_LIMIT_TOKENS,
            per_token_extra_s=per_token_s / 20,
            per_seq_s=0.01 * base_s,
            source="fitted by headway calibrate",
        ),
        client_overhead_s=max(0.1 * base_s, short_s - base_s - per_token_s * short),
        client_per_stream_s=0.02 * base_s,
    )
