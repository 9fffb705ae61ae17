# cython: language_level=3, annotation_typing=False
"""The sequences of a batch that decode.

Each of them gets exactly one token in each step that decodes, so these steps are counted, and there is no work for each
sequence and step. A sequence's context is `offset + steps`. The step of its last token is known when it starts to
decode, and it needs a new KV block in every `block`-th step.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from copy import copy

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

    def __init__(self, seq: Sequence, output: int, finish: Finish, target: int) -> None:
        self.seq = seq
        self.output = output
        self.finish = finish
        self.target = target  # tokens to have in KV memory before it decodes
        self.generated = 0  # up to date unless it decodes
        self.computed = 0  # tokens in KV memory, while it prefills
        #: Hashed units that it holds: `seq.prefix` or the beginning of it.
        self.held: list[int] = []
        self.offset = 0
        self.decoding_from_s = 0.0  # when it got the token from which it began to decode
        self.end_step: int | None = None  # set while it decodes
        self.preempted = False

    def copy(self) -> Active:
        """One in the same state, of the same `Sequence`."""
        copied = copy(self)
        copied.held = self.held.copy()
        return copied


class Decoding:
    """`steps` are the completed ones in which all sequences got a token. `context_tokens` is the sum of their contexts
    then."""

    __slots__ = ("_block", "_end_steps", "_ends", "_growing", "context_tokens", "sequences", "steps")

    def __init__(self, block: int) -> None:
        self.sequences: dict[str, Active] = {}
        self.steps = 0
        self.context_tokens = 0
        self._block = block
        self._growing: list[dict[str, Active]] = [{} for _ in range(block)]  # by step modulo block
        self._ends: dict[int, dict[str, Active]] = {}  # by the step of their last token
        self._end_steps: list[int] = []  # heap of the keys of `_ends`

    def copy(self, inside: Mapping[str, Active]) -> Decoding:
        """The same state of the copies `inside`, by id."""
        copied = Decoding(self._block)
        copied.steps, copied.context_tokens = self.steps, self.context_tokens
        copied.sequences = {seq_id: inside[seq_id] for seq_id in self.sequences}
        copied._growing = [{seq_id: inside[seq_id] for seq_id in some} for some in self._growing]
        copied._ends = {end: {seq_id: inside[seq_id] for seq_id in some} for end, some in self._ends.items()}
        copied._end_steps = self._end_steps.copy()
        return copied

    def add(self, active: Active, context: int) -> None:
        """A sequence starts to decode."""
        seq_id = active.seq.id
        active.offset = context - self.steps
        end = self.steps + active.output - active.generated
        active.end_step = end
        self.sequences[seq_id] = active
        self.context_tokens += context
        # The next step writes token number `context`: into a new block if the blocks before are full.
        self._growing[(1 - active.offset) % self._block][seq_id] = active
        ending = self._ends.get(end)
        if ending is None:
            self._ends[end] = {seq_id: active}
            heapq.heappush(self._end_steps, end)
        else:
            ending[seq_id] = active

    def remove(self, active: Active) -> int:
        """A sequence stops decoding; returns its context."""
        seq_id = active.seq.id
        context = active.offset + self.steps
        del self.sequences[seq_id]
        self.context_tokens -= context
        del self._growing[(1 - active.offset) % self._block][seq_id]
        assert active.end_step is not None  # noqa: S101 (set for all that decode)
        ending = self._ends.get(active.end_step)
        if ending is not None:  # None if it ends by itself
            del ending[seq_id]
        active.end_step = None
        return context

    def advance(self, count: int) -> dict[str, Active]:
        """Complete `count` steps; returns the sequences that got their last token in the last of them, by id."""
        self.steps += count
        self.context_tokens += count * len(self.sequences)
        while self._end_steps and self._end_steps[0] <= self.steps:
            heapq.heappop(self._end_steps)
        return self._ends.pop(self.steps, {})

    def growing(self) -> dict[str, Active]:
        """Those that need a KV block in the next step, by id; it shrinks when one of them is removed."""
        return self._growing[self.steps % self._block]

    def blocks_after(self, steps: int) -> int:
        """The KV blocks that the `steps` steps after the next one need."""
        cycles, rest = divmod(steps, self._block)
        first = (self.steps + 1) % self._block
        beyond = max(first + rest - self._block, 0)
        return cycles * len(self.sequences) + sum(
            map(len, self._growing[first : first + rest] + self._growing[:beyond])
        )

    def equal_steps(self, free: int) -> int:
        """How many steps from now on are equal: until a sequence ends, or the `free` KV blocks run out, those of the next
        step being taken."""
        while not self._ends[self._end_steps[0]]:  # sequences that would have ended there have been removed
            del self._ends[heapq.heappop(self._end_steps)]
        most = self._end_steps[0] - self.steps
        decoding = len(self.sequences)
        cycles = min((most - 1) // self._block, free // decoding)
        free -= cycles * decoding
        if free >= decoding:
            # Fewer steps than a block has tokens are left, and a sequence needs one block for these.
            return most
        steps = 1 + cycles * self._block
        while steps < most:
            free -= len(self._growing[(self.steps + steps) % self._block])
            if free < 0:
                break
            steps += 1
        return steps
