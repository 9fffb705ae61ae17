"""Which instance each prompt of a batch goes to, so that the last prefill ends as early as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import NamedTuple

from policies.placement.makespan import assign
from router.core.errors import invalid_request
from router.core.profile import EngineProfile
from router.core.state import Instance

#: The work of a plan grows with prompts x instances.
MAX_PAIRS = 25_600


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's length, and the model that it is for; None: any."""

    tokens: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """Where a prompt goes, and the seconds of its prefill there."""

    tokens: int
    model: str
    instance: str
    prefill_s: float


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """One instance: seconds until the prompts there have their first tokens (`ready_s`) and until those of the batch have
    them too."""

    instance: str
    ready_s: float
    ends_s: float
    prompts: int
    tokens: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """`makespan_s`: until the last prompt has its first token. By the engine profiles no plan is faster than `bound_s`."""

    makespan_s: float
    bound_s: float
    prompts: tuple[PlannedPrompt, ...]
    instances: tuple[PlannedLoad, ...]


class _Served(NamedTuple):
    """A model of an instance, as far as a plan reads it."""

    model: str
    profile: EngineProfile
    context_tokens: int
    speed: float


class BatchProblem:
    """A batch and the present load of the instances that can take part: healthy, not draining, and with an engine profile.
    Each works on its prompts one after another. Output is not counted."""

    def __init__(self, prompts: Sequence[Prompt], instances: Iterable[Instance]) -> None:
        """Reads the instances. Raises Refusal for a batch that is too large."""
        usable = [
            each
            for each in instances
            if each.healthy and not (each.draining or each.starting) and each.profiles
        ]
        if len(prompts) * len(usable) > MAX_PAIRS:
            raise invalid_request(
                f"At most {MAX_PAIRS // len(usable)} prompts can be planned for {len(usable)} instances.",
                "prompts",
            )
        self._prompts = prompts
        self._names = [each.name for each in usable]
        self._ready_s = [_ready_s(each) for each in usable]
        self._served = [
            [
                _Served(model, profile, _context_tokens(each, model, profile), each.speed)
                for model, profile in each.profiles.items()
            ]
            for each in usable
        ]

    def solve(self) -> BatchPlan:
        """The plan. It reads no instance, and may take some seconds for the largest batch. Raises Refusal for a prompt that
        no instance can take."""
        seconds = cache(EngineProfile.prefill_s)
        #: By prompt and instance: (seconds, model).
        all_options = [[_best(each, prompt, seconds) for each in self._served] for prompt in self._prompts]
        for place, (prompt, options) in enumerate(zip(self._prompts, all_options, strict=True)):
            if all(time_s == inf for time_s, _ in options):
                raise invalid_request(
                    f"No healthy instance with an engine profile takes {prompt.tokens} tokens"
                    f"{'' if prompt.model is None else f' for {prompt.model}'}.",
                    f"prompts.{place}",
                )
        found = assign([[time_s for time_s, _ in options] for options in all_options], self._ready_s)
        planned = []
        for prompt, options, machine in zip(self._prompts, all_options, found.machines, strict=True):
            prefill_s, model = options[machine]
            planned.append(PlannedPrompt(prompt.tokens, model, self._names[machine], prefill_s))
        loads = []
        for name, ready_s, ends_s in zip(self._names, self._ready_s, found.ends, strict=True):
            tokens = [each.tokens for each in planned if each.instance == name]
            loads.append(PlannedLoad(name, ready_s, ends_s, len(tokens), sum(tokens)))
        return BatchPlan(found.makespan, found.bound, tuple(planned), tuple(loads))


def _ready_s(instance: Instance) -> float:
    """Seconds until all prompts that wait have their first token, by their mean length and the slowest profile."""
    prompts = instance.awaiting_first_token
    if not prompts:
        return 0.0
    mean_tokens = instance.pending_prefill_tokens // prompts
    return prompts * max(each.prefill_s(mean_tokens) for each in instance.profiles.values()) / instance.speed


def _context_tokens(instance: Instance, model: str, profile: EngineProfile) -> int:
    """The declared context, or without one what the engine's KV memory holds: as it reports, else by its profile."""
    declared = instance.candidates[model].context_tokens
    return declared or instance.report.kv_capacity_tokens or profile.kv_capacity_tokens


def _best(
    served: Iterable[_Served], prompt: Prompt, seconds: Callable[[EngineProfile, int], float]
) -> tuple[float, str]:
    """The least seconds of a prefill at an instance, and by which of its models; infinite if none can take the prompt."""
    found = [
        (seconds(profile, prompt.tokens) / speed, model)
        for model, profile, context_tokens, speed in served
        if prompt.model in (None, model) and prompt.tokens < context_tokens
    ]
    return min(found, default=(inf, ""))
