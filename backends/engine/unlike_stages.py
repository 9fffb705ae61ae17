"""Engines whose pipeline stages are unlike GPUs: `MODEL@STAGE+STAGE`, for example `llama-3.1-70b@4xa100-80g:62+4xl4:18`.

A stage is GPUs with tensor parallelism (`4x`), their kind, and its layers; vLLM runs the split with
VLLM_PP_LAYER_PARTITION. The profile is an approximation like those of equal stages (`profiles`), not measured: p
microbatches are in flight, and the slowest stage sets the pace, so a step takes p times its time. Which stage is slowest
depends on the step. Each term is that of the stage where it is largest. So the predicted time is an upper bound; for stages
that are alike it is that of equal stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.engine.hardware import HARDWARE, PIPELINE_HOP, HardwareSpec
from backends.engine.models import ModelSpec
from router.core.profile import EngineProfile


@dataclass(frozen=True, slots=True)
class EngineStage:
    """`gpus` of one kind, tensor parallel, with some of the layers."""

    hardware: HardwareSpec
    gpus: int
    layers: int

    def __str__(self) -> str:
        return f"{f'{self.gpus}x' if self.gpus > 1 else ''}{self.hardware.name}:{self.layers}"


def parsed(text: str) -> tuple[EngineStage, ...] | None:
    """The stages that the hardware part of a name says, two or more; None if it says something else."""
    found = []
    for part in text.split("+"):
        shape, _, layers = part.partition(":")
        degree, times, kind = shape.partition("x")
        gpus = int(degree) if times and degree.isdecimal() else 1
        hardware = HARDWARE.get(kind if times and degree.isdecimal() else shape)
        if hardware is None or not layers.isdecimal() or int(layers) < 1 or gpus < 1:
            return None
        found.append(EngineStage(hardware, gpus, int(layers)))
    return tuple(found) if len(found) > 1 else None


def unlike_profile(
    name: str,
    model: ModelSpec,
    stages: Sequence[EngineStage],
    wholes: Sequence[EngineProfile],
    kv_capacity_tokens: int,
    load_s: float,
) -> EngineProfile:
    """The profile of a pipeline. `wholes` are those of each stage's GPUs with all layers, whether they hold them or not."""
    count = len(stages)
    parts = [stage.layers / model.layers for stage in stages]

    def slowest(term: str) -> float:
        return max(part * float(getattr(whole, term)) for part, whole in zip(parts, wholes, strict=True))

    hop_s = (count - 1) * 2 * model.hidden / PIPELINE_HOP.bus_bytes_per_s
    first = wholes[0]
    return EngineProfile(
        name=name,
        overhead_s=count * slowest("overhead_s") + (count - 1) * PIPELINE_HOP.latency_s,
        floor_s=count * slowest("floor_s"),
        per_token_s=slowest("per_token_s"),
        per_kv_token_s=slowest("per_kv_token_s"),
        per_pair_s=slowest("per_pair_s"),
        per_token_extra_s=slowest("per_token_extra_s") + hop_s / count,
        kv_capacity_tokens=kv_capacity_tokens,
        max_batched_tokens=count * min(whole.max_batched_tokens for whole in wholes),
        max_seqs=min(whole.max_seqs for whole in wholes),
        load_s=load_s,
        slots=first.slots,
        source=f"{first.source}; {count} unlike pipeline stages assumed",
    )
