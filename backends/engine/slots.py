"""An Ollama server: one llama.cpp process for each loaded model, each with a fixed number of slots.

A request for a model in memory waits for a free slot of that model, in order of arrival. A request for another model is
*pending* until that model is loaded; only pending requests count against the limit (Ollama's OLLAMA_MAX_QUEUE). Models
load one at a time, in the order of the requests. If there is no room, the idle model used least recently is unloaded;
if none is idle, the load waits. A model unloads by itself `keep_alive_s` after its last request.

One step is one llama.cpp batch of one model: one token for each decoding slot, and prompts with the rest of the budget.
A slot keeps the KV cache of its last prompt, and a new prompt reuses the leading blocks that both have in common.
Models in memory share the hardware: their steps alternate.

With `every_token=False` equal steps are computed together. While every slot with work decodes, a *round* (one step of
each model with work) differs from the one before only in the number of KV tokens read. So the times of many rounds are
an arithmetic series. Such a jump ends before the round in which a sequence ends, or when a slot gets or loses its work.

Facts from the Ollama and llama.cpp sources (both MIT): default limits, loads in order of arrival, slot choice by the
longest common prefix.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

from backends.engine import series
from backends.engine.runner import NO_BATCH, Batch, Runner, Slot, Work, choose_slot, make_batch
from backends.engine.sequence import Progress, PromptTooLong, QueueFull, Sequence
from router.core.profile import EngineProfile


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. `expires_at_s` is None while it serves requests, infinite if it never expires."""

    model: str
    expires_at_s: float | None
    active: int
    context_tokens: int


