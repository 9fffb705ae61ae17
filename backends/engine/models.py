"""Shapes of language models: facts from their public config.json files on huggingface.co (the Llama and
Qwen organisations; the facts carry no licence, the weights are not used)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder with gated MLPs and grouped-query attention. `tied`: the output layer is the embedding."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    params: int
    tied: bool = False

    def layer_params(self, tensor_parallel: int = 1) -> float:
        """Weights in the linear layers of one decoder layer on each of `tensor_parallel` GPUs. Key and value heads are
        replicated if there are fewer of them than GPUs."""
        kv_heads = max(self.kv_heads, tensor_parallel)
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * kv_heads)
        return (attention + 3 * self.hidden * self.intermediate) / tensor_parallel

    def divides(self, tensor_parallel: int) -> bool:
        """Whether vLLM runs it on so many tensor parallel GPUs: each gets as many heads (ModelConfig.verify_with_parallel_config)."""
        return self.heads % tensor_parallel == 0

    @property
    def head_params(self) -> int:
        """Weights of the output layer, which is read once in every step."""
        return self.vocab * self.hidden

    def kv_bytes_per_token(self, tensor_parallel: int = 1) -> float:
        """Bytes of 16-bit keys and values of one token over all layers, on each GPU."""
        kv_heads = max(self.kv_heads, tensor_parallel)
        return self.layers * 2 * kv_heads * self.head_dim * 2 / tensor_parallel


MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 1_235_814_400, tied=True),
        ModelSpec("llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 3_212_749_824, tied=True),
        ModelSpec("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8_030_261_248),
        ModelSpec("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 70_553_706_496),
        ModelSpec("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 7_615_616_512),
        ModelSpec("qwen2.5-14b", 48, 5120, 40, 8, 128, 13824, 152064, 14_770_033_664),
        ModelSpec("qwen2.5-32b", 64, 5120, 40, 8, 128, 27648, 152064, 32_763_876_352),
        ModelSpec("qwen2.5-72b", 80, 8192, 64, 8, 128, 29568, 152064, 72_706_203_648),
    )
}
