"""Engine profiles by name: `MODEL@HARDWARE`, for example `llama-3.1-8b@a100-80g`.

    llama-3.1-70b@4xa100-80g      tensor parallel over 4 GPUs, 16-bit weights, vLLM
    llama-3.1-70b@pp2x4xa100-80g  two pipeline stages of 4 GPUs each
    llama-3.1-70b@4xa100-80g:62+4xl4:18  two stages of unlike GPUs with 62 and 18 layers (`unlike_stages`)
    llama-3.1-8b-fp8@l4           FP8 weights under vLLM (4-bit ones of AWQ or GPTQ: -int4)
    qwen2.5-7b-q4@rtx-4090        Q4_K_M weights under llama.cpp, as Ollama serves them (also -q2 to -q8)

The weights may have another usual name (`backends.engine.weights`): llama-3.1-8b-awq@l4 is llama-3.1-8b-int4@l4.

A profile exists where the weights fit and at least MIN_CONTEXT_TOKENS of KV memory are left. Its constants
follow from the shape of the model and the figures in `backends.engine.hardware`; the formula they go into
is `EngineProfile.step_s`.

Pipelines are an approximation, not measured: p microbatches are in flight, one in each stage. So the work for each token is
divided by p, and a step has p times the tokens. The constant work and the weights that a step reads stay: each
microbatch passes all layers. Each of the p - 1 hops between stages adds `PIPELINE_HOP`. A prompt that runs alone takes
longer in a real pipeline than predicted, up to p times, since its tokens are in one microbatch.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator

from backends.engine.hardware import (
    ATTENTION_MEMORY_SHARE,
    ATTENTION_S,
    HARDWARE,
    HOST_S,
    LLAMACPP_ATTENTION_SHARE,
    LLAMACPP_LAYER_S,
    PIPELINE_HOP,
    QUANTIZATIONS,
    VLLM_WEIGHTS,
    HardwareSpec,
    Link,
    Quantization,
)
from backends.engine.models import MODELS, ModelSpec
from backends.engine.unlike_stages import EngineStage, parsed, unlike_profile
from backends.engine.weights import UnknownWeights, suffix_of
from router.core.profile import EngineProfile

MIN_CONTEXT_TOKENS = 4096
#: Ollama slots of a quantised profile; an Ollama server may use another number.
SLOTS = 4

TENSOR_DEGREES = (1, 2, 4, 8)
PIPELINE_DEGREES = (1, 2, 4, 8)
#: GPUs of the largest instance with a profile.
MOST_GPUS = 16
#: What stands before the kind of GPU in a profile's name: pipeline stages and tensor parallel GPUs.
_DEGREES = re.compile(r"^(?:pp\d+x)?(?:\d+x)?")
_VLLM_MEMORY_SHARE = 0.9  # vLLM's gpu_memory_utilization
_VLLM_RESERVE_BYTES = 2.0e9  # activations and CUDA graphs on each GPU, assumed
_OLLAMA_MEMORY_SHARE = 0.95
_OLLAMA_RESERVE_BYTES = 0.8e9
#: What `budget_bytes` and `llamacpp_budget_bytes` leave out, in words.
USABLE = (
    "usable is what an engine has for weights and KV cache: "
    f"vLLM {_VLLM_MEMORY_SHARE:.0%} of a GPU's memory less {_VLLM_RESERVE_BYTES / 1e9:g} GB, "
    f"Ollama {_OLLAMA_MEMORY_SHARE:.0%} less {_OLLAMA_RESERVE_BYTES / 1e9:g} GB"
)
# Start-up and loading of weights, assumed: from a local NVMe disk or the page cache.
_VLLM_START_S = 20.0
_OLLAMA_START_S = 1.0
_LOAD_BYTES_PER_S = 2.5e9


class UnknownProfile(KeyError):
    """No profile has this name. The message lists similar names."""

    def __init__(self, name: str, near: list[str]) -> None:
        hint = f"; near names: {', '.join(near)}" if near else ""
        super().__init__(name)
        self.message = f"unknown profile {name!r} (MODEL@HARDWARE){hint}"

    def __str__(self) -> str:
        return self.message


class ProfileNames(Collection[str]):
    """The names of the catalog, sorted; its profiles are made when they are listed. Names of unlike stages are too many to
    list, but are in it too where there is a profile."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and find(name) is not None

    def __iter__(self) -> Iterator[str]:
        pairs = itertools.product(MODELS, HARDWARE)
        return iter(sorted(itertools.chain.from_iterable(itertools.starmap(_profiles, pairs))))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def names() -> ProfileNames:
    """All names of the catalog."""
    return ProfileNames()


