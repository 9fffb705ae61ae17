"""A model in an Ollama server's memory: its slots, the sequences that wait for one, and the batch of its next step."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from typing import NamedTuple

from backends.engine.sequence import Finish, Sequence
from router.core.profile import EngineProfile

#: A free slot is chosen for its cached prompt if that covers at least this share of the new one.
SLOT_SIMILARITY = 0.1


@dataclass(slots=True, eq=False)
class Work:
    """A sequence in the server."""

    seq: Sequence
    output: int
    finish: Finish
    generated: int = 0
    computed: int = 0


@dataclass(slots=True, eq=False)
class Slot:
    """One slot. The first `cached` tokens of the prompt with the hashes `prefix`, `unit_tokens` each, are in its KV
    cache."""

    work: Work | None = None
    prefix: tuple[int, ...] = ()
    unit_tokens: int = 1
    cached: int = 0
    used_at_s: float = float("-inf")


class Runner:
    """A model that is in memory."""

    __slots__ = ("keep_alive_s", "profile", "queue", "slots", "used_at_s")

    def __init__(self, profile: EngineProfile, slots: int, now: float, keep_alive_s: float) -> None:
        self.profile = profile
        self.slots = [Slot() for _ in range(slots)]
        self.queue: OrderedDict[str, Work] = OrderedDict()
        self.used_at_s = now  # when its last request ended
        self.keep_alive_s = keep_alive_s

    @property
    def active(self) -> int:
        return sum(slot.work is not None for slot in self.slots)

    @property
    def idle(self) -> bool:
        return not self.queue and not any(slot.work for slot in self.slots)


class Batch(NamedTuple):
    """One step of a model: its work, and its time in seconds."""

    step_s: float
    slope_s: float  # the added time if each decoding sequence has one token more
    decoding: list[tuple[Slot, Work]]
    chunks: list[tuple[Slot, Work, int]]  # with the number of new prompt tokens


NO_BATCH = Batch(0.0, 0.0, [], [])


def make_batch(runner: Runner) -> Batch:
    """The work of a model's next step: one token for each decoding sequence, and prompts with the rest of the budget."""
    profile = runner.profile
    prompts: list[tuple[Slot, Work]] = []
    decoding: list[tuple[Slot, Work]] = []
    chunks: list[tuple[Slot, Work, int]] = []
    context = prefill = 0
    pairs = 0.0
    for slot in runner.slots:
        work = slot.work
        if work is None:
            continue
        if work.computed < work.seq.prompt_tokens:
            prompts.append((slot, work))
        else:
            decoding.append((slot, work))
            context += work.seq.prompt_tokens + work.generated
    budget = profile.max_batched_tokens - len(decoding)
    for slot, work in prompts:
        new = min(budget, work.seq.prompt_tokens - work.computed)
        if new <= 0:
            break
        pairs += new * (work.computed + (new + 1) / 2)
        chunks.append((slot, work, new))
        prefill += new
        budget -= new
    decoders = len(decoding)
    step_s = profile.step_s(prefill, decoders, context, pairs)
    return Batch(step_s, decoders * profile.per_kv_token_s, decoding, chunks)


def choose_slot(free: list[Slot], seq: Sequence, block_tokens: int) -> tuple[Slot, int]:
    """The free slot for a prompt, and the number of the prompt's tokens in it: the slot with the longest common prefix
    if that is a large enough share of the prompt, else the one used least recently."""
    best, common = free[0], -1
    for slot in free:
        found = _common_tokens(slot, seq, block_tokens)
        if found > common:
            best, common = slot, found
    if common <= SLOT_SIMILARITY * seq.prompt_tokens:
        best = min(free, key=lambda slot: slot.used_at_s)
        common = _common_tokens(best, seq, block_tokens)
    return best, common


def _common_tokens(slot: Slot, seq: Sequence, block_tokens: int) -> int:
    unit = seq.unit_tokens(block_tokens)
    if unit != slot.unit_tokens:
        return 0
    # The last token is always computed, because its output is needed to sample the next one.
    most = min(slot.cached, seq.prompt_tokens - 1) // unit
    different = compress(count(), map(ne, slot.prefix, seq.prefix))
    return min(next(different, len(seq.prefix)), len(slot.prefix), most) * unit
