"""TTFT and TPOT from an instance's queue and its engine profile, before any learning.

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

# A branch costs half of a call of max() or min(), and this runs for each candidate of each request.
# ruff: noqa: PLR1730
from __future__ import annotations

from math import exp, inf

from router.core.profile import EngineProfile
from router.core.state import Instance

#: Strata of load for the error of TTFT: nothing ahead, prompts ahead, all seats taken.
TTFT_STRATA = 3
#: Strata for the error of TPOT by batch size: up to 4, up to 32, more.
TPOT_STRATA = 3

#: For an instance without a profile: an 8B model in bf16 (16 GB of weights, 131 kB of KV a token) on an
#: 80 GB accelerator with 2.0 TB/s and half of 312 TFLOP/s (public A100 specification). It gives the shape: what grows
#: with what. The scale is learned from observations.
GENERIC_PROFILE = EngineProfile(
    name="generic",
    overhead_s=2e-3,
    floor_s=8e-3,
    per_token_s=1.0e-4,
    per_kv_token_s=6.5e-8,
    per_pair_s=3.4e-9,
    kv_capacity_tokens=400_000,
    source="roofline of an 8B model on an A100 80 GB",
)


#: The largest share of time that prefills of other requests are expected to take from a decoding sequence.
_MOST_PREFILL_SHARE = 0.9


class PrefillRate:
    """Prompt tokens that an instance prefills a second: an exponential average over `horizon_s`, which should be about
    the time that an answer takes to decode."""

    __slots__ = ("_sum_tokens", "_updated_at", "horizon_s")

    def __init__(self, horizon_s: float = 10.0) -> None:
        self.horizon_s = horizon_s
        self._sum_tokens = 0.0
        self._updated_at = -inf

    def add(self, tokens: float, at_s: float) -> None:
        """A prompt's prefill of `tokens` ended at `at_s` on the router's clock."""
        past_s = at_s - self._updated_at
        if past_s > 0.0:
            self._sum_tokens *= exp(-past_s / self.horizon_s)
            self._updated_at = at_s
        self._sum_tokens += tokens

    def tokens_per_s(self, now: float) -> float:
        """The rate at `now`."""
        past_s = now - self._updated_at
        if past_s <= 0.0:
            return self._sum_tokens / self.horizon_s
        return self._sum_tokens * exp(-past_s / self.horizon_s) / self.horizon_s


class StepCosts:
    """The constants and limits of an `EngineProfile` in wall seconds, for one (instance, model)."""

    __slots__ = (
        "batched_tokens",
        "extra_s",
        "floor_s",
        "kv_capacity_tokens",
        "kv_token_s",
        "load_s",
        "overhead_s",
        "pair_s",
        "profile",
        "seats",
        "seq_s",
        "speed",
        "token_s",
    )

    def __init__(self, profile: EngineProfile, fixed_slots: bool, speed: float) -> None:
        self.profile = profile
        self.speed = speed
        self.overhead_s = profile.overhead_s / speed
        self.floor_s = profile.floor_s / speed
        self.token_s = profile.per_token_s / speed
        self.extra_s = profile.per_token_extra_s / speed
        self.seq_s = profile.per_seq_s / speed
        self.kv_token_s = profile.per_kv_token_s / speed
        self.pair_s = profile.per_pair_s / speed
        self.load_s = profile.load_s / speed
        self.kv_capacity_tokens = profile.kv_capacity_tokens
        self.batched_tokens = profile.max_batched_tokens
        self.seats = profile.seats(fixed_slots)

    def idle_ttft_s(self, prompt_tokens: float, cached_tokens: float = 0.0) -> float:
        """Seconds of the prefill alone on an idle, loaded instance."""
        return self.profile.prefill_s(int(prompt_tokens), int(cached_tokens)) / self.speed


def is_unloaded(instance: Instance, upstream_model: str) -> bool:
    """Whether the engine reports that the model is not in memory (Ollama). Unknown counts as loaded."""
    loaded = instance.report.loaded_models
    return loaded is not None and upstream_model not in loaded and f"{upstream_model}:latest" not in loaded


def estimate(
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
    floor_s = costs.floor_s
    token_s = costs.token_s
    token_cost_s = costs.extra_s
    pair_s = costs.pair_s
    running = instance.running
    awaiting = instance.awaiting_first_token
    own_decoding = instance.in_flight - awaiting
    decoding = running - awaiting
    if decoding < 0:
        decoding = 0
    seats = costs.seats

    # KV in use now: our decoding sequences have half of their expected output still to come.
    kv_tokens = instance.context_tokens - 0.5 * mean_output_tokens * own_decoding
    if kv_tokens < 0.0:
        kv_tokens = 0.0
    if decoding > own_decoding:
        # Other routers or clients use the engine too: take its own figure, else count their sequences as average ones.
        report = instance.report
        kv_tokens += (decoding - own_decoding) * (mean_prompt_tokens + 0.5 * mean_output_tokens)
        if report.kv_usage is not None:
            kv_tokens = report.kv_usage * (report.kv_capacity_tokens or costs.kv_capacity_tokens)
    fixed_s = costs.overhead_s + kv_tokens * costs.kv_token_s + decoding * costs.seq_s

    ttft_s = 0.0
    stratum = 0
    waits = running >= seats
    capacity_tokens = costs.kv_capacity_tokens
    excess_tokens = kv_tokens + pending_tokens + prompt_tokens - capacity_tokens
    if waits or (excess_tokens > 0.0 and decoding):
        batch = running if running < seats else seats
        linear_s = batch * token_s
        step_s = fixed_s + (linear_s if linear_s > floor_s else floor_s) + batch * token_cost_s
        # Each of `batch` sequences ends once in E[output] steps and frees its seat and its KV.
        if waits:
            ttft_s = (running - seats + 1) / seats * mean_output_tokens * step_s
            decoding = min(decoding, seats - 1)
        if excess_tokens > 0.0 and decoding:
            kv_wait_s = excess_tokens / max(kv_tokens, 1.0) * mean_output_tokens * step_s
            if kv_wait_s > ttft_s:
                ttft_s = kv_wait_s
        stratum = 2

    new_tokens = prompt_tokens - cached_tokens
    if new_tokens < 1.0:
        new_tokens = 1.0
    budget = costs.batched_tokens - decoding
    if budget < 16:
        budget = 16
    work_tokens = new_tokens
    if running:
        first = pending_tokens if pending_tokens < budget else budget
        tokens = first + decoding
        linear_s = tokens * token_s
        ttft_s += 0.5 * (fixed_s + (linear_s if linear_s > floor_s else floor_s) + tokens * token_cost_s)
        work_tokens += pending_tokens - first
    if work_tokens >= budget:
        full_steps, work_tokens = divmod(work_tokens, budget)
        tokens = budget + decoding
        linear_s = tokens * token_s
        ttft_s += full_steps * (
            fixed_s + (linear_s if linear_s > floor_s else floor_s) + tokens * token_cost_s
        )
    if work_tokens:
        tokens = work_tokens + decoding
        linear_s = tokens * token_s
        ttft_s += fixed_s + (linear_s if linear_s > floor_s else floor_s) + tokens * token_cost_s
    ttft_s += new_tokens * (cached_tokens + 0.5 * (new_tokens + 1.0)) * pair_s
    if pending_tokens:
        ttft_s += 0.5 * pending_tokens * pending_tokens / (awaiting or 1) * pair_s
        if not stratum:
            stratum = 1

    # Decode: by then the requests ahead decode too.
    others = decoding + awaiting
    if others >= seats:
        others = seats - 1
    batch = others + 1
    linear_s = batch * token_s
    linear_s = linear_s if linear_s > floor_s else floor_s
    tpot_s = (
        fixed_s
        + linear_s
        + batch * token_cost_s
        + (batch - decoding) * costs.seq_s
        + (pending_tokens + prompt_tokens + 0.5 * output_tokens) * costs.kv_token_s
    )
    step_s = tpot_s
    held = (kv_tokens + pending_tokens + prompt_tokens + 0.5 * output_tokens) / capacity_tokens
    if prefill_tokens_per_s:
        # What a prompt adds to the step that prefills it, per token of the prompt.
        prefill_s = (batch + mean_prompt_tokens) * token_s - linear_s
        if prefill_s < 0.0:
            prefill_s = 0.0
        share = prefill_tokens_per_s * (
            prefill_s / mean_prompt_tokens + token_cost_s + 0.5 * mean_prompt_tokens * pair_s
        )
        tpot_s /= 1.0 - (share if share < _MOST_PREFILL_SHARE else _MOST_PREFILL_SHARE)
    tpot_stratum = 0 if batch <= 4 else (1 if batch <= 32 else 2)
    return ttft_s, tpot_s, stratum, tpot_stratum, step_s, held if held < 1.0 else 1.0
