"""What goes into an engine and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Finish = Literal["stop", "length"]


class QueueFull(Exception):
    """The engine's waiting queue holds as many sequences as it may."""


class PromptTooLong(Exception):
    """The prompt leaves no room for one output token in the context or in KV memory."""

    def __init__(self, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(f"prompt of {prompt_tokens} tokens, the limit is {limit_tokens} with the output")
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


class UnknownModel(Exception):
    """The engine does not hold a model of that name."""

    def __init__(self, model: str) -> None:
        super().__init__(f"unknown model {model!r}")
        self.model = model


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence to serve.

    `output_tokens` is the length to generate, with `max_tokens` applied by the caller, who says in `finish`
    why it ends there; 0 means prefill only (an embedding). `prefix` are the hashes of the prompt's full
    leading units of `prefix_tokens` tokens, each one covering all before it. A unit is a KV block of the
    profile (None) or a multiple of it: cached, matched and evicted as a whole, at the cost of one block.
    The fields after `prefix_tokens` are filled in by the engine: tokens found in the prefix cache, when the
    model was in memory (`runner_at_s`), when it first got a seat in the batch, and when its first token was
    there.
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
        """Tokens that one hash of `prefix` covers, where KV blocks have `block_tokens`. Raises ValueError if
        that is no multiple of a block."""
        unit = block_tokens if self.prefix_tokens is None else self.prefix_tokens
        if unit < 1 or unit % block_tokens:
            raise ValueError(f"prefix_tokens {unit} is no multiple of a KV block of {block_tokens}")
        return unit


class Progress(NamedTuple):
    """Tokens that a sequence got by the end of a step; `finished` is set on its last one."""

    seq_id: str
    at_s: float
    new_tokens: int
    finished: Finish | None
