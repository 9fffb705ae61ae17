"""Which instance each prompt of a batch goes to, so that the last prefill ends as early as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import inf
from typing import Any

from policies.placement.makespan import assign
from router.core.errors import invalid_request
from router.core.profile import EngineProfile
from router.core.state import Instance

#: The work of a plan grows with prompts x instances.
MAX_PAIRS = 25_600

#: A prompt's tokens, and the model that it is for (None: any).
Prompt = tuple[int, str | None]
#: A model of an instance as a plan reads it: its name, profile and context in tokens, and the speed of the instance.
_Served = tuple[str, EngineProfile, int, float]


def batch_plan(prompts: Sequence[Prompt], instances: Iterable[Instance]) -> Callable[[], dict[str, Any]]:
    """Reads the present load of the instances that can take part: healthy, not draining, and with an engine profile. Returns
    what makes the plan (`_solve`). Raises Refusal for a batch that is too large."""
    usable = [
        each for each in instances if each.healthy and not (each.draining or each.starting) and each.profiles
    ]
    if len(prompts) * len(usable) > MAX_PAIRS:
        raise invalid_request(
            f"At most {MAX_PAIRS // len(usable)} prompts can be planned for {len(usable)} instances.",
            "prompts",
        )
    served = [
        [
            (model, profile, _context_tokens(each, model, profile), each.speed)
            for model, profile in each.profiles.items()
        ]
        for each in usable
    ]
    return partial(
        _solve, prompts, [each.name for each in usable], [_ready_s(each) for each in usable], served
    )


def _solve(
    prompts: Sequence[Prompt], names: list[str], ready: list[float], served: list[list[_Served]]
) -> dict[str, Any]:
    """The plan: where each prompt goes and the seconds of its prefill there; for each instance the seconds until the prompts
    there have their first tokens (`ready_s`) and until those of the batch have them too (`ends_s`). `makespan_s`: until the
    last prompt has its first token. By the engine profiles no plan is faster than `bound_s`. Each instance works on its
    prompts one after another. Output is not counted.

    It may take some seconds for the largest batch. Raises Refusal for a prompt that no instance can take."""
    seconds = cache(EngineProfile.prefill_s)
    #: By prompt and instance: (seconds, model).
    all_options = [[_best(each, prompt, seconds) for each in served] for prompt in prompts]
    for place, ((tokens, model), options) in enumerate(zip(prompts, all_options, strict=True)):
        if all(time_s == inf for time_s, _ in options):
            raise invalid_request(
                f"No healthy instance with an engine profile takes {tokens} tokens"
                f"{'' if model is None else f' for {model}'}.",
                f"prompts.{place}",
            )
    found = assign([[time_s for time_s, _ in options] for options in all_options], ready)
    planned: list[dict[str, Any]] = []
    for (tokens, _), options, machine in zip(prompts, all_options, found.machines, strict=True):
        prefill_s, model = options[machine]
        planned.append({"tokens": tokens, "model": model, "instance": names[machine], "prefill_s": prefill_s})
    loads = []
    for name, ready_s, ends_s in zip(names, ready, found.ends, strict=True):
        tokens_there = [each["tokens"] for each in planned if each["instance"] == name]
        counts = {"prompts": len(tokens_there), "tokens": sum(tokens_there)}
        loads.append({"instance": name, "ready_s": ready_s, "ends_s": ends_s, **counts})
    return {"makespan_s": found.makespan, "bound_s": found.bound, "prompts": planned, "instances": loads}


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
    tokens, wanted = prompt
    found = [
        (seconds(profile, tokens) / speed, model)
        for model, profile, context_tokens, speed in served
        if wanted in (None, model) and tokens < context_tokens
    ]
    return min(found, default=(inf, ""))
