"""Names of models across fleets, engines and data sets: one key for each model, and its family.

`meta-llama/Meta-Llama-3.1-8B-Instruct`, `llama3.1:8b` and a fleet's `llama-3.1-8b` are the same model.
"""

from __future__ import annotations

import re
from functools import lru_cache

_DROPPED = re.compile(r"(^|-)(meta|instruct|chat|inst|it|hf|turbo|latest|preview|experimental)(?=-|$)")
_QUANTISED = re.compile(r"-(q[2-8](-(0|1|k(-[sml])?))?|fp8|fp16|bf16|awq|gptq|int[48]|gguf)(?=-|$)")
_DATE = re.compile(r"-(20\d{6}|20\d\d-\d\d-\d\d|\d{2}-\d{2}-\d{2}|\d{4})$")
_FAMILIES = (
    "llama", "qwen", "mixtral", "mistral", "gemma", "phi", "gpt", "claude", "gemini", "deepseek", "yi",
)  # fmt: skip
#: Tuned models with names of their own.
_TUNED = {
    "llama": ("vicuna", "wizardlm", "alpaca", "athene", "nemotron", "guanaco", "koala", "tulu", "chatqa"),
    "mistral": ("zephyr", "starling", "openchat"),
}


@lru_cache(maxsize=4096)
def model_key(name: str) -> str:
    """The key of a model's name: lower case, without organisation, host, form of tuning or quantisation."""
    key = re.sub("[:_ ]", "-", name.rsplit("/", 1)[-1].lower().partition("@")[0])
    key = re.sub(r"^(llama|qwen|gemma|phi|mistral|yi)-?(\d)", r"\1-\2", key)
    key = re.sub(r"^qwen-(\d(\.\d)?)(?=-|$)", r"qwen\1", key)  # a version, not a size as in qwen-14b
    key = re.sub(r"^gpt(\d)", r"gpt-\1", key)
    key = _QUANTISED.sub("", _DATE.sub("", key))
    # gpt-4-turbo is another model than gpt-4, but llama-3.1-70b-turbo is llama-3.1-70b on faster engines
    dropped = _DROPPED.sub("", key.replace("gpt-4-turbo", "gpt-4turbo"))
    return dropped.replace("gpt-4turbo", "gpt-4-turbo").strip("-")


def version_of(name: str) -> str:
    """The date of a model's version, as digits that sort by age (`20241022`); empty without one."""
    found = _DATE.search(name.partition("@")[0].replace("_", "-"))
    digits = found[1].replace("-", "") if found else ""
    return f"20{digits}" if len(digits) == 6 else digits


def family_of(name: str) -> str | None:
    """The family that a model's name shows, or None."""
    key = model_key(name)
    for family in _FAMILIES:
        # also at the end of a word, as in codellama and chatgpt; but phi and yi only as words, not in dolphin
        if re.search(rf"(^|[^a-z]){family}" if len(family) <= 3 and family != "gpt" else family, key):
            return family
    for family, words in _TUNED.items():
        if any(word in key for word in words):
            return family
    return None