def name_of(model: str, hardware: str, tensor: int = 1, pipeline: int = 1) -> str:
    """The name of a profile. `model` has the suffix of its weights, such as `-fp8`; there may be no such profile."""
    stages = f"pp{pipeline}x" if pipeline > 1 else ""
    return f"{model}@{stages}{f'{tensor}x' if tensor > 1 else ''}{hardware}"


def find(name: str) -> EngineProfile | None:
    """The profile of this name, if there is one."""
    found = _listed(name)
    if found is None:
        name = _canonical(name)
        found = _listed(name) or (_unlike(name) if "+" in name else None)
    return found


def profile(name: str) -> EngineProfile:
    """The profile of this name. Raises UnknownProfile, which is a KeyError."""
    found = find(name)
    if found is None:
        raise UnknownProfile(name, difflib.get_close_matches(name, names(), n=5, cutoff=0.5))
    return found


def model_of(name: str) -> ModelSpec:
    """The model that a profile runs. Raises UnknownProfile."""
    return MODELS[_parts(name)[0]]


def quantization_of(name: str) -> str | None:
    """GGUF format of a profile's weights, None for those that vLLM runs. Raises UnknownProfile."""
    quantization = _parts(name)[1]
    return QUANTIZATIONS[quantization].label if quantization in QUANTIZATIONS else None


def weights_bytes(name: str) -> int:
    """Bytes of a profile's weights over all its GPUs. Raises UnknownProfile."""
    model, weights, _ = _parts(name)
    return int(bytes_of(MODELS[model], weights))


def bytes_of(model: ModelSpec, weights: str | None = None) -> float:
    """Bytes of a model's weights in 16 bits, or with the suffix of a format. Under vLLM the embedding and the output layer
    stay in 16 bits."""
    if weights in QUANTIZATIONS:
        return model.params * QUANTIZATIONS[weights].bytes_per_weight
    kept = model.head_params * (1 if model.tied else 2)
    return model.params * VLLM_WEIGHTS[weights] + kept * (2 - VLLM_WEIGHTS[weights])


def budget_bytes(hardware: HardwareSpec) -> float:
    """Bytes of each GPU that vLLM has for weights and KV cache."""
    return hardware.memory_bytes * _VLLM_MEMORY_SHARE - _VLLM_RESERVE_BYTES


def llamacpp_budget_bytes(hardware: HardwareSpec) -> float:
    """Bytes of a GPU that Ollama has for weights and KV cache."""
    return hardware.memory_bytes * _OLLAMA_MEMORY_SHARE - _OLLAMA_RESERVE_BYTES


def memory_bytes(name: str) -> int:
    """GPU memory of a profile's hardware in bytes, all GPUs together. Raises UnknownProfile."""
    return int(sum(gpus * hardware.memory_bytes for gpus, _, hardware in hardware_of(_parts(name)[2])))


def known_memory_bytes(profiles: Iterable[EngineProfile]) -> int | None:
    """Memory of the hardware that profiles name, of the largest; None if one is not in the catalog."""
    names = [each.name for each in profiles]
    return max(map(memory_bytes, names)) if all(map(find, names)) else None


def gpus_of(name: str) -> int:
    """The number of GPUs of a profile's hardware. Raises UnknownProfile."""
    return sum(gpus for gpus, _, _ in hardware_of(_parts(name)[2]))


def most_layers(model: ModelSpec, hardware: HardwareSpec, gpus: int, weights: str | None, tokens: int) -> int:
    """The most layers that tensor parallel GPUs hold with the keys and values of so many tokens."""
    needed = bytes_of(model, weights) / gpus + tokens * model.kv_bytes_per_token(gpus)
    return min(model.layers, int(budget_bytes(hardware) * model.layers / needed))


def whole_profile(model: ModelSpec, hardware: HardwareSpec, gpus: int, weights: str | None) -> EngineProfile:
    """Of tensor parallel GPUs with all layers, whether they hold them or not."""
    return _vllm_profile(model, hardware, gpus, 1, weights)


def _listed(name: str) -> EngineProfile | None:
    """The profile of a name in the catalog's own form, if there is one."""
    model, _, text = _split(name)
    hardware = _DEGREES.sub("", text)
    if model not in MODELS or hardware not in HARDWARE:
        return None
    return _profiles(model, hardware).get(name)


