"""GPUs: figures of public data sheets, and how much of them inference kernels reach.

Data sheets give memory, bandwidth and dense 16-bit tensor throughput. The shares reached are fitted by
`python scripts/fit_profiles` from published measurements; it prints them with the errors of the fits:

- a100, h100, a40, a30: operator profiles of Vidur (github.com/microsoft/vidur 7d47513, MIT; a30 from
  github.com/AKafakA/vidur_opt_scheduler 20bdc49, MIT).
- l4, t4, v100: time of one layer relative to the A100, from Helix (github.com/Thesys-lab/Helix-ASPLOS25
  148b733, Apache-2.0), on the level that Vidur gives the A100.
- rtx-4090: llama-bench tables (github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference 00dd2bd), facts only.
- llama.cpp: the same tables (A100, H100 PCIe, RTX 4090, RTX 3090) and a table in
  github.com/ggml-org/llama.cpp/pull/6017 (A100 prompts). Its shares on a30, a40, l4, t4, v100 are assumptions.
- attention: A100 prefill from DistCA's table (github.com/hao-ai-lab/DistCA 925f124, Apache-2.0), decode
  and prefill on the A30 from the Vidur profile of Qwen2-7B.
- host time in each step: AIBrix regression runs of vLLM (github.com/vllm-project/aibrix e3e10f9, Apache-2.0).

What no table has is an assumption and called so.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Link:
    """An all-reduce over n GPUs takes latency_s + bytes * 2 (n - 1) / n / bus_bytes_per_s."""

    latency_s: float
    bus_bytes_per_s: float


#: Vidur's a100_dgx all-reduce by number of GPUs (median error 4 %, 13 %, 12 %).
NVLINK_A100 = {2: Link(35.8e-6, 158e9), 4: Link(28.7e-6, 154e9), 8: Link(39.0e-6, 152e9)}
#: Vidur's h100_dgx all-reduce (median error 3 %, 5 %, 4 %).
NVLINK_H100 = {2: Link(16.6e-6, 282e9), 4: Link(30.6e-6, 380e9), 8: Link(28.6e-6, 339e9)}
#: NVLink 2 has half the bandwidth of NVLink 3 (data sheets: 300 and 600 GB/s); latency assumed the same.
NVLINK_V100 = {n: Link(link.latency_s, link.bus_bytes_per_s / 2) for n, link in NVLINK_A100.items()}
#: Vidur's a100_pairwise_nvlink with 4 GPUs, whose pairs meet over PCIe 4 (median error 0.7 %).
PCIE_PEER = dict.fromkeys((2, 4, 8), Link(55.2e-6, 23.6e9))
#: Helix's L4 and T4 machines with 2 and 4 GPUs (cloud machines without peer access).
PCIE_HOST = dict.fromkeys((2, 4, 8), Link(162e-6, 4.06e9))


@dataclass(frozen=True, slots=True)
class SmallOperators:
    """Times beside the weights: constant times of one layer's matrix products and of its small operators (norms, rotary
    embedding, activation, residual), and how often the small ones read or write activations of hidden and of
    intermediate width."""

    matmul_s: float
    elementwise_s: float
    hidden_factor: float
    intermediate_factor: float


@dataclass(frozen=True, slots=True)
class Share:
    """The reached shares of memory bandwidth and of throughput."""

    memory: float
    flops: float


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """One GPU. `compute_capability` is NVIDIA's. `flops` is dense 16-bit tensor throughput. `reached` is the share of
    bandwidth and `flops` that large matrix products reach, `attention_flops_share` the share of `flops` that prefill
    attention reaches, `llamacpp` the share of `reached` that llama.cpp reaches. `links` are by number of GPUs."""

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: float
    bytes_per_s: float
    flops: float
    reached: Share
    attention_flops_share: float
    small: SmallOperators
    llamacpp: Share
    links: dict[int, Link] = field(repr=False)
    max_batched_tokens: int = 2048
    max_seqs: int = 256

    @property
    def read_bytes_per_s(self) -> float:
        """The rate at which weights are read."""
        return self.bytes_per_s * self.reached.memory

    @property
    def matmul_flops(self) -> float:
        """The rate of large matrix products."""
        return self.flops * self.reached.flops

    @property
    def runs_quantized(self) -> bool:
        """Whether vLLM runs FP8 and 4-bit weights on it."""
        return self.compute_capability >= _QUANTIZED_WEIGHTS

    def weights_flops(self, weights: str | None) -> float:
        """The rate of large matrix products with 16-bit weights (None) or others. 4-bit ones are computed in 16 bits."""
        computed = weights == FP8 and self.compute_capability >= _FP8_PRODUCTS
        return self.matmul_flops * (_FP8_GAIN if computed else 1.0)


#: The suffix of FP8 weights in the names of profiles.
FP8 = "fp8"
#: Bytes for each weight in the formats that vLLM runs, by the suffix in the names of profiles (None: 16 bits). `int4` is AWQ
#: or GPTQ: 4 bits, and for each 128 weights a scale of 16 bits and a zero point of 4.
VLLM_WEIGHTS: dict[str | None, float] = {None: 2.0, FP8: 1.0, "int4": (4 + 20 / 128) / 8}
#: From this compute capability on vLLM runs FP8 and 4-bit weights (AWQ), with 16-bit products
#: (docs.vllm.ai/en/latest/features/quantization); from the second one on it computes in FP8
#: (docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8). That page gives up to 1.6 times the throughput.
_QUANTIZED_WEIGHTS, _FP8_PRODUCTS, _FP8_GAIN = (7, 5), (8, 9), 1.6
#: One hop between two pipeline stages, assumed: a network of 10 Gbit/s, the slower case.
PIPELINE_HOP = Link(100e-6, 1.25e9)
#: The share of bandwidth that decode attention reaches (Vidur, A30, Qwen2-7B; median error 7 %), and the constant time
#: of one layer's attention.
ATTENTION_MEMORY_SHARE = 0.783
ATTENTION_S = 19.4e-6
#: Scheduler, sampler and CPU launches of vLLM in each step (AIBrix, Llama 3.1 8B on the A100).
HOST_S = 1.3e-3

# Assumptions where no attention was measured: the A100's proportion of attention to matrix products, and half
# of it on Turing and Volta, which have no FlashAttention-2.
_ATTENTION_TO_MATMUL = 0.665 / 0.737

# Also used where no small operator was measured.
_A100_SMALL = SmallOperators(22.2e-6, 15.2e-6, 11.5, 7.9)

HARDWARE: dict[str, HardwareSpec] = {
    spec.name: spec
    for spec in (
        HardwareSpec(
            name="a100-80g",
            compute_capability=(8, 0),
            memory_bytes=85.0e9,
            bytes_per_s=2.039e12,
            flops=312e12,
            reached=Share(memory=0.789, flops=0.737),
            attention_flops_share=0.665,
            small=_A100_SMALL,
            llamacpp=Share(memory=0.64, flops=0.472),
            links=NVLINK_A100,
        ),
        HardwareSpec(
            name="h100-80g",
            compute_capability=(9, 0),
            memory_bytes=85.0e9,
            bytes_per_s=3.35e12,
            flops=989e12,
            reached=Share(memory=0.888, flops=0.719),
            attention_flops_share=0.719 * _ATTENTION_TO_MATMUL,
            small=SmallOperators(18.1e-6, 12.6e-6, 11.7, 6.4),
            llamacpp=Share(memory=0.62, flops=0.472),
            links=NVLINK_H100,
            max_batched_tokens=8192,  # vLLM's defaults are larger on this GPU
            max_seqs=1024,
        ),
        HardwareSpec(
            name="a40",
            compute_capability=(8, 6),
            memory_bytes=48.3e9,
            bytes_per_s=0.696e12,
            flops=149.7e12,
            reached=Share(memory=0.771, flops=0.758),
            attention_flops_share=0.758 * _ATTENTION_TO_MATMUL,
            small=SmallOperators(14.3e-6, 10.0e-6, 9.0, 4.8),
            llamacpp=Share(memory=1.0, flops=0.8),
            links=PCIE_PEER,
        ),
        HardwareSpec(
            name="a30",
            compute_capability=(8, 0),
            memory_bytes=25.4e9,
            bytes_per_s=0.933e12,
            flops=165e12,
            reached=Share(memory=0.826, flops=0.656),
            attention_flops_share=0.259,
            small=SmallOperators(36.5e-6, 28.9e-6, 14.0, 6.7),
            llamacpp=Share(memory=0.8, flops=0.472),
            links=PCIE_PEER,
        ),
        HardwareSpec(
            name="l4",
            compute_capability=(8, 9),
            memory_bytes=24.15e9,
            bytes_per_s=0.300e12,
            flops=121e12,
            reached=Share(memory=0.818, flops=0.394),
            attention_flops_share=0.394 * _ATTENTION_TO_MATMUL,
            small=_A100_SMALL,
            llamacpp=Share(memory=1.0, flops=0.8),
            links=PCIE_HOST,
        ),
        HardwareSpec(
            name="t4",
            compute_capability=(7, 5),
            memory_bytes=16.1e9,
            bytes_per_s=0.320e12,
            flops=65e12,
            reached=Share(memory=0.727, flops=0.358),
            attention_flops_share=0.358 * _ATTENTION_TO_MATMUL / 2,
            small=_A100_SMALL,
            llamacpp=Share(memory=1.0, flops=0.8),
            links=PCIE_HOST,
        ),
        HardwareSpec(
            name="v100-32g",
            compute_capability=(7, 0),
            memory_bytes=34.3e9,
            bytes_per_s=0.900e12,
            flops=125e12,
            reached=Share(memory=0.762, flops=0.673),
            attention_flops_share=0.673 * _ATTENTION_TO_MATMUL / 2,
            small=_A100_SMALL,
            llamacpp=Share(memory=0.8, flops=0.472),
            links=NVLINK_V100,
        ),
        HardwareSpec(
            name="rtx-4090",
            compute_capability=(8, 9),
            memory_bytes=25.3e9,
            bytes_per_s=1.008e12,
            flops=165.2e12,
            reached=Share(memory=0.817, flops=0.793),
            attention_flops_share=0.793 * _ATTENTION_TO_MATMUL,
            small=_A100_SMALL,
            llamacpp=Share(memory=1.0, flops=1.0),
            links=PCIE_PEER,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """A GGUF format under llama.cpp: bytes for each weight (Q4_K_M: file sizes of Llama 3 8B and 70B; Q8_0: 34 bytes
    hold 32 weights; others: the table for Llama 3.1 8B in llama.cpp's tools/quantize/README.md, of Q3_K_S and Q3_K_L the
    mean), and the share of the 16-bit throughput that its matrix products reach (Q4_K_M; assumed for the others)."""

    suffix: str
    label: str
    bytes_per_weight: float
    flops_share: float


QUANTIZATIONS = {
    "q2": Quantization("q2", "Q2_K", 3.16 / 8, 0.834),
    "q3": Quantization("q3", "Q3_K_M", 3.97 / 8, 0.834),
    "q4": Quantization("q4", "Q4_K_M", 4.86 / 8, 0.834),
    "q5": Quantization("q5", "Q5_K_M", 5.7 / 8, 0.834),
    "q6": Quantization("q6", "Q6_K", 6.56 / 8, 0.834),
    "q8": Quantization("q8", "Q8_0", 8.5 / 8, 0.834),
}
#: llama.cpp's total constant time for each layer of a step (llama-bench, RTX 4090, Llama 3 8B Q4_K_M).
LLAMACPP_LAYER_S = 66e-6
#: The share of bandwidth that its decode attention reaches (same table, 512 and 4,096 tokens).
LLAMACPP_ATTENTION_SHARE = 0.326
