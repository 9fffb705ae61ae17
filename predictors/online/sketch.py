"""What is expected of a request at one candidate before the latency model is asked: the physical estimate."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from predictors.analytic.answer_length import AnswerLength
from predictors.analytic.physical import estimate, is_unloaded
from predictors.learned.latency.features import Estimate
from predictors.online.pair import Pair
from predictors.online.residuals import ResidualWindow
from router.core.state import Instance
from router.core.types import Candidate, Request


class Sketch(NamedTuple):
    """`ttft_errors` and `tpot_errors` are the windows of the estimate's own log errors under such a load."""

    pair: Pair
    estimate: Estimate
    raw_tpot_s: float
    memory_ratio: float
    answer: AnswerLength
    ttft_errors: ResidualWindow
    tpot_errors: ResidualWindow

    @property
    def e2e_s(self) -> float:
        """What candidates are ranked by before the latency model is asked."""
        known = self.estimate
        return (
            known.ttft_s * exp(known.ttft_bias) + known.tpot_s * exp(known.tpot_bias) * self.answer.long_mean
        )


def sketch(
    pair: Pair,
    request: Request,
    candidate: Candidate,
    instance: Instance,
    cached_tokens: float,
    answer: AnswerLength,
    now: float,
) -> Sketch:
    """`cached_tokens` of the prompt, as the router estimates it, need no prefill there."""
    costs, lengths = pair.costs, pair.lengths
    ratio = lengths.prompt_ratio
    prompt_tokens = request.prompt_tokens * ratio
    cached_tokens *= ratio
    pending_tokens = instance.pending_prefill_tokens * ratio
    ttft_s, raw_tpot_s, ttft_stratum, tpot_stratum, step_s, memory_ratio = estimate(
        costs,
        instance,
        prompt_tokens,
        cached_tokens,
        pending_tokens,
        answer.mean,
        answer.usual_mean,
        lengths.mean_prompt_tokens,
        pair.prefills.tokens_per_s(now),
    )
    if instance.report.loaded_models is not None and is_unloaded(instance, candidate.upstream_model):
        ttft_s += costs.load_s
        ttft_stratum = 2
    ttft_errors, tpot_errors = pair.ttft.window(ttft_stratum), pair.tpot.window(tpot_stratum)
    return Sketch(
        pair,
        Estimate(
            ttft_s,
            pair.shrinkage.shrunk(raw_tpot_s),
            ttft_stratum,
            tpot_stratum,
            ttft_errors.median,
            tpot_errors.median,
            ttft_errors.count,
            tpot_errors.count,
            prompt_tokens,
            cached_tokens,
            answer.usual_capped,
            pending_tokens,
            step_s,
        ),
        raw_tpot_s,
        memory_ratio,
        answer,
        ttft_errors,
        tpot_errors,
    )