class SlotEngine:
    """An Ollama server that may load the models in `profiles` (by the name that requests use).

    `slots` (None: the profile's) is OLLAMA_NUM_PARALLEL. `context_tokens` is num_ctx, the context of one slot, bounded
    by the KV memory for each. `model_bytes` and `memory_bytes` bound the loaded models by memory, in addition to their
    number. All times are seconds of the profiles, on the caller's clock. With `every_token=False` progress is reported
    only for the first and the last token of a sequence; the times agree with those of single steps except for rounding.
    """

    def __init__(
        self,
        profiles: Mapping[str, EngineProfile],
        *,
        slots: int | None = None,
        max_loaded_models: int = 3,
        context_tokens: int = 8192,
        max_pending: int = 512,
        keep_alive_s: float = 300.0,
        model_bytes: Mapping[str, int] | None = None,
        memory_bytes: int | None = None,
        every_token: bool = True,
    ) -> None:
        if max_loaded_models < 1 or (slots is not None and slots < 1):
            raise ValueError("an Ollama server loads at least one model with at least one slot")
        self.profiles = dict(profiles)
        self.slots = slots
        self.max_loaded_models = max_loaded_models
        self.context_tokens = context_tokens
        self.max_pending = max_pending
        self.keep_alive_s = keep_alive_s
        self.model_bytes = dict(model_bytes or {})
        self.memory_bytes = memory_bytes
        self.every_token = every_token
        if memory_bytes is not None:
            for model in self.profiles:
                if self.model_bytes.get(model, 0) > memory_bytes:
                    raise ValueError(f"model {model!r} is larger than the memory")
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0
        # It preempts nothing, and its KV memory is its slots.
        self.preemptions_total, self.kv_usage = 0, None
        self.loads_total = 0
        self.unloads_total = 0
        self._runners: dict[str, Runner] = {}
        self._keep_alive: dict[str, float] = {}  # as requested last, by model
        self._pending: OrderedDict[str, Work] = OrderedDict()
        self._model_of: dict[str, str] = {}  # every sequence in the engine
        self._loading: tuple[str, float] | None = None  # model, when it is in memory
        self._step: tuple[str, float] | None = None  # model, when the step ends
        self._batch = NO_BATCH  # of that step
        # The jump before that step: `_rounds` rounds over the models in `_round`, from `_start_s` on, in which no
        # sequence ends. The first round takes `_round_s`, each further one `_slope_s` more.
        self._rounds = 0
        self._rounds_done = 0
        self._round: dict[str, Batch] = {}
        self._start_s = 0.0
        self._round_s = 0.0
        self._slope_s = 0.0
        self._turn: list[str] = []  # loaded models, the one that ran longest ago first
        self._free_at_s = 0.0  # when the hardware can start the next step
        self._out: list[Progress] = []

    def copy(self) -> SlotEngine:
        """A server in the same state, which then goes its own way."""
        return deepcopy(self, {id(profile): profile for profile in self.profiles.values()})

    # What an operator sees -----------------------------------------------------------------------

    @property
    def running(self) -> int:
        return sum(runner.active for runner in self._runners.values())

    @property
    def waiting(self) -> int:
        """Sequences that wait for a load or for a slot."""
        return len(self._pending) + sum(len(runner.queue) for runner in self._runners.values())

    @property
    def pending(self) -> int:
        """Sequences that wait for a load."""
        return len(self._pending)

    @property
    def loading(self) -> str | None:
        return self._loading[0] if self._loading else None

    def slot_context_tokens(self, model: str) -> int:
        """Context of one slot of a model. Raises KeyError for an unknown one."""
        profile = self.profiles[model]
        return min(self.context_tokens, profile.kv_capacity_tokens // (self.slots or profile.slots))

    def loaded(self, now: float) -> list[LoadedModel]:
        """The models in memory at `now`, for /api/ps, ordered by expiry, the last first."""
        self._catch_up(now)
        found = [
            LoadedModel(
                model,
                runner.used_at_s + runner.keep_alive_s if runner.idle else None,
                runner.active,
                self.slot_context_tokens(model),
            )
            for model, runner in self._runners.items()
        ]
        found.sort(
            key=lambda one: (-(one.expires_at_s if one.expires_at_s is not None else float("inf")), one.model)
        )
        return found

    # Events in -----------------------------------------------------------------------------------

    def submit(self, seq: Sequence, now: float, keep_alive_s: float | None = None) -> None:
        """Submit a sequence for `seq.model`. `keep_alive_s` replaces the model's keep-alive (infinite: never unload, 0:
        as soon as it is idle). A sequence without a prompt only loads the model, and its one Progress has no tokens.
        Raises KeyError for an unknown model, QueueFull (pending sequences only), PromptTooLong, and ValueError for an id in
        use or invalid lengths.
        """
        self._catch_up(now)
        if seq.id in self._model_of:
            raise ValueError(f"sequence {seq.id!r} is in the engine already")
        if seq.prompt_tokens < 0 or seq.output_tokens < 0 or (seq.output_tokens and not seq.prompt_tokens):
            raise ValueError("a sequence that generates has at least one prompt token")
        limit = self.slot_context_tokens(seq.model)
        seq.unit_tokens(self.profiles[seq.model].block_tokens)
        room = limit - seq.prompt_tokens
        if room < min(1, seq.output_tokens):
            raise PromptTooLong(seq.prompt_tokens, limit)
        runner = self._runners.get(seq.model)
        if runner is None and len(self._pending) >= self.max_pending:
            raise QueueFull(f"{len(self._pending)} sequences are pending")
        if keep_alive_s is not None:
            self._keep_alive[seq.model] = keep_alive_s
            if runner is not None:
                runner.keep_alive_s = keep_alive_s
        work = Work(seq, min(seq.output_tokens, room), seq.finish if seq.output_tokens <= room else "length")
        seq.submitted_at_s = now
        self._model_of[seq.id] = seq.model
        if self._step is None:
            self._free_at_s = max(self._free_at_s, now)
        if runner is None:
            self._pending[seq.id] = work
            self._start_load(now)
        else:
            self._enter(runner, work, now)
            self._after_release(seq.model, now)

    def abort(self, seq_id: str, now: float) -> int:
        """Remove a sequence. One that has ended by `now`, or is unknown, is ignored. A load that was started for it
        continues. Returns the number of tokens that it had generated, 0 if it was not in the engine."""
        self._catch_up(now)
        model = self._model_of.pop(seq_id, None)
        if model is None or self._pending.pop(seq_id, None) is not None:
            return 0
        runner = self._runners[model]
        generated = 0
        if runner.queue.pop(seq_id, None) is None:
            for slot in runner.slots:
                if slot.work is not None and slot.work.seq.id == seq_id:
                    generated = slot.work.generated
                    self._cut_jump()
                    self._release(runner, slot, now)
                    break
        self._after_release(model, now)
        return generated

    def unload(self, model: str, now: float) -> None:
        """Unload a model as soon as it is idle (keep-alive 0)."""
        self._catch_up(now)
        runner = self._runners.get(model)
        if runner is not None:
            runner.keep_alive_s = 0.0
            self._after_release(model, now)

    def next_at(self) -> float | None:
        """When the current step or load ends; None if idle. Models expire in between without a call."""
        self._plan()
        ends = [one[1] for one in (self._step, self._loading) if one is not None]
        return min(ends) if ends else None

    def advance(self, now: float) -> list[Progress]:
        """All progress by `now`, in order of time. Models whose keep-alive is over are unloaded."""
        self._catch_up(now)
        out = self._out
        self._out = []
        return out

    # Models in and out of memory -----------------------------------------------------------------

    def _start_load(self, now: float) -> None:
        """Load the model of the first pending sequence, if nothing loads now and there is room."""
        if self._loading is not None or not self._pending:
            return
        model = next(iter(self._pending.values())).seq.model
        while not self._fits(model):
            idle = [name for name, runner in self._runners.items() if runner.idle]
            if not idle:
                return
            self._remove(min(idle, key=lambda name: (self._runners[name].used_at_s, name)))
        self._loading = (model, now + self.profiles[model].load_s)

    def _fits(self, model: str) -> bool:
        if len(self._runners) >= self.max_loaded_models:
            return False
        if self.memory_bytes is None:
            return True
        held = sum(self.model_bytes.get(name, 0) for name in self._runners)
        return held + self.model_bytes.get(model, 0) <= self.memory_bytes

    def _end_load(self) -> None:
        assert self._loading is not None  # noqa: S101 (the caller has looked)
        model, now = self._loading
        self._loading = None
        self.loads_total += 1
        profile = self.profiles[model]
        keep_alive_s = self._keep_alive.get(model, self.keep_alive_s)
        runner = Runner(profile, self.slots or profile.slots, now, keep_alive_s)
        self._runners[model] = runner
        self._turn.append(model)
        if self._step is None:
            self._free_at_s = max(self._free_at_s, now)
        for seq_id, work in list(self._pending.items()):
            if work.seq.model == model:
                del self._pending[seq_id]
                self._enter(runner, work, now)
        self._after_release(model, now)

    def _remove(self, model: str) -> None:
        del self._runners[model]
        self._keep_alive.pop(model, None)  # a request's keep-alive holds only while the model stays loaded
        self._turn.remove(model)
        self.unloads_total += 1

    def _after_release(self, model: str, now: float) -> None:
        """A model may have become idle: unload it if its keep-alive is over, and give its room to waiting sequences."""
        runner = self._runners.get(model)
        if runner is not None and runner.idle and runner.keep_alive_s <= 0:
            self._remove(model)
        self._start_load(now)

    def _expire(self, now: float) -> None:
        for model, runner in list(self._runners.items()):
            if runner.used_at_s + runner.keep_alive_s <= now and runner.idle:
                self._remove(model)

    # Slots -----------------------------------------------------------------------------------------

    def _enter(self, runner: Runner, work: Work, now: float) -> None:
        work.seq.runner_at_s = now
        if not work.seq.prompt_tokens:
            runner.used_at_s = now
            self._end(work, 0, now)
            return
        runner.queue[work.seq.id] = work
        self._fill_slots(runner, now)

    def _fill_slots(self, runner: Runner, now: float) -> None:
        free = [slot for slot in runner.slots if slot.work is None]
        while runner.queue and free:
            _, work = runner.queue.popitem(last=False)
            slot, common = choose_slot(free, work.seq, runner.profile.block_tokens)
            free.remove(slot)
            self._cut_jump()
            seq = work.seq
            slot.work = work
            work.computed = seq.cached_tokens = common
            slot.prefix = seq.prefix
            slot.unit_tokens = seq.unit_tokens(runner.profile.block_tokens)
            slot.cached = common  # the rest will be overwritten
            seq.admitted_at_s = now
            self.prefix_queries_total += seq.prompt_tokens
            self.prefix_hits_total += common

    def _release(self, runner: Runner, slot: Slot, now: float) -> None:
        slot.work = None
        slot.used_at_s = runner.used_at_s = now
        self._fill_slots(runner, now)

    def _end(self, work: Work, new_tokens: int, at_s: float) -> None:
        self._out.append(Progress(work.seq.id, at_s, new_tokens, work.finish))
        del self._model_of[work.seq.id]

    # Steps -----------------------------------------------------------------------------------------

    def _catch_up(self, now: float) -> None:
        while True:
            if self._step is None and self._free_at_s < now:
                self._plan()
            ends = [one[1] for one in (self._step, self._loading) if one is not None]
            at_s = min(ends, default=math.inf)
            if self._settle(min(at_s, now)):
                continue
            if at_s > now:
                break
            self._expire(at_s)
            if self._loading is not None and self._loading[1] == at_s:
                self._end_load()
            else:
                self._finish_step()
        self._expire(now)

    def _plan(self) -> None:
        """Start the next step, of the model with work whose last step is longest ago."""
        if self._step is not None:
            return
        for model in self._turn:
            runner = self._runners[model]
            if runner.active:
                self._turn.remove(model)
                self._turn.append(model)
                self._batch = make_batch(runner)
                self._step = (model, self._free_at_s + self._batch.step_s)
                if not self.every_token and not self._batch.chunks:
                    self._plan_jump(model)
                return

    def _finish_step(self) -> None:
        assert self._step is not None  # noqa: S101 (the caller has looked)
        model, at_s = self._step
        self._rounds = self._rounds_done = 0  # `_settle` has counted their tokens
        self._step = None
        self._free_at_s = at_s
        runner = self._runners.get(model)
        if runner is None:  # all its work was aborted during the step, and it was unloaded
            return
        for slot, work in self._batch.decoding:
            if slot.work is work:  # not aborted
                self._give_token(runner, slot, work, at_s)
        for slot, work, new in self._batch.chunks:
            if slot.work is not work:
                continue
            work.computed += new
            slot.cached = work.computed
            if work.computed >= work.seq.prompt_tokens:
                work.seq.first_token_at_s = at_s
                self.prompt_tokens_total += work.seq.prompt_tokens
                self._give_token(runner, slot, work, at_s)
        self._after_release(model, at_s)

    def _give_token(self, runner: Runner, slot: Slot, work: Work, at_s: float) -> None:
        first = not work.generated
        new = min(1, work.output)
        work.generated += new
        self.generation_tokens_total += new
        if work.generated >= work.output:
            self._end(work, new if first or self.every_token else work.output - 1, at_s)
            self._release(runner, slot, at_s)
        elif first or self.every_token:
            self._out.append(Progress(work.seq.id, at_s, new, None))

    # Jumps over rounds that are alike --------------------------------------------------------------

    def _plan_jump(self, model: str) -> None:
        """Before the planned step, put as many rounds as no sequence ends in, if all slots with work decode."""
        batches = {model: self._batch}
        for other in self._turn:
            if other != model and self._runners[other].active:
                batches[other] = batch = make_batch(self._runners[other])
                if batch.chunks:
                    return
        left = (work.output - work.generated for batch in batches.values() for _, work in batch.decoding)
        rounds = min(left) - 1
        if not rounds:
            return
        self._round = batches
        self._rounds = rounds
        self._start_s = self._free_at_s
        self._round_s = sum(batch.step_s for batch in batches.values())
        self._slope_s = sum(batch.slope_s for batch in batches.values())
        self._step = (model, self._step_end_s(rounds))

    def _step_end_s(self, rounds: int) -> float:
        """When the first step after this many rounds of the jump ends."""
        return (
            self._start_s
            + series.span_s(self._round_s, self._slope_s, rounds)
            + self._batch.step_s
            + rounds * self._batch.slope_s
        )

    def _finish_rounds(self, done: int) -> None:
        """Complete this many rounds of the jump: count their tokens."""
        new = done - self._rounds_done
        if not new:
            return
        self._rounds_done = done
        for batch in self._round.values():
            for _, work in batch.decoding:
                work.generated += new
            self.generation_tokens_total += new * len(batch.decoding)
        model, *others = self._round  # all models ran their step before the current step
        for one in (*others, model):
            self._turn.remove(one)
            self._turn.append(one)

    def _settle(self, now: float) -> bool:
        """Complete those rounds of the jump that have ended by `now`. True if the next step has ended too, so that the
        jump ends: during a round, models step one by one."""
        if self._rounds == self._rounds_done:
            return False
        spent_s = now - self._start_s
        self._finish_rounds(series.count_within(self._round_s, self._slope_s, spent_s, self._rounds))
        if self._rounds == self._rounds_done or self._step_end_s(self._rounds_done) > now:
            return False
        self._cut_jump()
        return True

    def _cut_jump(self) -> None:
        """Something has changed: plan a new batch after the current step."""
        if self._rounds > self._rounds_done and self._step is not None:
            self._step = (self._step[0], self._step_end_s(self._rounds_done))
            self._rounds = self._rounds_done
