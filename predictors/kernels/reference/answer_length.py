"""The length of one answer: a model's length distribution under a cap, for one choice or for several."""

from __future__ import annotations

from typing import NamedTuple

from predictors.kernels.reference.lengths import LengthTable
from router.compiled import compiled_init
from router.core.types import Candidate, Request


@compiled_init
class AnswerLength(NamedTuple):
    """Tokens of min(Y, cap). `p50`, `p90` and `mean` are of one choice, `long_*` of the longest of all `choices`, which
    decides when the answer ends. `usual_mean` is the mean of the model's other answers, `usual_capped` their mean under
    this cap."""

    table: LengthTable
    cap: int | None
    choices: int
    p50: float
    p90: float
    mean: float
    long_p50: float
    long_p95: float
    long_mean: float
    usual_mean: float
    usual_capped: float


def output_cap(request: Request, candidate: Candidate) -> int | None:
    """The most tokens of one choice: the request's limit, and the room that its prompt leaves in the context."""
    cap = request.max_tokens
    if candidate.context_tokens is None:
        return cap
    room = candidate.context_tokens - (request.longest_prompt_tokens or request.prompt_tokens)
    room = room if room > 1 else 1
    return room if cap is None or cap > room else cap


def answer_length(table: LengthTable, cap: int | None, choices: int, usual: LengthTable) -> AnswerLength:
    """The distribution under a cap. `usual` is the distribution of the model's other answers."""
    p50, p90, mean = table.p50, table.p90, table.mean
    if cap is not None:
        mean = table.mean_below(cap)
        p50, p90 = min(p50, cap), min(p90, cap)
    long_p50, long_p95, long_mean = p50, table.p95, mean
    if choices > 1:
        # The quantile at u of the longest is one choice's at u ** (1 / n).
        long_p50 = table.quantile(0.5 ** (1 / choices))
        long_p95 = table.quantile(0.95 ** (1 / choices))
        if cap is not None:
            long_p50 = min(long_p50, cap)
        long_mean = max(long_mean, long_p50)
    if cap is not None:
        long_p95 = min(long_p95, cap)
    capped = usual.mean if cap is None else usual.mean_below(cap)
    return AnswerLength(
        table, cap, choices, p50, p90, mean, long_p50, long_p95, long_mean, usual.mean, capped
    )
