"""The analytic estimate of a request at one candidate: the physical estimate with its online corrections."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from predictors.analytic.answer_length import AnswerLength
from predictors.analytic.estimate import Estimate
from predictors.analytic.physical import estimate, is_unloaded
from predictors.online.candidate_stats import CandidateStats
from predictors.online.residuals import ResidualWindow
from router.core.state import Instance
from router.core.types import Candidate, Request


class AnalyticEstimate(NamedTuple):
    """`ttft_errors` and `tpot_errors` are the windows of the estimate's own log errors under the present load."""

    stats: CandidateStats
    estimate: Estimate
    raw_tpot_s: float
    memory_ratio: float
    answer: AnswerLength
    ttft_errors: ResidualWindow
    tpot_errors: ResidualWindow

    @property
    def e2e_s(self) -> float:
        """The corrected E2E in seconds, by which candidates are ranked before the latency model predicts."""
        ttft_s, tpot_s, _, _, ttft_bias, tpot_bias, *_ = self.estimate
        return ttft_s * exp(ttft_bias) + tpot_s * exp(tpot_bias) * self.answer.long_mean


def analytic_estimate(
    stats: CandidateStats,
    request: Request,
    candidate: Candidate,
    instance: Instance,
    cached_tokens: float,
    answer: AnswerLength,
    now: float,
) -> AnalyticEstimate:
    """`cached_tokens` of the prompt, in the router's estimate, need no prefill there."""
    costs, lengths = stats.costs, stats.lengths
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
        stats.prefills.tokens_per_s(now),
    )
    if instance.report.loaded_models is not None and is_unloaded(instance, candidate.upstream_model):
        ttft_s += costs.load_s
        ttft_stratum = 2
    ttft_errors, tpot_errors = stats.ttft.windows[ttft_stratum], stats.tpot.windows[tpot_stratum]
    return AnalyticEstimate(
        stats,
        Estimate(
            ttft_s,
            stats.shrinkage.shrunk(raw_tpot_s),
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
