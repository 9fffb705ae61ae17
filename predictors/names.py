"""Names of models across fleets, engines and data sets: one key for one model, and its family.

`meta-llama/Meta-Llama-3.1-8B-Instruct`, `llama3.1:8b` and a fleet's `llama-3.1-8b` are the same model.
"""

from __future__ import annotations

import re

_DROPPED = re.compile(r"(^|-)(meta|instruct|chat|inst|it|hf|turbo|latest|preview|experimental)(?=-|$)")
_QUANTISED = re.compile(r"-(q[2-8](_[0-9a-z]+)*|fp8|fp16|bf16|awq|gptq|int[48]|gguf)(?=-|$)")
_DATE = re.compile(r"-(20\d{6}|20\d\d-\d\d-\d\d|\d{2}-\d{2}-\d{2}|\d{4})$")
_FAMILIES = (
    "llama",
    "qwen",
    "mixtral",
    "mistral",
    "gemma",
    "phi",
    "gpt",
    "claude",
    "gemini",
    "deepseek",
    "yi",
)
_LLAMA_LIKE = ("vicuna", "wizardlm", "alpaca", "athene", "nemotron", "guanaco", "koala", "tulu", "chatqa")


def model_key(name: str) -> str:
    """The key of a model's name: lower case, without organisation, host, form of tuning or quantisation."""
    key = (
        name.rsplit("/", 1)[-1]
        .lower()
        .partition("@")[0]
        .replace(":", "-")
        .replace("_", "-")
        .replace(" ", "-")
    )
    key = re.sub(r"^(llama|qwen|gemma|phi|mistral|yi)-?(\d)", r"\1-\2", key)
    key = re.sub(r"^qwen-(\d)", r"qwen\1", key)
    for pattern in (_DATE, _QUANTISED, _DROPPED):
        key = pattern.sub("", key)
    return key.strip("-")


def family_of(name: str) -> str | None:
    """The family that a model's name tells; None where it tells none."""
    key = model_key(name)
    for family in _FAMILIES:
        if family in key:
            return family
    return "llama" if any(word in key for word in _LLAMA_LIKE) else None
