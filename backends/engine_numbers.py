"""Numbers that engines tell, as far as they can be true: finite, not negative, not beyond all measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: More tokens than this are in no request.
MAX_TOKENS = 100_000_000
MAX_REASON_CHARS = 64


def token_count(value: object) -> int | None:
    """A count of tokens; None for what is none."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def counted(usage: Mapping[str, Any] | None, name: str) -> int | None:
    """A count above 0 in an engine's usage; None if there is none that can be true."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and 0 < count <= MAX_TOKENS else None


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def sound_usage(usage: object) -> Mapping[str, Any] | None:
    """An answer's `usage` without counts that cannot be true; None without any count above 0."""
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
    """Why an answer ended; a longer word than any known one is cut."""
    return value[:MAX_REASON_CHARS] if isinstance(value, str) else None
