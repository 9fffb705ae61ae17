"""One instance of a simulated fleet: the pure engine model, whose time is the simulator's x `speed`. Decode stretches are jumped
over: progress is reported for the first and the last token of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from backends.engine import Engine, Progress, Sequence, SlotEngine, engine_of, profiles
from benchmarks.simulator.outcomes import Gaps
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS
from router.core.profile import EngineProfile
from router.core.types import Candidate, LoadReport

#: Context of an Ollama model for which the fleet names none.
OLLAMA_CONTEXT_TOKENS = 32_768


class SimulatedEngine:
    """The engine of one instance. `profiles_` are by the fleet's model names. With `fixed_slots` the engine has slots and
    loads models, as Ollama does; else it batches continuously, all models together. Raises ValueError if it does not hold
    its models. `down` is set while the instance is lost."""

    def __init__(
        self,
        name: str,
        fixed_slots: bool,
        candidates: Mapping[str, Candidate],
        profiles_: Mapping[str, EngineProfile],
        speed: float = 1.0,
    ) -> None:
        self.name = name
        self._fixed_slots = fixed_slots
        self.speed = speed
        self.down = False
        #: When the simulator will look at it next: the last value of `next_at`.
        self.due: float | None = None
        self._candidates = candidates
        self._profiles = profiles_
        self._due_engine_s = 0.0
        self._gaps: Gaps | None = None
        #: Preemptions of the engines that were lost.
        self._lost_preemptions = 0
        self._engine = self._empty()

    def copy(self) -> SimulatedEngine:
        """One in the same state, which then goes its own way."""
        copied = copy(self)
        copied._engine = self._engine.copy()
        return copied

    def restart(self) -> None:
        """An empty engine: nothing runs, nothing is cached or loaded."""
        self._lost_preemptions = self.preemptions
        self._engine = self._empty()
        self.on_gaps(self._gaps)

    def _empty(self) -> Engine | SlotEngine:
        if self._fixed_slots:
            return SlotEngine(
                self._profiles,
                context_tokens=max(
                    each.context_tokens or OLLAMA_CONTEXT_TOKENS for each in self._candidates.values()
                ),
                model_bytes={
                    model: profiles.weights_bytes(profile.name)
                    for model, profile in self._profiles.items()
                    if profiles.find(profile.name)
                },
                memory_bytes=profiles.known_memory_bytes(self._profiles.values()),
                keep_alive_s=300.0 * self.speed,
                every_token=False,
            )
        contexts = [each.context_tokens for each in self._candidates.values()]
        return engine_of(
            self._profiles,
            context_tokens=None if None in contexts else max(each for each in contexts if each),
            every_token=False,
        )

    def on_gaps(self, gaps: Gaps | None) -> None:
        """Count the gaps between tokens there (an engine with slots reports none)."""
        self._gaps = gaps
        if isinstance(self._engine, Engine) and gaps is not None:
            speed = self.speed

            def scaled(gap_s: float, count: int) -> None:
                gaps.add(gap_s / speed, count)

            self._engine.on_gaps = gaps.add if speed == 1.0 else scaled

    @property
    def tells_gaps(self) -> bool:
        return not self._fixed_slots

    def load(self) -> tuple[int, int, float | None]:
        """Running and waiting sequences, and the share of KV memory in use (None with slots)."""
        engine = self._engine
        return engine.running, engine.waiting, engine.kv_usage

    @property
    def preemptions(self) -> int:
        """Since the beginning, also before `restart`; an engine with slots has none."""
        return self._lost_preemptions + self._engine.preemptions_total

    def limit_tokens(self, model: str) -> int:
        """Prompt and output together that the engine holds for one request."""
        engine = self._engine
        return engine.limit_tokens if isinstance(engine, Engine) else engine.slot_context_tokens(model)

    def submit(
        self,
        seq_id: str,
        model: str,
        prompt_tokens: int,
        output_tokens: int,
        prefix_hashes: tuple[int, ...],
        now: float,
    ) -> int:
        """Queue a request; returns the prompt tokens that the engine counts. `prefix_hashes` cover
        PREFIX_BLOCK_TOKENS tokens each. Raises QueueFull and PromptTooLong; an Ollama cuts a prompt that is
        too long, as a real one does."""
        if self._fixed_slots:
            limit = self.limit_tokens(model)
            if prompt_tokens >= limit:
                prompt_tokens = max(1, limit - min(output_tokens, max(1, limit // 2)))
                prefix_hashes = ()  # the head is what is cut
        self._engine.submit(
            Sequence(
                seq_id, prompt_tokens, output_tokens, prefix_hashes, model, prefix_tokens=PREFIX_BLOCK_TOKENS
            ),
            now * self.speed,
        )
        return prompt_tokens

    def abort(self, seq_id: str, now: float) -> int:
        """Give up a request; returns the tokens that it had generated."""
        return self._engine.abort(seq_id, now * self.speed)

    def next_at(self) -> float | None:
        """When something ends next, in the simulator's seconds; None when idle."""
        due = self._engine.next_at()
        if due is None:
            self.due = None
        else:
            self._due_engine_s = due
            self.due = due / self.speed
        return self.due

    def advance(self, now: float) -> list[Progress]:
        """What was given out by `now`."""
        at_s = now * self.speed
        if self.due is not None and now >= self.due and at_s < self._due_engine_s:
            at_s = self._due_engine_s  # division and multiplication by the speed need not cancel
        return self._engine.advance(at_s)

    def report(self, now: float) -> LoadReport:
        """The instance's load report at `now`, as its adapter would read it."""
        match self._engine:
            case SlotEngine() as engine:
                loaded = engine.loaded(now * self.speed)
                names = frozenset(self._candidates[each.model].upstream_model for each in loaded)
                return LoadReport(loaded_models=names)
            case engine:
                kv_tokens = engine.kv.total * engine.profile.block_tokens
                return LoadReport(engine.running, engine.waiting, engine.kv_usage, kv_tokens)
