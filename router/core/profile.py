"""The duration of one engine step on one (model, hardware) pair.

A step is modelled as a roofline plus attention:

    step_s = overhead_s
           + max(floor_s, tokens * per_token_s)         linear layers: memory-bound or compute-bound
           + decode_kv_tokens * per_kv_token_s          decode attention reads the KV cache
           + prefill_pairs * per_pair_s                 prefill attention: new tokens x context tokens
           + tokens * per_token_extra_s                 other work for each token
           + decode_seqs * per_seq_s                    server work for each sequence: sampling,
                                                        detokenisation, a message to its client

`tokens` counts all tokens of the step: prefill tokens and one for each decoding sequence. `backends.engine` fits the
constants and names their sources. The predictors and the emulator use the same formula.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Constants of one (model, hardware) pair. All times are seconds at real speed.

    `kv_capacity_tokens` is how many context tokens fit in KV memory. `max_batched_tokens` and `max_seqs` limit one step.
    `block_tokens` is the KV block size, `load_s` the time to load the weights, and `slots` the number of parallel slots
    of an engine with a fixed number (Ollama). With `chunked_prefill` a step first takes its decoding sequences and then
    as much of a prompt as fits; without, whole prompts run in separate steps before decoding, as in older engines
    (`backends.engine.batching`). `source` says where the constants come from.
    """

    name: str
    overhead_s: float
    floor_s: float
    per_token_s: float
    per_kv_token_s: float
    per_pair_s: float
    kv_capacity_tokens: int
    per_token_extra_s: float = 0.0
    per_seq_s: float = 0.0
    max_batched_tokens: int = 2048
    max_seqs: int = 256
    block_tokens: int = 16
    load_s: float = 10.0
    slots: int = 4
    chunked_prefill: bool = True
    source: str = ""

    def seats(self, fixed_slots: bool) -> int:
        """The most sequences that decode at once: in an engine with fixed slots, or in one that batches."""
        return self.slots if fixed_slots else self.max_seqs

    def step_s(
        self, prefill_tokens: int, decode_seqs: int, decode_kv_tokens: float, prefill_pairs: float = 0.0
    ) -> float:
        """Seconds for one step with the given batch."""
        tokens = prefill_tokens + decode_seqs
        linear_s, floor_s = tokens * self.per_token_s, self.floor_s
        return (
            self.overhead_s
            + (linear_s if linear_s > floor_s else floor_s)
            + decode_kv_tokens * self.per_kv_token_s
            + prefill_pairs * self.per_pair_s
            + tokens * self.per_token_extra_s
            + decode_seqs * self.per_seq_s
        )

    def prefill_s(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds to prefill one prompt on an idle engine in chunks of `max_batched_tokens`. `cached_tokens` of it are
        in the prefix cache."""
        new = max(1, prompt_tokens - cached_tokens)
        if new < self.max_batched_tokens:
            chunks, linear_s = 1, max(self.floor_s, new * self.per_token_s)
        else:
            chunks, rest = divmod(new, self.max_batched_tokens)
            linear_s = chunks * max(self.floor_s, self.max_batched_tokens * self.per_token_s)
            if rest:
                linear_s += max(self.floor_s, rest * self.per_token_s)
                chunks += 1
        pairs = new * (cached_tokens + (new + 1) / 2)
        return chunks * self.overhead_s + linear_s + pairs * self.per_pair_s + new * self.per_token_extra_s

    def machine_s(
        self, prompt_tokens: float, output_tokens: float, fixed_slots: bool, cached_tokens: float = 0.0
    ) -> float:
        """Seconds of its instance's time that an answer takes in full batches, to compare answers by: its prompt, less
        `cached_tokens` in the prefix cache, its tokens in each decode step, and its share of what a step takes anyway, by seats
        or by KV memory."""
        new = prompt_tokens - cached_tokens
        token_s = self.per_token_s + self.per_token_extra_s
        share = max(1 / self.seats(fixed_slots), (prompt_tokens + output_tokens) / self.kv_capacity_tokens)
        step_s = token_s + self.per_kv_token_s * (prompt_tokens + output_tokens / 2)
        step_s += share * (self.overhead_s + self.floor_s)
        return new * (token_s + (cached_tokens + new / 2) * self.per_pair_s) + output_tokens * step_s