@functools.cache
def _profiles(model_name: str, hardware_name: str) -> dict[str, EngineProfile]:
    """The profiles of a model on one kind of GPU, by name."""
    model, hardware = MODELS[model_name], HARDWARE[hardware_name]
    formats = VLLM_WEIGHTS if hardware.runs_quantized else (None,)
    made = [
        _vllm_profile(model, hardware, tensor, pipeline, weights)
        for weights, pipeline, tensor in itertools.product(formats, PIPELINE_DEGREES, TENSOR_DEGREES)
        if pipeline * tensor <= MOST_GPUS
    ]
    made += [_llamacpp_profile(model, hardware, each) for each in QUANTIZATIONS.values()]
    return {one.name: one for one in made if one.kv_capacity_tokens >= MIN_CONTEXT_TOKENS}


def _parts(name: str) -> tuple[str, str | None, str]:
    """Model, format of the weights (None: 16 bits) and hardware of a profile's name."""
    return _split(profile(name).name)


def _canonical(name: str) -> str:
    """A profile's name with the suffix that the profiles have for its weights."""
    model, at, hardware = name.partition("@")
    known = max((each for each in MODELS if model.startswith(f"{each}-")), key=len, default=model)
    try:
        suffix = suffix_of(model.removeprefix(f"{known}-"))
    except UnknownWeights:
        return name
    return f"{known}-{suffix}{at}{hardware}" if suffix else f"{known}{at}{hardware}"


def _split(name: str) -> tuple[str, str | None, str]:
    model, _, hardware = name.partition("@")
    for suffix in (*VLLM_WEIGHTS, *QUANTIZATIONS):
        if suffix is not None and model.endswith(f"-{suffix}"):
            return model.removesuffix(f"-{suffix}"), suffix, hardware
    return model, None, hardware


def hardware_of(text: str) -> list[tuple[int, int, HardwareSpec]]:
    """What the hardware of a profile's name says: how many GPUs of which kind, of all equal stages together or of each
    unlike stage, and how many of them share a layer (second). Raises KeyError for an unknown kind."""
    unlike = parsed(text)
    if unlike is not None:
        return [(stage.gpus, stage.gpus, stage.hardware) for stage in unlike]
    head, times, rest = text.partition("x")
    if times and head.removeprefix("pp").isdigit():
        ((gpus, tensor, hardware),) = hardware_of(rest)
        number = int(head.removeprefix("pp"))
        return [(number * gpus, tensor if head.startswith("pp") else number * tensor, hardware)]
    return [(1, 1, HARDWARE[text])]


@functools.cache
def _unlike(name: str) -> EngineProfile | None:
    """The profile of a pipeline of unlike stages; None if the name says none, or if they do not hold the model."""
    known, weights, text = _split(name)
    model, stages = MODELS.get(known), parsed(text)
    if model is None or stages is None or weights in QUANTIZATIONS:
        return None
    if sum(stage.layers for stage in stages) != model.layers:
        return None
    if weights and not all(stage.hardware.runs_quantized for stage in stages):
        return None
    if any(stage.gpus not in TENSOR_DEGREES for stage in stages):
        return None
    kv_tokens = min(_kv_tokens(model, stage, weights) for stage in stages)
    if kv_tokens < MIN_CONTEXT_TOKENS:
        return None
    wholes = [whole_profile(model, stage.hardware, stage.gpus, weights) for stage in stages]
    loaded = max(bytes_of(model, weights) / stage.gpus * stage.layers for stage in stages) / model.layers
    load_s = _VLLM_START_S + loaded / _LOAD_BYTES_PER_S
    return unlike_profile(name, model, stages, wholes, kv_tokens, load_s)


def _kv_tokens(model: ModelSpec, stage: EngineStage, weights: str | None) -> int:
    """Tokens whose keys and values a stage holds beside its weights."""
    share = stage.layers / model.layers
    free_bytes = budget_bytes(stage.hardware) - bytes_of(model, weights) / stage.gpus * share
    return int(free_bytes / (model.kv_bytes_per_token(stage.gpus) * share))


