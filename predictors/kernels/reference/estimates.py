"""The analytic estimate of TTFT and TPOT: from an instance's queue and its engine profile, with its online correction.

TTFT from the dispatch on, for continuous batching with chunked prefill (Sarathi-Serve, arXiv 2403.02310):

    load of the model (Ollama, when it is not in memory)
    + wait for a seat, when all sequences or nearly all KV memory are taken
    + the rest of the present step (half of a step)
    + steps over the prompts ahead and the request's own prompt, interleaved with the decoding batch

TPOT: one step over the batch that will be decoding, with the request in it, stretched by the prefills that
fall in between. Those prefills belong to requests that have not come yet, so their rate is taken from the recent past
(`PrefillRate`): with prefill work arriving at w seconds a second, tpot = step / (1 - w).

Ollama runs llama.cpp, which batches continuously too, over `slots` sequences. All times are wall seconds: profile
seconds / speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from math import exp, sqrt
from typing import Any, NamedTuple, TypeVar

import numpy as np

from predictors.kernels.reference.lengths import AnswerLength
from predictors.kernels.reference.residuals import ResidualWindow
from predictors.kernels.step_costs import StepCosts
from router.compiled import compiled_init
from router.core.state import Instance
from router.core.types import Candidate

#: The largest share of time that prefills of other requests are expected to take from a decoding sequence.
MOST_PREFILL_SHARE = 0.9

S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")
#: What multiplies an estimated time to give its median, 95 % quantile and mean.
Factors = tuple[float, float, float]


@compiled_init
class Estimate(NamedTuple):
    """The analytic estimate of TTFT and TPOT in seconds, and its online correction.

    The corrected estimate is `ttft_s * exp(ttft_bias)` and `tpot_s * exp(tpot_bias)`. Each bias is the median log error
    of `*_count` observations under a load of the same stratum. Tokens are as the engine would count them. `step_s` is
    one decoding step of the engine at its present load.
    """

    ttft_s: float
    tpot_s: float
    ttft_stratum: int
    tpot_stratum: int
    ttft_bias: float
    tpot_bias: float
    ttft_count: int
    tpot_count: int
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float
    pending_tokens: float
    step_s: float


class AnalyticEstimate(NamedTuple):
    """`ttft_errors` and `tpot_errors` are the windows of the estimate's own log errors under the present load. `e2e_s` is
    the corrected E2E, by which candidates are ranked before the latency model predicts. `raw_tpot_s` is TPOT before
    shrinking, `memory_ratio` the closed form of `predictors.learned.memory`."""

    estimate: Estimate
    raw_tpot_s: float
    memory_ratio: float
    e2e_s: float
    ttft_errors: ResidualWindow
    tpot_errors: ResidualWindow


class Estimates(list[AnalyticEstimate]):
    """Those of all candidates of a request."""

    def __init__(self, estimates: Iterable[AnalyticEstimate]) -> None:
        super().__init__(estimates)
        # Each window moves on.
        self._factors = [(each.ttft_errors.factors, each.tpot_errors.factors) for each in self]

    def details(
        self, at: int, answer: AnswerLength | None, waited_s: float, row: int, factors: np.ndarray
    ) -> tuple[Estimate, float, float, Factors, Factors, float, float, float, float]:
        """What only the prediction of one candidate needs: its estimate, TPOT in seconds before shrinking, the memory ratio in
        closed form, the factors of TTFT and TPOT that serve (its own, or the latency model's if `row` is at least 0), and the
        four times in seconds of `answer_times`. `factors` has the shape (rows, 2, 3)."""
        known, own = self[at], self._factors[at]
        served: Any = own if row < 0 else map(tuple, factors[row].tolist())
        of_ttft, of_tpot = served
        times = answer_times(known.estimate, answer, waited_s, of_ttft, of_tpot)
        return known.estimate, known.raw_tpot_s, known.memory_ratio, of_ttft, of_tpot, *times

    def soonest(self, count: int) -> Sequence[int]:
        """The places of so many candidates with the least `AnalyticEstimate.e2e_s`, in order of place; all if there are no
        more. Of equal ones, the first."""
        return sorted(nsmallest(count, range(len(self)), key=lambda at: self[at].e2e_s))

    def times(
        self,
        answers: list[AnswerLength] | list[None],
        waited_s: float,
        rows: list[int],
        factors: np.ndarray,
        first: int,
        end: int,
    ) -> tuple[list[float], list[float | None]]:
        """The median TTFT since the arrival and the median TPOT in seconds, of the candidates from `first` until before `end`.
        Where the latency model predicts, its row of `factors` (R, 2, 3) multiplies the estimate. `answers` are None where
        nothing is decoded."""
        p50, tpots = [], []
        for at in range(first, end):
            of_ttft, of_tpot = self._factors[at] if rows[at] < 0 else factors[rows[at]].tolist()
            ttft_s, tpot_s = self[at].estimate[:2]
            p50.append(waited_s + ttft_s * of_ttft[0])
            tpots.append(None if answers[at] is None else tpot_s * of_tpot[0])
        return p50, tpots

    def means(
        self,
        answers: list[AnswerLength] | list[None],
        waited_s: float,
        rows: list[int],
        factors: np.ndarray,
        decides_ttft: list[bool],
        decides_tpot: list[bool],
    ) -> list[float]:
        """By candidate the mean E2E since the arrival in seconds. The latency model's factors multiply the estimate where it
        decides."""
        found = []
        for each, own, answer, row, by_ttft, by_tpot in zip(
            self, self._factors, answers, rows, decides_ttft, decides_tpot, strict=True
        ):
            of_ttft = factors[row, 0].tolist() if by_ttft else own[0]
            of_tpot = factors[row, 1].tolist() if by_tpot else own[1]
            ttft_s, tpot_s = each.estimate[:2]
            mean_s = waited_s + ttft_s * of_ttft[2]
            if answer is not None and answer.long_mean > 1.0:
                mean_s += tpot_s * of_tpot[2] * (answer.long_mean - 1.0)
            found.append(mean_s)
        return found

    @staticmethod
    def lengths(answers: list[AnswerLength] | list[None]) -> list[float]:
        """By answer its expected tokens, of all choices; 0 where nothing is decoded."""
        return [0.0 if each is None else each.mean * each.choices for each in answers]

    def costs(
        self,
        answers: list[AnswerLength] | list[None],
        candidates: Sequence[Candidate],
        first: int,
        end: int,
    ) -> list[float]:
        """The expected price in USD, of the candidates from `first` until before `end`."""
        found = []
        for at in range(first, end):
            price, answer = candidates[at].price, answers[at]
            cost_usd = self[at].estimate.prompt_tokens * price.input_usd_per_mtok * 1e-6
            if answer is not None:
                cost_usd += answer.mean * answer.choices * price.output_usd_per_mtok * 1e-6
            found.append(cost_usd)
        return found


def answer_times(
    estimate: Estimate,
    answer: AnswerLength | None,
    waited_s: float,
    of_ttft: Sequence[float],
    of_tpot: Sequence[float],
) -> tuple[float, float, float, float]:
    """(Median TTFT since the dispatch, 95 % quantile of TTFT, median and 95 % quantile of E2E) in seconds, the last three since
    the arrival. `of_ttft` and `of_tpot` are the factors (median, 95 % quantile, mean) of actual to estimated times."""
    engine_ttft_s = estimate.ttft_s * of_ttft[0]
    ttft_s_p95 = waited_s + estimate.ttft_s * of_ttft[1]
    decode_s = 0.0
    if answer is not None and answer.long_p50 > 1.0:
        decode_s = estimate.tpot_s * of_tpot[0] * (answer.long_p50 - 1.0)
    e2e_s_p50 = waited_s + engine_ttft_s + decode_s
    # Upper deviations of independent parts add as squares.
    by_ttft_s = estimate.ttft_s * (of_ttft[1] - of_ttft[0])
    if answer is None:
        return engine_ttft_s, ttft_s_p95, e2e_s_p50, e2e_s_p50 + by_ttft_s
    median, p95, _ = of_tpot
    by_tpot_s = (p95 / median - 1.0) * decode_s
    by_length_s = (answer.long_p95 - answer.long_p50) * estimate.tpot_s * median
    late_s = sqrt(by_ttft_s * by_ttft_s + by_tpot_s * by_tpot_s + by_length_s * by_length_s)
    return engine_ttft_s, ttft_s_p95, e2e_s_p50, e2e_s_p50 + late_s


def each_with(
    kind: type[T], names: tuple[str, ...], columns: list[list[Any]], first: int, end: int
) -> list[T]:
    """An object of a kind, not initialised, for each place from `first` until before `end`: with its place `_at` and the values
    of some columns by name."""
    found = []
    for at, values in enumerate(zip(*columns, strict=True), first):
        each: Any = kind.__new__(kind)
        each._at = at
        for name, value in zip(names, values, strict=True):
            setattr(each, name, value)
        found.append(each)
    if len(found) != end - first:
        raise ValueError("columns of different lengths")
    return found


def stats_of(
    known: Mapping[tuple[str, str], Any], candidates: Sequence[Candidate], instances: Sequence[Instance]
) -> tuple[list[Any], list[int]]:
    """What is `known` of each candidate by (instance, model), and the places of those of which nothing is known, or only about
    another engine profile or speed. There it is None."""
    found, missing = [], []
    for at, (candidate, instance) in enumerate(zip(candidates, instances, strict=True)):
        of = known.get((instance.name, candidate.model))
        if (
            of is not None
            and of.profile is instance.profiles.get(candidate.model)
            and of.costs.speed == instance.speed
        ):
            found.append(of)
        else:
            found.append(None)
            missing.append(at)
    return found, missing


class Sources(list[S]):
    """The stats of `candidates`. Compiled, it keeps what estimates read of them side by side, so it is made anew when the
    objects of one are replaced."""

    def __init__(self, stats: list[S], candidates: Sequence[Candidate]) -> None:
        if len(candidates) != len(stats):
            raise ValueError("columns of different lengths")
        super().__init__(stats)


def by_model(
    candidates: Sequence[Candidate], stats: Sources[S], make: Callable[[Candidate, S], tuple[T, U]]
) -> tuple[list[T], list[U]]:
    """The two columns that `make` gives. It is called once for all candidates of one model, context and quality: many instances
    share them."""
    known: dict[tuple[str, int | None, float | None], tuple[T, U]] = {}
    firsts, seconds = [], []
    for candidate, of in zip(candidates, stats, strict=True):
        key = candidate.model, candidate.context_tokens, candidate.quality
        both = known.get(key)
        if both is None:
            both = known[key] = make(candidate, of)
        firsts.append(both[0])
        seconds.append(both[1])
    return firsts, seconds


def analytic_estimates(
    stats: Sources[Any],
    candidates: Sequence[Candidate],
    instances: Sequence[Instance],
    request_tokens: float,
    cached: Sequence[float],
    answers: Sequence[AnswerLength],
    now: float,
) -> Estimates:
    """One for each candidate. `stats` are their `predictors.online.candidate_stats.CandidateStats`. `request_tokens` are those
    of the prompt and `cached` those of it that need no prefill there, both in the router's estimate."""
    return Estimates(
        _analytic_estimate(*each, request_tokens, now)
        for each in zip(stats, candidates, instances, cached, answers, strict=True)
    )


def _analytic_estimate(
    stats: Any,
    candidate: Candidate,
    instance: Instance,
    cached_tokens: float,
    answer: AnswerLength,
    request_tokens: float,
    now: float,
) -> AnalyticEstimate:
    costs, lengths = stats.costs, stats.lengths
    ratio = lengths.prompt_ratio
    prompt_tokens = request_tokens * ratio
    cached_tokens *= ratio
    pending_tokens = instance.pending_prefill_tokens * ratio
    ttft_s, raw_tpot_s, ttft_stratum, tpot_stratum, step_s, memory_ratio = physical_estimate(
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
    if is_unloaded(instance, candidate.upstream_model):
        ttft_s += costs.load_s
        ttft_stratum = 2
    ttft_errors, tpot_errors = stats.ttft.windows[ttft_stratum], stats.tpot.windows[tpot_stratum]
    tpot_s, ttft_bias, tpot_bias = stats.shrinkage.shrunk(raw_tpot_s), ttft_errors.median, tpot_errors.median
    return AnalyticEstimate(
        Estimate(
            ttft_s,
            tpot_s,
            ttft_stratum,
            tpot_stratum,
            ttft_bias,
            tpot_bias,
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
        ttft_s * exp(ttft_bias) + tpot_s * exp(tpot_bias) * answer.long_mean,
        ttft_errors,
        tpot_errors,
    )


def is_unloaded(instance: Instance, upstream_model: str) -> bool:
    """Whether the engine reports that the model is not in memory (Ollama). Unknown counts as loaded."""
    loaded = instance.report.loaded_models
    return loaded is not None and upstream_model not in loaded and f"{upstream_model}:latest" not in loaded


def physical_estimate(
    costs: StepCosts,
    instance: Instance,
    prompt_tokens: float,
    cached_tokens: float,
    pending_tokens: float,
    output_tokens: float,
    mean_output_tokens: float,
    mean_prompt_tokens: float,
    prefill_tokens_per_s: float,
) -> tuple[float, float, int, int, float, float]:
    """(TTFT in seconds from the dispatch, TPOT in seconds, stratum of TTFT, stratum of TPOT, seconds of one step with the
    request in the batch, share of KV memory held over its life) of one more request.

    `pending_tokens` are the tokens of the prompts ahead that have no first token. `output_tokens` are expected of this
    request, `mean_*` of the model's other requests. `prefill_tokens_per_s` is the recent rate of prefills. The time to
    load a model is not included.
    """
    running, awaiting, report = instance.running, instance.awaiting_first_token, instance.report
    own_decoding = instance.in_flight - awaiting
    decoding = max(running - awaiting, 0)
    seats, capacity_tokens = costs.seats, costs.kv_capacity_tokens

    # KV in use now: our decoding sequences have half of their expected output still to come.
    kv_tokens = max(instance.context_tokens - 0.5 * mean_output_tokens * own_decoding, 0.0)
    if decoding > own_decoding:
        # Other routers or clients use the engine too: take its own figure, else count their sequences as average ones.
        kv_tokens += (decoding - own_decoding) * (mean_prompt_tokens + 0.5 * mean_output_tokens)
        if report.kv_usage is not None:
            kv_tokens = report.kv_usage * (report.kv_capacity_tokens or capacity_tokens)
    fixed_s = costs.overhead_s + kv_tokens * costs.kv_token_s + decoding * costs.seq_s

    def step_over(tokens: float) -> float:
        """Seconds of one step over so many tokens."""
        return fixed_s + max(tokens * costs.token_s, costs.floor_s) + tokens * costs.extra_s

    ttft_s = 0.0
    stratum = 0
    waits = running >= seats
    excess_tokens = kv_tokens + pending_tokens + prompt_tokens - capacity_tokens
    if waits or (excess_tokens > 0.0 and decoding):
        step_s = step_over(min(running, seats))
        # Each of the running sequences ends once in E[output] steps and frees its seat and its KV.
        if waits:
            ttft_s = (running - seats + 1) / seats * mean_output_tokens * step_s
            decoding = min(decoding, seats - 1)
        if excess_tokens > 0.0 and decoding:
            ttft_s = max(ttft_s, excess_tokens / max(kv_tokens, 1.0) * mean_output_tokens * step_s)
        stratum = 2

    new_tokens = max(prompt_tokens - cached_tokens, 1.0)
    budget = max(costs.batched_tokens - decoding, 16)
    work_tokens = new_tokens
    if running:
        first = min(pending_tokens, budget)
        ttft_s += 0.5 * step_over(first + decoding)
        work_tokens += pending_tokens - first
    if work_tokens >= budget:
        full_steps, work_tokens = divmod(work_tokens, budget)
        ttft_s += full_steps * step_over(budget + decoding)
    if work_tokens:
        ttft_s += step_over(work_tokens + decoding)
    ttft_s += new_tokens * (cached_tokens + 0.5 * (new_tokens + 1.0)) * costs.pair_s
    if pending_tokens:
        ttft_s += 0.5 * pending_tokens * pending_tokens / (awaiting or 1) * costs.pair_s
        stratum = stratum or 1

    # Decode: by then the requests ahead decode too.
    others = decoding + awaiting
    if others >= seats:
        others = seats - 1
    batch = others + 1
    linear_s = max(batch * costs.token_s, costs.floor_s)
    tpot_s = step_s = (
        fixed_s
        + linear_s
        + batch * costs.extra_s
        + (batch - decoding) * costs.seq_s
        + (pending_tokens + prompt_tokens + 0.5 * output_tokens) * costs.kv_token_s
    )
    held = (kv_tokens + pending_tokens + prompt_tokens + 0.5 * output_tokens) / capacity_tokens
    if prefill_tokens_per_s:
        # What a prompt adds to the step that prefills it, per token of the prompt.
        prefill_s = max((batch + mean_prompt_tokens) * costs.token_s - linear_s, 0.0)
        share = prefill_tokens_per_s * (
            prefill_s / mean_prompt_tokens + costs.extra_s + 0.5 * mean_prompt_tokens * costs.pair_s
        )
        tpot_s /= 1.0 - min(share, MOST_PREFILL_SHARE)
    tpot_stratum = 0 if batch <= 4 else (1 if batch <= 32 else 2)
    return ttft_s, tpot_s, stratum, tpot_stratum, step_s, min(held, 1.0)
