# cython: language_level=3, annotation_typing=False
"""Continuous batching as in vLLM's schedulers, as a pure state machine in virtual time.

One step is one forward pass over a new batch. Its token budget goes first to decoding sequences (one token each), then
to a prefill under way, then to waiting sequences in order of arrival. A prefill that does not fit into the rest of the
budget is cut into chunks. The step that completes a prefill gives the first token. When KV blocks run out, the sequence
admitted last is preempted: it loses its blocks, returns to the head of the queue, and later recomputes its output so
far, and what is no longer in the cache of its prompt.

This is vLLM's v1 scheduler, and the older one (v0) with chunked prefill. Without chunked prefill (`chunked_prefill` of
the profile is off), the older one schedules complete prompts first: while waiting sequences fit, in order of arrival,
into the budget, the seats and the free blocks, a step prefills only such prompts, and decoding sequences get no token.
Otherwise the step only decodes. A prompt is admitted only if one block in a hundred stays free, so that it is not
preempted at once (`vllm/core/scheduler.py`, `_schedule_default`; `can_allocate` of its block manager).

Why it is fast: there is no work for each decoding sequence and step (`backends.engine.decoding`). A step without prefill
costs O(1) plus the list of its tokens. With `every_token=False` a whole stretch of such steps is
one computation: its length is known (the next end, or no more blocks), and its time is an arithmetic series
(`backends.engine.series`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from copy import copy
from typing import Self

from backends.engine.sequence import Finish, Progress, PromptTooLong, Sequence
from router.core.profile import EngineProfile

from .decoding import Active, Decoding
from .kv import KvBlocks
from .series import count_within, span_s

#: The share of the blocks that an admission leaves free if prompts are not chunked (vLLM's watermark).
_WATERMARK = 0.01


class Engine:
    """One engine replica. All times are seconds of `profile`, on the caller's clock.

    `context_tokens` bounds prompt and output together, in addition to KV memory. With `every_token=False` progress is
    reported only for the first and the last token of a sequence; the times agree with those of single steps except for
    rounding. All sequences with hashes have the same `prefix_tokens`.
    """

    def __init__(
        self,
        profile: EngineProfile,
        *,
        prefix_caching: bool = True,
        context_tokens: int | None = None,
        every_token: bool = True,
    ) -> None:
        block = profile.block_tokens
        if profile.max_batched_tokens < profile.max_seqs:
            raise ValueError(
                "max_batched_tokens must be at least max_seqs: every sequence decodes in every step"
            )
        if profile.kv_capacity_tokens < block:
            raise ValueError("KV memory holds no block")
        self.profile = profile
        self.prefix_caching = prefix_caching
        self.every_token = every_token
        self.kv = KvBlocks(profile.kv_capacity_tokens // block)
        self._spared = 0 if profile.chunked_prefill else int(_WATERMARK * self.kv.total)
        fits = (self.kv.total - self._spared) * block
        if not profile.chunked_prefill:
            fits = min(fits, profile.max_batched_tokens)  # in one step, and again after a preemption
        self.limit_tokens = fits if context_tokens is None else min(fits, context_tokens)
        #: Called with gaps between tokens when they end: their mean in seconds and their number. Those of a stretch are
        #: reported together; the long gap of a preemption is not reported.
        self.on_gaps: Callable[[float, int], None] | None = None
        self.preemptions_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self._block = block
        self._unit: int | None = None  # tokens of one hash, set by the first sequence with hashes
        self._all: dict[str, Active] = {}
        self._waiting: OrderedDict[str, Active] = OrderedDict()
        self._running: dict[str, Active] = {}  # in order of admission
        self._prefilling: dict[str, Active] = {}
        self._decoding = Decoding(block)
        self._decoded_at_s = 0.0  # when the last step ended in which they got a token
        self._prompts_only = False  # the current step is not one of these
        self._idle_from_s = 0.0  # when the next step may start
        # The current stretch: `_stretch` steps that differ only in KV growth; 0 if nothing runs.
        self._stretch = 0
        self._start_s = 0.0
        self._end_s = 0.0
        self._first_s = 0.0
        self._slope_s = 0.0
        self._chunks: list[tuple[Active, int]] = []
        self._out: list[Progress] = []

    def copy(self) -> Self:
        """An engine in the same state, which then goes its own way. Only the sequences are shared, so the times in each
        are those of the engine that served it last."""
        copied = copy(self)
        inside = copied._all = {seq_id: active.copy() for seq_id, active in self._all.items()}
        copied._waiting = OrderedDict({seq_id: inside[seq_id] for seq_id in self._waiting})
        copied._running = {seq_id: inside[seq_id] for seq_id in self._running}
        copied._prefilling = {seq_id: inside[seq_id] for seq_id in self._prefilling}
        copied._chunks = [(inside.get(active.seq.id, active), count) for active, count in self._chunks]
        copied._decoding = self._decoding.copy(inside)
        copied._out = self._out.copy()
        copied.kv = self.kv.copy()
        return copied

    # What an operator sees -----------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        return self.kv.usage

    # Events in -----------------------------------------------------------------------------------

    def submit(self, seq: Sequence, now: float) -> None:
        """Queue a sequence; it may join the step that starts at `now`. Raises PromptTooLong, and ValueError
        for an id in use, invalid lengths or another `prefix_tokens`."""
        self._catch_up(now)
        if seq.id in self._all:
            raise ValueError(f"sequence {seq.id!r} is in the engine already")
        if seq.prompt_tokens < 1 or seq.output_tokens < 0:
            raise ValueError("a sequence has at least one prompt token and no negative output")
        room = self.limit_tokens - seq.prompt_tokens
        if room < min(1, seq.output_tokens):
            raise PromptTooLong(seq.prompt_tokens, self.limit_tokens)
        unit = seq.unit_tokens(self._block) if self.prefix_caching and seq.prefix else self._unit
        if unit != self._unit and self._unit is not None:
            raise ValueError(f"hashes cover {self._unit} tokens in this engine, not {unit}")
        if not self._all:
            self._idle_from_s = now
        if unit is not None and self._unit is None:
            self._unit = unit
            self.kv.unit = unit // self._block
        if self._stretch > 1 and not self._waiting and len(self._running) < self.profile.max_seqs:
            self._cut_stretch()  # it can join: nobody waits for a seat or a block
        finish: Finish = seq.finish if seq.output_tokens <= room else "length"
        active = Active(seq, min(seq.output_tokens, room), finish, seq.prompt_tokens)
        seq.submitted_at_s = seq.runner_at_s = now
        self._all[seq.id] = active
        self._waiting[seq.id] = active

    def abort(self, seq_id: str, now: float) -> int:
        """Remove a sequence and free its blocks. One that has ended by `now`, or is unknown, is ignored. The current
        step keeps its length. Returns the number of tokens that it had generated, 0 if it was not in the engine."""
        self._catch_up(now)
        active = self._all.get(seq_id)
        if active is None:
            return 0
        if self._stretch > 1:
            self._cut_stretch()
        if self._waiting.pop(seq_id, None) is None:
            self._leave(active, in_step=self._stretch > 0 and not self._prompts_only)
        elif active.preempted:
            self.kv.give(self.kv.unpark(seq_id))
        del self._all[seq_id]
        return active.generated

    def next_at(self) -> float | None:
        """When the current step (or stretch of steps) ends; None if idle."""
        self._plan_if_idle()
        return self._end_s if self._stretch else None

    def advance(self, now: float) -> list[Progress]:
        """All progress of steps that ended by `now`, in order of time."""
        self._catch_up(now)
        out = self._out
        self._out = []
        return out

    # Steps ---------------------------------------------------------------------------------------

    def _catch_up(self, now: float) -> None:
        """Complete all steps that end by `now`. A step that starts exactly at `now` is not planned yet, so that other
        events at `now` can join it."""
        while True:
            if not self._stretch:
                if not self._all or self._idle_from_s >= now:
                    return
                self._plan()
            if self._end_s > now:
                self._settle(now)
                return
            self._finish_steps(self._stretch)

    def _plan_if_idle(self) -> None:
        if not self._stretch and self._all:
            self._plan()

    def _plan(self) -> None:
        """Plan the batch of the step that starts at `_idle_from_s`. If it has no prefill and `every_token` is off, plan
        the stretch of equal steps that begins with it."""
        profile = self.profile
        self._start_s = self._idle_from_s
        self._slope_s = 0.0
        self._stretch = 1
        self._prompts_only = not profile.chunked_prefill and self._plan_prompts()
        if self._prompts_only:
            return
        preempted = False
        if growing := self._decoding.growing():
            while len(growing) > self.kv.free:
                self._preempt_last()
                preempted = True
            self.kv.take(len(growing))
        decoding = len(self._decoding.sequences)
        budget = left = profile.max_batched_tokens - decoding
        pairs = 0.0
        self._chunks = []
        # At most one prefill is under way, the last one admitted: it got the whole rest of the budget.
        for active in tuple(self._prefilling.values()):
            count = min(left, active.target - active.computed)
            if self._blocks(active.computed + count) - self._blocks(active.computed) > self.kv.free:
                self._preempt_last()
                preempted = True
            else:
                pairs += self._schedule_chunk(active, count)
                left -= count
        if self._waiting and profile.chunked_prefill and not preempted:
            left, more = self._admit_waiting(left)
            pairs += more
        self._first_s = profile.step_s(budget - left, decoding, self._decoding.context_tokens, pairs)
        if not self.every_token and not self._chunks and not preempted:
            # No waiting sequence can be admitted before they end, because decoding frees no seat and no block.
            self._stretch = self._decoding.equal_steps(self.kv.free)
            self._slope_s = decoding * profile.per_kv_token_s
        self._end_s = self._start_s + span_s(self._first_s, self._slope_s, self._stretch)

    def _plan_prompts(self) -> bool:
        """Make the step a prefill of complete waiting prompts. False if none can be admitted."""
        budget = self.profile.max_batched_tokens
        self._chunks = []
        left, pairs = self._admit_waiting(budget)
        self._first_s = self.profile.step_s(budget - left, 0, 0, pairs)
        self._end_s = self._start_s + self._first_s
        return bool(self._chunks)

    def _admit_waiting(self, left: int) -> tuple[int, float]:
        """Admit waiting sequences into the step, which has this much budget left. Returns the budget that is left
        afterwards, and their (new, context) token pairs."""
        pairs = 0.0
        while self._waiting and left > 0 and len(self._running) < self.profile.max_seqs:
            active = next(iter(self._waiting.values()))
            count = self._admit(active, left)
            if not count:
                break
            pairs += self._schedule_chunk(active, count)
            left -= count
        return left, pairs

    def _admit(self, active: Active, budget: int) -> int:
        """Give the first waiting sequence a seat, and blocks for as many tokens as `budget` allows. Returns the number
        of these tokens; 0 if there are too few blocks, or too little budget for a prompt that may not be cut."""
        seq = active.seq
        found: list[int] = []
        cached = 0
        if self._unit and seq.prefix:
            # The last token is always computed, because its output is needed to sample the next one.
            found = self.kv.match(seq.prefix, min(seq.prompt_tokens, active.target - 1) // self._unit)
            cached = len(found) * self._unit
        parked = 0
        if active.preempted and len(found) * self.kv.unit == self._hashed_blocks(seq):
            parked = self.kv.parked(seq.id)
            cached += parked * self._block
        count = min(budget, active.target - cached)
        if not self.profile.chunked_prefill and cached + count < active.target:
            return 0
        need = self._blocks(cached + count) - len(found) * self.kv.unit
        if need + self.kv.idle_among(found) > self.kv.free - self._spared:
            return 0
        self.kv.hold(found)
        if active.preempted:
            blocks = self.kv.unpark(seq.id)
            if not parked:
                self.kv.give(blocks)
        active.held = found
        active.computed = cached
        del self._waiting[seq.id]
        self._running[seq.id] = self._prefilling[seq.id] = active
        if not active.preempted:
            seq.admitted_at_s = self._idle_from_s
            seq.cached_tokens = cached
            self.prefix_queries_total += seq.prompt_tokens
            self.prefix_hits_total += cached
        return count

    def _schedule_chunk(self, active: Active, count: int) -> float:
        """Take blocks for `count` more tokens of a prefill; returns its (new, context) token pairs."""
        before = active.computed
        after = before + count
        self.kv.take(self._blocks(after) - self._blocks(before))
        seq = active.seq
        if self._unit and seq.prefix:
            # As in vLLM, other sequences can find a block as soon as it is scheduled.
            full = min(after, seq.prompt_tokens) // self._unit
            if full > before // self._unit:
                active.held += self.kv.name(seq.prefix[before // self._unit : full])
        active.computed = after
        self._chunks.append((active, count))
        return count * (before + (count + 1) / 2)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _hashed_blocks(self, seq: Sequence) -> int:
        """The leading blocks of a prompt that have hashes."""
        return min(len(seq.prefix), seq.prompt_tokens // self._unit) * self.kv.unit if self._unit else 0

    def _preempt_last(self) -> None:
        active = next(reversed(self._running.values()))
        self._leave(active, in_step=False, preempted=True)
        active.preempted = True
        active.target = active.seq.prompt_tokens + active.generated
        self.preemptions_total += 1
        self._waiting[active.seq.id] = active
        self._waiting.move_to_end(active.seq.id, last=False)

    def _leave(self, active: Active, *, in_step: bool, preempted: bool = False) -> None:
        """Remove a running sequence and free its blocks; those of its prompt stay in the cache if it is `preempted`.
        `in_step`: a step is under way, so a decoding sequence also has the block to which its newest token is written."""
        seq_id = active.seq.id
        del self._running[seq_id]
        if self._prefilling.pop(seq_id, None) is not None:
            tokens = active.computed
        else:
            context = self._decoding.remove(active)
            active.generated = context - active.seq.prompt_tokens
            # The newest token is in KV memory only after the step that has it as input.
            tokens = context if in_step else context - 1
        self.kv.give(self._blocks(tokens) - len(active.held) * self.kv.unit)
        if preempted and self.prefix_caching:
            own = min(tokens, active.seq.prompt_tokens) // self._block - self._hashed_blocks(active.seq)
            if own > 0:
                self.kv.park(seq_id, own)
        self.kv.drop(active.held)
        active.held = []
        active.computed = 0

    def _finish_steps(self, count: int) -> None:
        """Complete the first `count` steps of the stretch: count their tokens, report progress, and remove sequences
        that have ended. Takes the blocks for the step after them if that belongs to the stretch."""
        more = count < self._stretch
        at_s = self._start_s + span_s(self._first_s, self._slope_s, count) if more else self._end_s
        if ahead := count if more else count - 1:
            self.kv.take(self._decoding.blocks_after(ahead))
        if not self._prompts_only:
            self._give_tokens(count, at_s)
        for active, _ in self._chunks:
            if active.computed == active.target and self._prefilling.get(active.seq.id) is active:
                self._end_prefill(active, at_s)
        if more:
            self._start_s = at_s
            self._first_s += count * self._slope_s
            self._stretch -= count
            self._end_s = at_s + span_s(self._first_s, self._slope_s, self._stretch)
        else:
            self._chunks = []
            self._stretch = 0
            self._idle_from_s = at_s

    def _give_tokens(self, count: int, at_s: float) -> None:
        """All decoding sequences got a token in each of the `count` steps, the last one at `at_s`."""
        sequences = self._decoding.sequences
        if sequences and self.on_gaps is not None:
            self._report_gaps(self.on_gaps, count, at_s)
        self._decoded_at_s = at_s
        self.generation_tokens_total += count * len(sequences)
        ended = self._decoding.advance(count)
        if self.every_token:
            self._out += [Progress(name, at_s, 1, None) for name in sequences if name not in ended]
        if not ended:
            return
        for active in ended.values():
            new = 1 if self.every_token else active.output - 1
            self._out.append(Progress(active.seq.id, at_s, new, active.finish))
            self._leave(active, in_step=False)
            del self._all[active.seq.id]

    def _report_gaps(self, tell: Callable[[float, int], None], count: int, at_s: float) -> None:
        """Report the gaps that end in the `count` steps. Those of the first step began at each sequence's last token,
        which may be longer ago if steps with prompts came in between."""
        sequences = self._decoding.sequences
        start_s = self._start_s
        if self._decoded_at_s < start_s and not self.profile.chunked_prefill:
            start_s += self._first_s
            since = Counter(max(one.decoding_from_s, self._decoded_at_s) for one in sequences.values())
            for token_at_s, number in since.items():
                tell(start_s - token_at_s, number)
            count -= 1
        if count:
            tell((at_s - start_s) / count, count * len(sequences))

    def _end_prefill(self, active: Active, at_s: float) -> None:
        seq = active.seq
        first = not active.generated
        if first:
            seq.first_token_at_s = at_s
            self.prompt_tokens_total += seq.prompt_tokens
        if active.output:
            active.generated += 1
            self.generation_tokens_total += 1
        if active.generated >= active.output:
            new = min(1, active.output) if self.every_token or first else active.output - 1
            self._out.append(Progress(seq.id, at_s, new, active.finish))
            self._leave(active, in_step=False)
            del self._all[seq.id]
            return
        if self.every_token or first:
            self._out.append(Progress(seq.id, at_s, 1, None))
        del self._prefilling[seq.id]
        active.decoding_from_s = at_s
        self._decoding.add(active, seq.prompt_tokens + active.generated)

    # Stretches of steps without prefill -------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Complete those steps of the stretch that have ended by `now`."""
        if self._stretch <= 1:
            return
        count = count_within(self._first_s, self._slope_s, now - self._start_s, self._stretch - 1)
        if count > 0:
            self._finish_steps(count)

    def _cut_stretch(self) -> None:
        """Something has changed: plan a new batch after the current step."""
        self._stretch = 1
        self._slope_s = 0.0
        self._end_s = self._start_s + self._first_s
