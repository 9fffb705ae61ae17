"""What the analytic estimate (`predictors.kernels.reference.estimates`) reads of an instance: the costs of its engine's steps
and the rate of its prefills. All times are wall seconds: profile seconds / speed."""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf

from router.core.profile import EngineProfile

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


class PrefillRate:
    """Prompt tokens that an instance prefills a second: an exponential average over `horizon_s`, which should be about
    the time that an answer takes to decode."""

    __slots__ = ("horizon_s", "sum_tokens", "updated_at")

    def __init__(self, horizon_s: float = 10.0) -> None:
        self.horizon_s = horizon_s
        self.sum_tokens = 0.0
        self.updated_at = -inf

    def add(self, tokens: float, at_s: float) -> None:
        """A prompt's prefill of `tokens` ended at `at_s` on the router's clock."""
        past_s = at_s - self.updated_at
        if past_s > 0.0:
            self.sum_tokens *= exp(-past_s / self.horizon_s)
            self.updated_at = at_s
        self.sum_tokens += tokens

    def tokens_per_s(self, now: float) -> float:
        """The rate at `now`."""
        past_s = now - self.updated_at
        if past_s <= 0.0:
            return self.sum_tokens / self.horizon_s
        return self.sum_tokens * exp(-past_s / self.horizon_s) / self.horizon_s


#: The constants that the estimate reads, in the order of `StepCosts.constants`.
CONSTANTS = (
    "overhead_s", "floor_s", "token_s", "extra_s", "seq_s", "kv_token_s", "pair_s", "load_s", "kv_capacity_tokens",
    "batched_tokens", "seats",
)  # fmt: skip


class StepCosts:
    """The constants and limits of an `EngineProfile` in wall seconds, for one (instance, model)."""

    __slots__ = (
        "batched_tokens", "constants", "extra_s", "floor_s", "kv_capacity_tokens", "kv_token_s", "load_s",
        "overhead_s", "pair_s", "profile", "seats", "seq_s", "speed", "token_s",
    )  # fmt: skip

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
        #: The same, in the order of `CONSTANTS`.
        self.constants = tuple(float(getattr(self, name)) for name in CONSTANTS)

    def idle_ttft_s(self, prompt_tokens: float, cached_tokens: float = 0.0) -> float:
        """Seconds of the prefill alone on an idle, loaded instance."""
        return self.profile.prefill_s(int(prompt_tokens), int(cached_tokens)) / self.speed


#: `StepCosts` of the same arguments are one object: candidates of one kind share it.
step_costs = lru_cache(maxsize=1024)(StepCosts)
