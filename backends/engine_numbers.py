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


def counted(usage: object, name: str) -> int | None:
    """A count above 0 in an engine's usage; None if there is none that can be true."""
    return (token_count(usage.get(name)) or None) if isinstance(usage, Mapping) else None


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def sound_usage(usage: object) -> Mapping[str, Any] | None:
    """An answer's `usage` without counts that cannot be true; None without any count above 0."""
    if not isinstance(usage, Mapping):
        return None
    prompt, output, total = (usage.get(name) for name in _COUNTS)
    wrong = [
        name
        for name, count in zip(_COUNTS, (prompt, output, total), strict=True)
        if count is not None and token_count(count) is None
    ]
    if wrong:
        usage = {name: value for name, value in usage.items() if name not in wrong}
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return usage if prompt or output else None


def finish_reason(value: object) -> str | None:
    """Why an answer ended; a longer word than any known one is cut."""
    return value[:MAX_REASON_CHARS] if isinstance(value, str) else None
