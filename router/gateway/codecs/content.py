"""Content that is no string: some engines answer in parts (Mistral's API sends reasoning so)."""

from __future__ import annotations

from typing import Any


def texts_of(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a message's or delta's content."""
    if isinstance(content, str):
        return content, ""
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    text = "".join(said for part in parts if isinstance(said := part.get("text"), str))
    thoughts = [texts_of(part["thinking"])[0] for part in parts if "thinking" in part]
    return text, "".join(thoughts)


def listed(value: Any) -> list[Any]:
    """The value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []
