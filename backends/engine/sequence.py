"""The inputs and outputs of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from router.compiled import compiled_init

Finish = Literal["stop", "length"]


class QueueFull(Exception):
    """The engine's waiting queue is full."""


class PromptTooLong(Exception):
    """The prompt leaves no room for one output token in the context or in KV memory."""

    def __init__(self, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(f"prompt of {prompt_tokens} tokens, the limit is {limit_tokens} with the output")


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence to serve.

    `output_tokens` is the length to generate, after `max_tokens` was applied by the caller, who sets `finish` to the
    reason for the end. 0 means prefill only (an embedding). `prefix` has the hashes of the prompt's full leading units
    of `prefix_tokens` tokens; each covers all tokens up to its end. A unit is a KV block of the profile (None) or a
    multiple of it; it is cached, matched and evicted together.

    The engine sets the fields after `prefix_tokens`: the tokens found in the prefix cache, and when the model was in
    memory (`runner_at_s`), the sequence first got a seat in the batch, and its first token was made.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    model: str = ""
    finish: Finish = "stop"
    prefix_tokens: int | None = None
    cached_tokens: int = 0
    submitted_at_s: float | None = None
    runner_at_s: float | None = None
    admitted_at_s: float | None = None
    first_token_at_s: float | None = None

    def unit_tokens(self, block_tokens: int) -> int:
        """The tokens that one hash of `prefix` covers, if KV blocks have `block_tokens`. Raises ValueError if that is
        not a multiple of a block."""
        unit = block_tokens if self.prefix_tokens is None else self.prefix_tokens
        if unit < 1 or unit % block_tokens:
            raise ValueError(f"prefix_tokens {unit} is not a multiple of a KV block of {block_tokens}")
        return unit


@compiled_init
class Progress(NamedTuple):
    """Tokens that a sequence got by the end of a step; `finished` is set on its last one."""

    seq_id: str
    at_s: float
    new_tokens: int
    finished: Finish | None
