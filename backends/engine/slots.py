"""An Ollama server: one llama.cpp process per loaded model, each with a fixed number of slots.

A request for a model in memory goes to that model's slots and waits for a free one, first come first served.
A request for another model is *pending* until that model is loaded; only pending requests count against the
limit (Ollama's OLLAMA_MAX_QUEUE). Models load one at a time, in the order asked for; when no more fit, the
idle model used least recently is unloaded, and with none idle the load waits. A model unloads by itself
`keep_alive_s` after its last request.

One step is one llama.cpp batch of one model: a token for each slot that decodes, the rest of the budget to
prompts. A slot keeps the KV cache of its last prompt, and a new prompt reuses the leading blocks that it has
in common with it. Models in memory share the hardware: their steps alternate.

Facts from the Ollama and llama.cpp sources (both MIT): default limits, FIFO loads, slot choice by the longest
common prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from backends.engine.sequence import Finish, Progress, PromptTooLong, QueueFull, Sequence, UnknownModel
from router.core.profile import EngineProfile

#: A free slot is chosen for its cached prompt when it has at least this share of the new one.
SLOT_SIMILARITY = 0.1


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. `expires_at_s` is None while it serves requests, infinite if it never expires."""

    model: str
    loaded_at_s: float
    expires_at_s: float | None
    active: int
    waiting: int
    context_tokens: int


class _Work:
    __slots__ = ("computed", "finish", "generated", "output", "seq")

    def __init__(self, seq: Sequence, output: int, finish: Finish) -> None:
        self.seq = seq
        self.output = output
        self.finish: Finish = finish
        self.generated = 0
        self.computed = 0


class _Slot:
    __slots__ = ("cached", "used_at_s", "work")

    def __init__(self) -> None:
        self.work: _Work | None = None
        self.cached: tuple[int, ...] = ()
        self.used_at_s = float("-inf")


class _Runner:
    """A model that is in memory."""

    __slots__ = ("keep_alive_s", "loaded_at_s", "profile", "queue", "slots", "used_at_s")

    def __init__(self, profile: EngineProfile, slots: int, now: float, keep_alive_s: float) -> None:
        self.profile = profile
        self.slots = [_Slot() for _ in range(slots)]
        self.queue: OrderedDict[str, _Work] = OrderedDict()
        self.loaded_at_s = now
        self.used_at_s = now  # when its last request ended
        self.keep_alive_s = keep_alive_s

    @property
    def active(self) -> int:
        return sum(slot.work is not None for slot in self.slots)

    @property
    def idle(self) -> bool:
        return not self.queue and not any(slot.work for slot in self.slots)


