"""The throughput of an engine that is never idle, from its profile and the mean lengths of its requests."""

from __future__ import annotations

from math import inf

from router.core.profile import EngineProfile


def requests_per_s(
    engine: EngineProfile, prompt_tokens: float, output_tokens: float, seats: int, step_limit_s: float = inf
) -> float:
    """Requests of a mean size in a second: with B decoding sequences each step takes B / output prompts in, and the
    best B counts whose steps take no longer than `step_limit_s` (the TPOT to keep). 0 if no B does."""
    best = 0.0
    held_tokens = prompt_tokens + output_tokens / 2
    most = max(1, min(seats, int(engine.kv_capacity_tokens / held_tokens)))
    for batch in {most, *(2**power for power in range(most.bit_length()))}:
        ended = batch / output_tokens  # in a step
        steps = max(1.0, (ended * prompt_tokens + batch) / engine.max_batched_tokens)
        step_s = engine.step_s(
            round(ended * prompt_tokens), batch, batch * held_tokens, ended * prompt_tokens**2 / 2
        )
        step_s += (steps - 1) * engine.overhead_s
        if step_s / steps <= step_limit_s:
            best = max(best, ended / step_s)
    return best


def least_busy_s(engine: EngineProfile, prompt_tokens: float, output_tokens: float, seats: int) -> float:
    """The least time of an engine that one request takes, whatever else runs: its own tokens, and its part of the constant
    work of steps that are as full as they can be."""
    tokens = prompt_tokens + output_tokens
    steps = max(output_tokens / seats, tokens / (engine.max_batched_tokens + seats))
    return (
        tokens * (engine.per_token_s + engine.per_token_extra_s)
        + output_tokens * (prompt_tokens + output_tokens / 2) * engine.per_kv_token_s
        + prompt_tokens**2 / 2 * engine.per_pair_s
        + output_tokens * engine.per_seq_s
        + steps * engine.overhead_s
    )
