"""Checks numbers from engines: only finite values that are not negative and of a possible size are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: No request has more tokens than this.
MAX_TOKENS = 100_000_000
MAX_REASON_CHARS = 64


def token_count(value: object) -> int | None:
    """A token count; None for an invalid value."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def counted(usage: Mapping[str, Any] | None, name: str) -> int | None:
    """A count above 0 in an engine's usage; None for an invalid or missing value."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and 0 < count <= MAX_TOKENS else None


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def sound_usage(usage: object) -> Mapping[str, Any] | None:
    """An answer's `usage` without invalid counts; None without any count above 0."""
    if not isinstance(usage, dict):
        return None
    for name in _COUNTS:
        count = usage.get(name)
        if count is not None and not (type(count) is int and 0 <= count <= MAX_TOKENS):
            wrong = [each for each in _COUNTS if token_count(usage.get(each)) is None]
            usage = {each: value for each, value in usage.items() if each not in wrong}
            break
    return usage if usage.get("prompt_tokens") or usage.get("completion_tokens") else None


def finish_reason(value: object) -> str | None:
    """The reason for an answer's end. A text that is longer than any known reason is cut."""
    return value[:MAX_REASON_CHARS] if type(value) is str else None
