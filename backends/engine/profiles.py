"""Engine profiles by name: `MODEL@HARDWARE`, for example `llama-3.1-8b@a100-80g`.

    llama-3.1-70b@4xa100-80g      tensor parallel over 4 GPUs, 16-bit weights, vLLM
    qwen2.5-7b-q4@rtx-4090        Q4_K_M weights under llama.cpp, as Ollama serves them (also -q8)

A profile exists where the weights fit and at least MIN_CONTEXT_TOKENS of KV memory are left. Its constants
follow from the shape of the model and the figures in `backends.engine.hardware`; the formula they go into
is `EngineProfile.step_s`.
"""

from __future__ import annotations

import difflib
import functools

from backends.engine.hardware import (
    ATTENTION_MEMORY_SHARE,
    ATTENTION_S,
    HARDWARE,
    HOST_S,
    LLAMACPP_ATTENTION_SHARE,
    LLAMACPP_LAYER_S,
    QUANTIZATIONS,
    HardwareSpec,
    Link,
    Quantization,
)
from backends.engine.models import MODELS, ModelSpec
from router.core.profile import EngineProfile

MIN_CONTEXT_TOKENS = 4096
#: Ollama slots of a quantised profile; an Ollama server may use another number.
SLOTS = 4

_TENSOR_PARALLEL = (1, 2, 4, 8)
_VLLM_MEMORY_SHARE = 0.9  # vLLM's gpu_memory_utilization
_VLLM_RESERVE_BYTES = 2.0e9  # activations and CUDA graphs on each GPU, assumed
_OLLAMA_MEMORY_SHARE = 0.95
_OLLAMA_RESERVE_BYTES = 0.8e9
# Start-up and loading of weights, assumed: from a local NVMe disk or the page cache.
_VLLM_START_S = 20.0
_OLLAMA_START_S = 1.0
_LOAD_BYTES_PER_S = 2.5e9


class UnknownProfile(KeyError):
    """No profile has this name. The message lists similar names."""

    def __init__(self, name: str, near: list[str]) -> None:
        hint = f"; near names: {', '.join(near)}" if near else ""
        super().__init__(name)
        self.name = name
        self.near = near
        self.message = f"unknown profile {name!r} (MODEL@HARDWARE){hint}"

    def __str__(self) -> str:
        return self.message


def names() -> list[str]:
    """All profile names, sorted."""
    return sorted(_profiles())


def profile(name: str) -> EngineProfile:
    """The profile of this name. Raises UnknownProfile, which is a KeyError."""
    found = _profiles().get(name)
    if found is None:
        raise UnknownProfile(name, difflib.get_close_matches(name, _profiles(), n=5, cutoff=0.5))
    return found


def model_of(name: str) -> ModelSpec:
    """The model that a profile runs. Raises UnknownProfile."""
    return MODELS[_parts(name)[0]]


def quantization_of(name: str) -> str | None:
    """GGUF format of a profile's weights, None for 16-bit ones. Raises UnknownProfile."""
    quantization = _parts(name)[1]
    return QUANTIZATIONS[quantization].label if quantization else None


def weights_bytes(name: str) -> int:
    """Bytes of a profile's weights over all its GPUs. Raises UnknownProfile."""
    model, quantization, _ = _parts(name)
    return int(_weights_bytes(MODELS[model], QUANTIZATIONS[quantization] if quantization else None))


def memory_bytes(name: str) -> int:
    """GPU memory of a profile's hardware in bytes, all GPUs together. Raises UnknownProfile."""
    gpus, hardware = _hardware(_parts(name)[2])
    return int(gpus * hardware.memory_bytes)


@functools.cache
def _profiles() -> dict[str, EngineProfile]:
    found: dict[str, EngineProfile] = {}
    for model in MODELS.values():
        for hardware in HARDWARE.values():
            made = [_vllm_profile(model, hardware, gpus) for gpus in _TENSOR_PARALLEL]
            made += [
                _llamacpp_profile(model, hardware, quantization) for quantization in QUANTIZATIONS.values()
            ]
            for one in made:
                if one.kv_capacity_tokens >= MIN_CONTEXT_TOKENS:
                    found[one.name] = one
    return found


def _parts(name: str) -> tuple[str, str | None, str]:
    """Model, quantisation and hardware of a profile's name."""
    profile(name)
    model, _, hardware = name.partition("@")
    for suffix in QUANTIZATIONS:
        if model.endswith(f"-{suffix}"):
            return model.removesuffix(f"-{suffix}"), suffix, hardware
    return model, None, hardware


def _hardware(text: str) -> tuple[int, HardwareSpec]:
    count, times, rest = text.partition("x")
    return (int(count), HARDWARE[rest]) if times and count.isdigit() else (1, HARDWARE[text])


def _weights_bytes(model: ModelSpec, quantization: Quantization | None) -> float:
    return model.params * (quantization.bytes_per_weight if quantization else 2)


def _vllm_profile(model: ModelSpec, hardware: HardwareSpec, gpus: int) -> EngineProfile:
    weights_bytes = _weights_bytes(model, None) / gpus
    kv_bytes = model.kv_bytes_per_token(gpus)
    link = hardware.links[gpus] if gpus > 1 else None
    layer_params = model.layer_params(gpus)
    read_bytes_per_s = hardware.read_bytes_per_s
    layer_s = (
        hardware.small.matmul_s
        + hardware.small.elementwise_s
        + ATTENTION_S
        + (2 * link.latency_s if link else 0.0)
    )
    head_s = 2 * model.head_params / gpus / read_bytes_per_s
    extra_s = _elementwise_s_per_token(model, hardware, gpus) + (
        _all_reduce_s_per_token(model, link, gpus) if link else 0
    )
    free_bytes = hardware.memory_bytes * _VLLM_MEMORY_SHARE - weights_bytes - _VLLM_RESERVE_BYTES
    return EngineProfile(
        name=f"{model.name}@{f'{gpus}x' if gpus > 1 else ''}{hardware.name}",
        overhead_s=HOST_S + model.layers * layer_s + head_s,
        floor_s=model.layers * 2 * layer_params / read_bytes_per_s,
        per_token_s=model.layers * 2 * layer_params / hardware.matmul_flops,
        per_kv_token_s=kv_bytes / (hardware.bytes_per_s * ATTENTION_MEMORY_SHARE),
        per_pair_s=_attention_flops(model) / gpus / (hardware.flops * hardware.attention_flops_share),
        per_token_extra_s=extra_s,
        kv_capacity_tokens=max(0, int(free_bytes / kv_bytes)),
        max_batched_tokens=hardware.max_batched_tokens,
        max_seqs=hardware.max_seqs,
        load_s=_VLLM_START_S + weights_bytes / _LOAD_BYTES_PER_S,
        slots=SLOTS,
        source="vLLM model; public specifications, shares fitted from Vidur, Helix, AIBrix, DistCA",
    )


def _llamacpp_profile(model: ModelSpec, hardware: HardwareSpec, quantization: Quantization) -> EngineProfile:
    weights_bytes = _weights_bytes(model, quantization)
    kv_bytes = model.kv_bytes_per_token()
    layer_params = model.layer_params()
    read_bytes_per_s = hardware.read_bytes_per_s * hardware.llamacpp.memory
    flops = hardware.matmul_flops * hardware.llamacpp.flops * quantization.flops_share
    head_s = quantization.bytes_per_weight * model.head_params / read_bytes_per_s
    free_bytes = hardware.memory_bytes * _OLLAMA_MEMORY_SHARE - weights_bytes - _OLLAMA_RESERVE_BYTES
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
