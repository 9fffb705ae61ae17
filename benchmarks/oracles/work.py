"""The least machine time and memory that an answer within its SLO takes, in any batch of any schedule.

"The work of an answer" and "How steps are shared" in docs/oracles.md have the formulas and their proofs: the two bounds of a
step's time (`floor`, `compute`; what is beside a request's own seconds is A), and the three bounds of the number of steps
(`seats`, `kv_tokens`, `paced`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from benchmarks.oracles.truth import KnownAttempt, Truth
from benchmarks.simulator import Arrival
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS
from router.core.profile import EngineProfile
from router.core.state import Instance
from router.core.types import Slo

Floats = npt.NDArray[np.float64]

#: Rounding of times that are summed in another order than an engine does.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Least:
    """One part of an answer (its prefill or its decode) on one candidate. It happens within [`release_s`,
    `due_s`] of the workload's clock (infinite: no SLO says when). The rest is in the instance's own seconds
    and steps, for the two bounds `floor` and `compute`: `own_s` pairs, `seats` steps, `kv_tokens`
    token-steps, `paced` steps."""

    release_s: float
    due_s: float
    own_s: tuple[float, float]
    seats: float
    kv_tokens: float
    paced: float


class LeastWork:
    """`of(i)` gives for request i the attempts that can keep its SLO, with the least they take."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self._times_seen = Counter(
            block for each in truth.arrivals for block in dict.fromkeys(each.prefix_hashes)
        )

    def of(self, index: int) -> list[tuple[KnownAttempt, list[Least]]]:
        """Attempts of request `index` that an idle instance would serve in time, and their parts."""
        arrival = self.truth.arrivals[index]
        slo = arrival.request.slo
        if slo is None:
            return []
        found = []
        for attempt in self.truth.attempts[index]:
            parts = self._parts(arrival, slo, attempt)
            if parts is not None:
                found.append((attempt, parts))
        return found

    def _shared_tokens(self, arrival: Arrival) -> int:
        """Leading tokens of the prompt that another request has too."""
        units = 0
        for block in arrival.prefix_hashes:
            if self._times_seen[block] < 2:
                break
            units += 1
        return units * PREFIX_BLOCK_TOKENS

    def _parts(self, arrival: Arrival, slo: Slo, attempt: KnownAttempt) -> list[Least] | None:
        instance = self.truth.instances[attempt.instance]
        profile, speed = instance.profiles[attempt.model], instance.speed
        prompt, output = attempt.prompt_tokens, attempt.output_tokens
        shared = 0 if attempt.cut_prompt else min(prompt - 1, self._shared_tokens(arrival))
        slots = instance.fixed_slots

        new = prompt - shared
        own = new * profile.per_token_extra_s + _pairs(new, prompt) * profile.per_pair_s
        chunks = -(-new // profile.max_batched_tokens)
        prefill_s = (
            chunks * profile.overhead_s + max(chunks * profile.floor_s, new * profile.per_token_s) + own
        ) / speed
        prefill_own_s = (own, own + new * profile.per_token_s)

        steps = max(0, output - 1)
        # Keys and values of `contexts` tokens are read and held while tokens 2, 3, ... are made.
        contexts = prompt + np.arange(1, steps + 1)
        floor_s, compute_s = _decode_own_s(profile, contexts, 0 if slots else prompt)
        shortest_s = (
            steps * (profile.overhead_s + max(profile.floor_s, profile.per_token_s)) + float(floor_s.sum())
        ) / speed

        arrived_s = arrival.request.arrived_at
        ttft_s = inf if slo.ttft_s is None else slo.ttft_s
        e2e_s = inf if slo.e2e_s is None else slo.e2e_s
        span_s = inf if slo.tpot_s is None or not steps else slo.tpot_s * steps
        first_s = min(ttft_s, e2e_s - shortest_s)
        span_s = min(span_s, e2e_s - prefill_s)
        if prefill_s > first_s * (1 + _SLACK) + _SLACK or shortest_s > span_s * (1 + _SLACK) + _SLACK:
            return None

        parts = [
            Least(
                arrived_s,
                arrived_s + first_s,
                prefill_own_s,
                float(chunks),
                0.0 if slots else float(new),
                0.0,
            )
        ]
        if steps:
            held = 0.0 if slots else float((contexts - shared).sum())
            # As long as `shortest_s` was allowed above: else a budget that rounding has made too short would
            # forbid sharing even where it costs nothing.
            budget_s = (span_s * (1 + _SLACK) + _SLACK) * speed
            paced = _paced_steps(floor_s, budget_s, profile.overhead_s + profile.floor_s)
            parts.append(
                Least(
                    arrived_s + prefill_s,
                    arrived_s + min(e2e_s, first_s + span_s),
                    (float(floor_s.sum()), float(compute_s.sum())),
                    float(steps),
                    held,
                    paced,
                )
            )
        return parts


def _pairs(new_tokens: int, context: int) -> float:
    """(new, context) token pairs of a prefill that ends with `context` tokens, `new_tokens` of them computed."""
    before = context - new_tokens
    return new_tokens * (before + (new_tokens + 1) / 2)


def _decode_own_s(
    profile: EngineProfile, contexts: npt.NDArray[np.int64], cacheable: int
) -> tuple[Floats, Floats]:
    """Own seconds of each decode step at `contexts`, by the floor and the compute bound: those of a decode
    step or those of a prefill made again after a preemption, `cacheable` tokens of which are in the cache."""
    decode_s = profile.per_token_extra_s + profile.per_kv_token_s * contexts
    new = contexts - cacheable
    pairs = new * (cacheable + (new + 1) / 2)
    again_s = profile.per_token_extra_s * new + profile.per_pair_s * pairs
    floor_s = np.minimum(decode_s, again_s)
    compute_s = np.minimum(decode_s + profile.per_token_s, again_s + profile.per_token_s * new)
    return floor_s, compute_s


def _paced_steps(own_s: Floats, budget_s: float, alone_s: float) -> float:
    """Steps' worth of a decode that must end within `budget_s`, where each step takes `alone_s` and more."""
    left_s = budget_s - len(own_s) * alone_s
    if left_s == inf:
        return 0.0
    total = float(np.sqrt(own_s).sum()) ** 2
    # A budget that rounding has made too short is that of an instance all to oneself.
    return min(float(len(own_s)), total / left_s) if left_s > 0 else float(len(own_s))


def seats_of(instance: Instance, model: str) -> int:
    """Most sequences in one step."""
    seats = instance.profiles[model].seats(instance.fixed_slots)
    return seats if instance.max_concurrency is None else min(seats, instance.max_concurrency)


def kv_tokens_of(instance: Instance, model: str) -> float:
    """KV memory that the sequences of one step share, in tokens; infinite where each slot has its own."""
    profile = instance.profiles[model]
    if instance.fixed_slots:
        return inf
    return float(profile.kv_capacity_tokens // profile.block_tokens * profile.block_tokens)


def signature(instance: Instance) -> tuple[object, ...]:
    """Equal for instances that can stand in for each other."""
    return (
        instance.kind,
        instance.speed,
        instance.max_concurrency,
        tuple(
            (
                model,
                profile,
                instance.candidates[model].price,
                instance.candidates[model].quality,
                instance.candidates[model].context_tokens,
            )
            for model, profile in sorted(instance.profiles.items())
        ),
    )
