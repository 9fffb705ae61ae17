"""A sequence inside the engine: its memory and its progress."""

from __future__ import annotations

from backends.engine.sequence import Finish, Sequence


class Active:
    """A sequence inside the engine. While it decodes, `offset + steps` is its context in tokens."""

    __slots__ = (
        "computed",
        "decoding_from_s",
        "end_step",
        "finish",
        "generated",
        "held",
        "offset",
        "output",
        "preempted",
        "seq",
        "target",
    )

    def __init__(self, seq: Sequence, output: int, finish: Finish) -> None:
        self.seq = seq
        self.output = output
        self.finish: Finish = finish
        self.generated = 0  # up to date unless it decodes
        self.computed = 0  # tokens in KV memory, while it prefills
        self.target = seq.prompt_tokens  # tokens to have in KV memory before it decodes
        self.held: list[int] = []  # hashed units that it holds: `seq.prefix` or the beginning of it
        self.offset = 0
        self.decoding_from_s = 0.0  # when it got the token from which it began to decode
        self.end_step: int | None = None  # set while it decodes
        self.preempted = False