class SlotEngine:
    """An Ollama server that may hold the models of `profiles` (by the name a request uses).

    `slots` (None: the profile's) is OLLAMA_NUM_PARALLEL, `context_tokens` num_ctx, the context of one slot,
    bounded by what KV memory gives each. `model_bytes` with `memory_bytes` bound loaded models by memory
    beside their number. All times are seconds of the profiles, on the caller's clock.
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
        if memory_bytes is not None:
            for model in self.profiles:
                if self.model_bytes.get(model, 0) > memory_bytes:
                    raise ValueError(f"model {model!r} is larger than the memory")
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0
        self.loads_total = 0
        self.unloads_total = 0
        self._runners: dict[str, _Runner] = {}
        self._keep_alive: dict[str, float] = {}  # as last asked for, by model
        self._pending: OrderedDict[str, _Work] = OrderedDict()
        self._model_of: dict[str, str] = {}  # every sequence in the engine
        self._loading: tuple[str, float] | None = None  # model, when it is in memory
        self._step: tuple[str, float] | None = None  # model, when the step ends
        self._chunks: list[tuple[_Slot, _Work, int]] = []
        self._decoding: list[tuple[_Slot, _Work]] = []
        self._turn: list[str] = []  # loaded models, the one that ran longest ago first
        self._free_at_s = 0.0  # when the hardware can start the next step
        self._out: list[Progress] = []

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
        """Context of one slot of a model. Raises UnknownModel."""
        profile = self._profile(model)
        return min(self.context_tokens, profile.kv_capacity_tokens // (self.slots or profile.slots))

    def loaded(self, now: float) -> list[LoadedModel]:
        """The models in memory at `now`, for /api/ps: the one that expires last first."""
        self._catch_up(now)
        found = [
            LoadedModel(
                model,
                runner.loaded_at_s,
                runner.used_at_s + runner.keep_alive_s if runner.idle else None,
                runner.active,
                len(runner.queue),
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
        """Take a sequence for `seq.model`. `keep_alive_s` replaces that model's keep-alive (infinite: never
        unload, 0: as soon as it is idle). A sequence of no prompt only loads the model, and its one Progress
        has no tokens. Raises UnknownModel, QueueFull (pending sequences only), PromptTooLong, and ValueError
        for an id in use."""
        self._catch_up(now)
        if seq.id in self._model_of:
            raise ValueError(f"sequence {seq.id!r} is in the engine already")
        if seq.prompt_tokens < 0 or seq.output_tokens < 0 or (seq.output_tokens and not seq.prompt_tokens):
            raise ValueError("a sequence that generates has at least one prompt token")
        limit = self.slot_context_tokens(seq.model)
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
        work = _Work(seq, min(seq.output_tokens, room), seq.finish if seq.output_tokens <= room else "length")
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

    def abort(self, seq_id: str, now: float) -> None:
        """Take a sequence out; one that has ended by `now`, or is not known, is left alone. A load that was
        started for it goes on."""
        self._catch_up(now)
        model = self._model_of.pop(seq_id, None)
        if model is None or self._pending.pop(seq_id, None) is not None:
            return
        runner = self._runners[model]
        if runner.queue.pop(seq_id, None) is None:
            for slot in runner.slots:
                if slot.work is not None and slot.work.seq.id == seq_id:
                    self._release(runner, slot, now)
                    break
        self._after_release(model, now)

    def unload(self, model: str, now: float) -> None:
        """Unload a model as soon as it is idle (keep-alive 0)."""
        self._catch_up(now)
        runner = self._runners.get(model)
        if runner is not None:
            runner.keep_alive_s = 0.0
            self._after_release(model, now)

    def next_at(self) -> float | None:
        """When the running step or load ends; None when idle. Models expire in between, unasked for."""
        self._plan()
        ends = [one[1] for one in (self._step, self._loading) if one is not None]
        return min(ends) if ends else None

    def advance(self, now: float) -> list[Progress]:
        """All that was given out by `now`, in order of time; models whose keep-alive is over are gone."""
        self._catch_up(now)
        out = self._out
        self._out = []
        return out

    # Models in and out of memory -----------------------------------------------------------------

    def _profile(self, model: str) -> EngineProfile:
        try:
            return self.profiles[model]
        except KeyError:
            raise UnknownModel(model) from None

    def _start_load(self, now: float) -> None:
        """Load the model that the first pending sequence asks for, if nothing loads now and there is room."""
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
        runner = _Runner(
            profile, self.slots or profile.slots, now, self._keep_alive.get(model, self.keep_alive_s)
        )
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
        self._keep_alive.pop(model, None)  # a wish lasts as long as the model stays
        self._turn.remove(model)
        self.unloads_total += 1

    def _after_release(self, model: str, now: float) -> None:
        """A model may have become idle: unload it if it was not to stay, and see who waits for its room."""
        runner = self._runners.get(model)
        if runner is not None and runner.idle and runner.keep_alive_s <= 0:
            self._remove(model)
        self._start_load(now)

    def _expire(self, now: float) -> None:
        for model, runner in list(self._runners.items()):
            if runner.used_at_s + runner.keep_alive_s <= now and runner.idle:
                self._remove(model)

    # Slots -----------------------------------------------------------------------------------------

    def _enter(self, runner: _Runner, work: _Work, now: float) -> None:
        work.seq.runner_at_s = now
        if not work.seq.prompt_tokens:
            runner.used_at_s = now
            self._end(work, 0, now)
            return
        runner.queue[work.seq.id] = work
        self._fill_slots(runner, now)

    def _fill_slots(self, runner: _Runner, now: float) -> None:
        free = [slot for slot in runner.slots if slot.work is None]
        while runner.queue and free:
            _, work = runner.queue.popitem(last=False)
            slot, common = _choose(free, work.seq, runner.profile.block_tokens)
            free.remove(slot)
            seq = work.seq
            slot.work = work
            work.computed = seq.cached_tokens = common
            slot.cached = seq.prefix[: common // runner.profile.block_tokens]  # the rest is overwritten
            seq.admitted_at_s = now
            self.prefix_queries_total += seq.prompt_tokens
            self.prefix_hits_total += common

    def _release(self, runner: _Runner, slot: _Slot, now: float) -> None:
        slot.work = None
        slot.used_at_s = runner.used_at_s = now
        self._fill_slots(runner, now)

    def _end(self, work: _Work, new_tokens: int, at_s: float) -> None:
        self._out.append(Progress(work.seq.id, at_s, new_tokens, work.finish))
        del self._model_of[work.seq.id]

    # Steps -----------------------------------------------------------------------------------------

    def _catch_up(self, now: float) -> None:
        while True:
            if self._step is None and self._free_at_s < now:
                self._plan()
            ends = [one[1] for one in (self._step, self._loading) if one is not None]
            if not ends or min(ends) > now:
                break
            at_s = min(ends)
            self._expire(at_s)
            if self._loading is not None and self._loading[1] == at_s:
                self._end_load()
            else:
                self._finish_step()
        self._expire(now)

    def _plan(self) -> None:
        """Start the next step, of the model that ran longest ago among those with work."""
        if self._step is not None:
            return
        for model in self._turn:
            runner = self._runners[model]
            if runner.active:
                self._turn.remove(model)
                self._turn.append(model)
                self._step = (model, self._free_at_s + self._batch(runner))
                return

    def _batch(self, runner: _Runner) -> float:
        """Make the batch of one step; returns the seconds it takes."""
        profile = runner.profile
        budget = profile.max_batched_tokens
        prompts: list[tuple[_Slot, _Work]] = []
        self._decoding = []
        self._chunks = []
        context = 0
        pairs = 0.0
        for slot in runner.slots:
            work = slot.work
            if work is None:
                continue
            if work.computed < work.seq.prompt_tokens:
                prompts.append((slot, work))
            else:
                self._decoding.append((slot, work))
                context += work.seq.prompt_tokens + work.generated
        budget -= len(self._decoding)
        for slot, work in prompts:
            count = min(budget, work.seq.prompt_tokens - work.computed)
            if count <= 0:
                break
            pairs += count * (work.computed + (count + 1) / 2)
            self._chunks.append((slot, work, count))
            budget -= count
        prefill = sum(count for _, _, count in self._chunks)
        return profile.step_s(prefill, len(self._decoding), context, pairs)

    def _finish_step(self) -> None:
        assert self._step is not None  # noqa: S101 (the caller has looked)
        model, at_s = self._step
        self._step = None
        self._free_at_s = at_s
        runner = self._runners.get(model)
        if runner is None:  # all its work was aborted in mid-step, and it was unloaded
            return
        for slot, work in self._decoding:
            if slot.work is work:  # not aborted
                self._give_token(runner, slot, work, at_s)
        for slot, work, count in self._chunks:
            if slot.work is not work:
                continue
            work.computed += count
            seq = work.seq
            slot.cached = seq.prefix[: min(work.computed, seq.prompt_tokens) // runner.profile.block_tokens]
            if work.computed >= seq.prompt_tokens:
                seq.first_token_at_s = at_s
                self.prompt_tokens_total += seq.prompt_tokens
                self._give_token(runner, slot, work, at_s)
        self._after_release(model, at_s)

    def _give_token(self, runner: _Runner, slot: _Slot, work: _Work, at_s: float) -> None:
        new = min(1, work.output)
        work.generated += new
        self.generation_tokens_total += new
        if work.generated >= work.output:
            self._end(work, new, at_s)
            self._release(runner, slot, at_s)
        else:
            self._out.append(Progress(work.seq.id, at_s, new, None))


def _choose(free: list[_Slot], seq: Sequence, block_tokens: int) -> tuple[_Slot, int]:
    """The free slot for a prompt and the tokens it has of it already: the one with the longest common prefix
    if that is a fair share of the prompt, else the one used least recently."""
    best, common = free[0], -1
    for slot in free:
        found = _common_tokens(slot, seq, block_tokens)
        if found > common:
            best, common = slot, found
    if common <= SLOT_SIMILARITY * seq.prompt_tokens:
        best = min(free, key=lambda slot: slot.used_at_s)
        common = _common_tokens(best, seq, block_tokens)
    return best, common


def _common_tokens(slot: _Slot, seq: Sequence, block_tokens: int) -> int:
    blocks = 0
    for mine, theirs in zip(slot.cached, seq.prefix, strict=False):
        if mine != theirs:
            break
        blocks += 1
    # The last token is always computed: its output is what the next one is sampled from.
    return min(blocks * block_tokens, (seq.prompt_tokens - 1) // block_tokens * block_tokens)
