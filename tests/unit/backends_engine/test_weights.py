"""Formats of weights by their usual names."""

import pytest

from backends.engine.hardware import QUANTIZATIONS, VLLM_WEIGHTS
from backends.engine.profiles import find, profile, weights_bytes
from backends.engine.weights import UnknownWeights, suffix_of, weights_named


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        *(("fp16", "fp16"), ("float16", "fp16"), ("BF16", "bf16"), ("bfloat16", "bf16")),
        *(("fp8", "fp8"), ("FP8-e4m3", "fp8"), ("w8a8", "fp8"), ("int8", "fp8")),
        *(("awq", "int4"), ("AWQ", "int4"), ("gptq", "int4"), ("gptq-marlin", "int4"), ("w4a16", "int4")),
        *(("q4", "q4"), ("q4_K_M", "q4"), ("Q4_0", "q4"), ("iq4_XS", "q4"), ("q5_K_M", "q5"), ("q6_K", "q6")),
        *(("q8_0", "q8"), ("q3_K_S", "q3"), ("q2_K", "q2")),
    ],
)
def test_usual_names(name: str, canonical: str) -> None:
    assert weights_named(name) == canonical
    suffix = suffix_of(name)
    assert suffix == (None if canonical in {"fp16", "bf16"} else canonical)
    assert (suffix in VLLM_WEIGHTS) != (suffix in QUANTIZATIONS)


@pytest.mark.parametrize("name", ["awqq", "", "q", "q7", "q9_K", "4bit", "fp"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownWeights, match=r"^unknown format of weights; known: fp16, .*awq.*q4_K_M$"):
        weights_named(name)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("llama-3.1-8b-awq@l4", "llama-3.1-8b-int4@l4"),
        ("llama-3.1-8b-gptq@2xl4", "llama-3.1-8b-int4@2xl4"),
        ("llama-3.1-8b-bf16@l4", "llama-3.1-8b@l4"),
        ("qwen2.5-7b-q4_K_M@rtx-4090", "qwen2.5-7b-q4@rtx-4090"),
        ("llama-3.1-70b-awq@4xa100-80g:62+4xl4:18", "llama-3.1-70b-int4@4xa100-80g:62+4xl4:18"),
    ],
)
def test_profiles_have_the_usual_names_too(given: str, name: str) -> None:
    assert profile(given).name == name
    assert weights_bytes(given) == weights_bytes(name)


def test_names_that_only_look_like_profiles() -> None:
    assert [find(f"llama-3.1-8b{suffix}@l4") for suffix in ("-awqq", "-", "awq", "-awq-awq")] == [None] * 4


def test_four_bits_are_read_faster_and_computed_in_sixteen() -> None:
    four, sixteen = profile("llama-3.1-8b-awq@l4"), profile("llama-3.1-8b@l4")
    assert sixteen.per_token_s == four.per_token_s
    assert sixteen.floor_s / four.floor_s == pytest.approx(16 / 4.156, rel=0.001)
    # The published file of Llama 3.1 8B in AWQ has 5.73e9 bytes.
    assert weights_bytes("llama-3.1-8b-awq@l4") == pytest.approx(5.73e9, rel=0.005)
    assert find("llama-3.1-8b-awq@v100-32g") is None
