"""The formats of weights, and the compute capability that each needs.

Compute capabilities: developer.nvidia.com/cuda-gpus. Engines, as their documentation says (November 2026):

- vLLM's default builds need 7.5 since they use CUDA 13 (docs.vllm.ai/en/latest/getting_started/installation/gpu;
  github.com/vllm-project/vllm/pull/39878), builds for CUDA 12 need 7.0 (docs.vllm.ai/en/v0.4.0.post1/getting_started;
  its V1 engine: pull requests 23614 and 24022). It refuses bf16 below 8.0 (github.com/vllm-project/vllm/issues/1157).
  FP8 is computed from 8.9 on; from 7.5 on vLLM runs FP8 weights with 16-bit activations
  (docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8). 4-bit weights are those of AWQ, which need 7.5
  (docs.vllm.ai/en/latest/features/quantization).
- Ollama needs 5.0 (docs.ollama.com/gpu).
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.placement.types import GpuKind, Precision


@dataclass(frozen=True, slots=True)
class Support:
    """A format runs from this compute capability on. `note` says what is special about it."""

    precision: Precision
    compute_capability: tuple[int, int]
    note: str = ""


_CUDA_12 = "vLLM built for CUDA 12"
_WEIGHTS_ONLY = "8-bit weights, 16-bit activations"

#: The first row that fits a format and a GPU holds. Ollama runs GGUF, vLLM the others.
SUPPORT = (
    Support(Precision.FP16, (7, 5)),
    Support(Precision.FP16, (7, 0), _CUDA_12),
    Support(Precision.FP32, (7, 5)),
    Support(Precision.FP32, (7, 0), _CUDA_12),
    Support(Precision.BF16, (8, 0)),
    Support(Precision.FP8, (8, 9)),
    Support(Precision.FP8, (7, 5), _WEIGHTS_ONLY),
    Support(Precision.INT4, (7, 5), "4-bit weights, 16-bit activations"),
    Support(Precision.GGUF, (5, 0)),
)


def support(kind: GpuKind, precision: Precision) -> Support | None:
    """How weights of this format run on this kind of GPU; None if they do not."""
    for row in SUPPORT:
        if row.precision == precision and row.compute_capability <= kind.compute_capability:
            return row
    return None


def missing(kind: GpuKind, precision: Precision) -> str:
    """The reason why nothing runs this format on this kind of GPU, in words."""
    needed = min(row.compute_capability for row in SUPPORT if row.precision == precision)
    return (
        f"{precision} needs compute capability {_dotted(needed)}, {kind.name} has"
        f" {_dotted(kind.compute_capability)}"
    )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
