"""Quotes a value in an error message: short, on one line, and valid UTF-8."""

from __future__ import annotations

import math
from collections.abc import Mapping

#: Most characters of a quoted text.
MAX_QUOTED_CHARS = 80
_WORDS = {None: "null", True: "true", False: "false"}


def cut(text: str, limit: int = MAX_QUOTED_CHARS) -> str:
    """The text, cut to `limit` characters. Lone surrogates, which UTF-8 cannot encode, are replaced."""
    if len(text) > limit:
        text = text[:limit] + "..."
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def quoted(value: object) -> str:
    """A JSON or YAML value as text: a string in quotes, a number as it is, only the type of a list or a mapping."""
    if isinstance(value, str):
        return repr(cut(value))
    if isinstance(value, bool) or value is None:
        return _WORDS[value]
    if isinstance(value, float):
        return f"{value:.15g}" if math.isfinite(value) else f".{value}"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 256 else "a very large number"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
