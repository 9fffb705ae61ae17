"""What one engine step costs on one (model, hardware) pair.

The model of a step is a roofline with attention beside it:

    step_s = overhead_s
           + max(floor_s, tokens * per_token_s)         linear layers: read the weights or do the sums
           + decode_kv_tokens * per_kv_token_s          decode attention reads the KV cache
           + prefill_pairs * per_pair_s                 prefill attention, new tokens x context tokens
           + tokens * per_token_extra_s                 what grows with tokens beside the linear layers
           + decode_seqs * per_seq_s                    what a server does for each answer: sampling,
                                                        detokenising, a message to its client

`tokens` are all tokens of the step: prefill tokens and one for each decoding sequence. The constants are
fitted by `backends.engine` (see its sources); the predictors and the emulator use the same formula.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Constants of one (model, hardware) pair; all times in seconds at real speed.

    `kv_capacity_tokens` is how many tokens of context fit in KV memory, `max_batched_tokens` and `max_seqs`
    the limits of a step, `block_tokens` the KV block size, `load_s` the time to load the weights,
    `slots` the parallel slots of an engine that has a fixed number of them (Ollama). `chunked_prefill`: prompts are cut to what
    a step has left beside its decoding sequences; else they go first, whole, in steps of their own, as in older
    engines (`backends.engine.batching`). `source` says where constants come from.
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
        """The most sequences that decode together, in an engine with fixed slots or in one that batches."""
        return self.slots if fixed_slots else self.max_seqs

    def step_s(
        self, prefill_tokens: int, decode_seqs: int, decode_kv_tokens: float, prefill_pairs: float = 0.0
    ) -> float:
        """Seconds for one step over the given batch."""
        tokens = prefill_tokens + decode_seqs
        return (
            self.overhead_s
            + max(self.floor_s, tokens * self.per_token_s)
            + decode_kv_tokens * self.per_kv_token_s
            + prefill_pairs * self.per_pair_s
            + tokens * self.per_token_extra_s
            + decode_seqs * self.per_seq_s
        )

    def prefill_s(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds to prefill a prompt alone in chunks of `max_batched_tokens`, `cached_tokens` of it found
        in the prefix cache."""
        new = max(1, prompt_tokens - cached_tokens)
        chunks, rest = divmod(new, self.max_batched_tokens)
        linear_s = chunks * max(self.floor_s, self.max_batched_tokens * self.per_token_s)
        if rest:
            linear_s += max(self.floor_s, rest * self.per_token_s)
            chunks += 1
        pairs = new * (cached_tokens + (new + 1) / 2)
        return chunks * self.overhead_s + linear_s + pairs * self.per_pair_s + new * self.per_token_extra_s