def _vllm_profile(
    model: ModelSpec, hardware: HardwareSpec, tensor: int, pipeline: int, weights: str | None
) -> EngineProfile:
    # The largest stage's share of the layers.
    share = -(-model.layers // pipeline) / model.layers
    weights_bytes = bytes_of(model, weights) / tensor * share
    kv_bytes = model.kv_bytes_per_token(tensor)
    link = hardware.links[tensor] if tensor > 1 else None
    layer_params = model.layer_params(tensor)
    bytes_per_weight = VLLM_WEIGHTS[weights]
    read_bytes_per_s = hardware.read_bytes_per_s
    layer_s = (
        hardware.small.matmul_s
        + hardware.small.elementwise_s
        + ATTENTION_S
        + (2 * link.latency_s if link else 0.0)
    )
    head_s = 2 * model.head_params / tensor / read_bytes_per_s
    hops = pipeline - 1
    extra_s = _elementwise_s_per_token(model, hardware, tensor) + (
        _all_reduce_s_per_token(model, link, tensor) if link else 0
    )
    hop_s = hops * 2 * model.hidden / PIPELINE_HOP.bus_bytes_per_s
    free_bytes = budget_bytes(hardware) - weights_bytes
    name = f"{model.name}-{weights}" if weights else model.name
    return EngineProfile(
        name=name_of(name, hardware.name, tensor, pipeline),
        overhead_s=HOST_S + model.layers * layer_s + head_s + hops * PIPELINE_HOP.latency_s,
        floor_s=model.layers * bytes_per_weight * layer_params / read_bytes_per_s,
        per_token_s=model.layers * 2 * layer_params / hardware.weights_flops(weights) / pipeline,
        per_kv_token_s=kv_bytes / (hardware.bytes_per_s * ATTENTION_MEMORY_SHARE) / pipeline,
        per_pair_s=_attention_flops(model)
        / tensor
        / (hardware.flops * hardware.attention_flops_share)
        / pipeline,
        per_token_extra_s=(extra_s + hop_s) / pipeline,
        kv_capacity_tokens=max(0, int(free_bytes / (kv_bytes * share))),
        max_batched_tokens=hardware.max_batched_tokens * pipeline,
        max_seqs=hardware.max_seqs,
        load_s=_VLLM_START_S + weights_bytes / _LOAD_BYTES_PER_S,
        slots=SLOTS,
        source="vLLM model; public specifications, shares fitted from Vidur, Helix, AIBrix, DistCA"
        + (f"; {weights} weights assumed" if weights else "")
        + (f"; {pipeline} pipeline stages assumed" if pipeline > 1 else ""),
    )


def _llamacpp_profile(model: ModelSpec, hardware: HardwareSpec, quantization: Quantization) -> EngineProfile:
    weights_bytes = bytes_of(model, quantization.suffix)
    kv_bytes = model.kv_bytes_per_token()
    layer_params = model.layer_params()
    read_bytes_per_s = hardware.read_bytes_per_s * hardware.llamacpp.memory
    flops = hardware.matmul_flops * hardware.llamacpp.flops * quantization.flops_share
    head_s = quantization.bytes_per_weight * model.head_params / read_bytes_per_s
    free_bytes = llamacpp_budget_bytes(hardware) - weights_bytes
    return EngineProfile(
        name=f"{model.name}-{quantization.suffix}@{hardware.name}",
        overhead_s=model.layers * LLAMACPP_LAYER_S + head_s,
        floor_s=model.layers * quantization.bytes_per_weight * layer_params / read_bytes_per_s,
        per_token_s=model.layers * 2 * layer_params / flops,
        per_kv_token_s=kv_bytes / (hardware.bytes_per_s * LLAMACPP_ATTENTION_SHARE),
        per_pair_s=_attention_flops(model)
        / (hardware.flops * hardware.attention_flops_share * hardware.llamacpp.flops),
        per_token_extra_s=_elementwise_s_per_token(model, hardware, 1),
        kv_capacity_tokens=max(0, int(free_bytes / kv_bytes)),
        max_batched_tokens=512,  # llama.cpp's n_ubatch
        load_s=_OLLAMA_START_S + weights_bytes / _LOAD_BYTES_PER_S,
        slots=SLOTS,
        source=f"llama.cpp model, {quantization.label}; public specifications, llama-bench tables, shares as for vLLM",
    )


def _attention_flops(model: ModelSpec) -> float:
    """Operations for one (new token, context token) pair: a product with the key and one with the value."""
    return model.layers * 4.0 * model.heads * model.head_dim


def _elementwise_s_per_token(model: ModelSpec, hardware: HardwareSpec, gpus: int) -> float:
    small = hardware.small
    width = small.hidden_factor * model.hidden + small.intermediate_factor * model.intermediate / gpus
    return model.layers * 2 * width / hardware.bytes_per_s


def _all_reduce_s_per_token(model: ModelSpec, link: Link, gpus: int) -> float:
    """Two all-reduces a layer, of 16-bit hidden states."""
    return 2 * model.layers * 2 * model.hidden * 2 * (gpus - 1) / gpus / link.bus_bytes_per_s
