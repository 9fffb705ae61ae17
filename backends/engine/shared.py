"""Continuous batching of several models in one engine process, such as a base model and its adapters.

The models share the queue, the seats, the budget of a step and the KV memory. A step is one forward pass for each set of
weights that has work in it, one after the other. Models of equal profiles have the same weights (adapters, other names), so
they are in one pass. Unlike models share the hardware too: their weights leave less KV memory, and its blocks are counted
as if all tokens were as large as the largest. A prefix is cached for each model by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backends.engine import profiles as catalog
from backends.engine.compiled import Engine
from backends.engine.sequence import Sequence
from backends.engine.series import span_s
from router.core.profile import EngineProfile


def engine_of(profiles: Mapping[str, EngineProfile], **settings: Any) -> Engine:
    """The engine of these models; the settings are those of `Engine`. Raises ValueError if they do not fit into it."""
    if len(profiles) > 1:
        return SharedEngine(profiles, **settings)
    (profile,) = profiles.values()
    return Engine(profile, **settings)


@dataclass(slots=True)
class _Pass:
    """One set of weights in one step."""

    prefill_tokens: int = 0
    pairs: float = 0.0
    decoding: int = 0
    context_tokens: int = 0


class SharedEngine(Engine):
    """An engine that serves several models; `profiles` are by their names. See the module's docstring."""

    def __init__(self, profiles: Mapping[str, EngineProfile], **settings: Any) -> None:
        first, *others = self._weights = list(dict.fromkeys(profiles.values()))
        if any(each.chunked_prefill != first.chunked_prefill for each in others):
            raise ValueError("all models of one engine need the same chunked_prefill")
        kv_tokens = _kv_tokens(self._weights)
        if kv_tokens < first.block_tokens:
            names = ", ".join(each.name for each in self._weights)
            raise ValueError(f"the models do not fit together into the memory: {names}")
        super().__init__(replace(first, kv_capacity_tokens=kv_tokens), **settings)
        self._models = list(profiles)
        self._weights_of = {model: self._weights.index(profile) for model, profile in profiles.items()}

    def submit(self, seq: Sequence, now: float) -> None:
        """As `Engine.submit`; the hashes of the prefix become those of its model. Raises KeyError for another model."""
        if seq.model not in self._weights_of:
            raise KeyError(seq.model)
        number, count = self._models.index(seq.model), len(self._models)
        seq.prefix = tuple(each * count + number for each in seq.prefix)
        super().submit(seq, now)

    def _plan(self) -> None:
        super()._plan()
        self._first_s, slope_s = self._step_s()
        if self._stretch > 1:
            self._slope_s = slope_s
        self._end_s = self._start_s + span_s(self._first_s, self._slope_s, self._stretch)

    def _step_s(self) -> tuple[float, float]:
        """Seconds of the planned step, and how many more each further step of its stretch takes."""
        passes = [_Pass() for _ in self._weights]
        for active, count in self._chunks:
            one = passes[self._weights_of[active.seq.model]]
            one.prefill_tokens += count
            one.pairs += count * (active.computed - count + (count + 1) / 2)
        if not self._prompts_only:
            for active in self._decoding.sequences.values():
                one = passes[self._weights_of[active.seq.model]]
                one.decoding += 1
                one.context_tokens += active.offset + self._decoding.steps
        step_s = slope_s = 0.0
        for profile, one in zip(self._weights, passes, strict=True):
            if one.prefill_tokens or one.decoding:
                step_s += profile.step_s(one.prefill_tokens, one.decoding, one.context_tokens, one.pairs)
                slope_s += one.decoding * profile.per_kv_token_s
        return step_s, slope_s


def _kv_tokens(weights: list[EngineProfile]) -> int:
    """Tokens that KV memory holds beside all these weights. Profiles that are not in the catalog take no room."""
    known = [each for each in weights if catalog.find(each.name)]
    bytes_of = {each.name: catalog.weights_bytes(each.name) for each in known}
    all_bytes = sum(bytes_of.values())

    def left(profile: EngineProfile) -> int:
        if profile.name not in bytes_of:
            return profile.kv_capacity_tokens
        others = all_bytes - bytes_of[profile.name]
        return profile.kv_capacity_tokens - int(others / catalog.model_of(profile.name).kv_bytes_per_token())

    return min(left(each) for each in weights)
