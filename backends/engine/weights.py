"""Formats of weights by their usual names: those of vLLM, Hugging Face and llama.cpp.

Each format has one canonical name. It is the suffix of the names of engine profiles, except for 16 bits, which have none.
"""

from __future__ import annotations

import re

#: The usual names of each format that vLLM runs, in lower case and with `_`; the first one is canonical. 8-bit integers
#: count as `fp8`: they take the same memory.
VLLM_NAMES = (
    ("fp16", "float16", "f16", "half"),
    ("bf16", "bfloat16"),
    ("fp8", "float8", "fp8_e4m3", "fp8_e5m2", "fbgemm_fp8", "int8", "w8a8", "w8a16", "gptq_int8"),
    (
        "int4",
        "awq",
        "gptq",
        "awq_marlin",
        "gptq_marlin",
        "gptq_int4",
        "w4a16",
        "bitsandbytes",
        "nf4",
        "fp4",
        "mxfp4",
    ),
)
_CANONICAL = {name: names[0] for names in VLLM_NAMES for name in names}
#: A format of llama.cpp, such as q4_K_M, q8_0 or iq4_XS. Only the number of bits counts; below q2 there is nothing.
_GGUF = re.compile(r"i?(q[2-68])(_[a-z0-9_]+)?")
_SIXTEEN_BITS = ("fp16", "bf16")


class UnknownWeights(ValueError):
    """No format of weights has this name. The message lists the usual ones."""

    def __init__(self) -> None:
        known = ", ".join(name for names in VLLM_NAMES for name in names[:3])
        super().__init__(
            f"unknown format of weights; known: {known}, and those of llama.cpp from q2 to q8, such as q4_K_M"
        )


def weights_named(name: str) -> str:
    """The canonical name of a format: `fp16`, `bf16`, `fp8`, `int4`, or `q2` to `q8` of llama.cpp. Raises UnknownWeights."""
    plain = name.lower().replace("-", "_")
    if gguf := _GGUF.fullmatch(plain):
        return gguf[1]
    try:
        return _CANONICAL[plain]
    except KeyError:
        raise UnknownWeights from None


def suffix_of(name: str) -> str | None:
    """The suffix that names of engine profiles have for a format; None for 16 bits. Raises UnknownWeights."""
    canonical = weights_named(name)
    return None if canonical in _SIXTEEN_BITS else canonical
