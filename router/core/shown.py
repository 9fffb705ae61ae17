"""How an error repeats what a client or an engine wrote: cut, and always fit to be sent."""

from __future__ import annotations

#: Characters of a client's own value in an error.
MAX_SHOWN_CHARS = 80


def cut(text: str, limit: int = MAX_SHOWN_CHARS) -> str:
    """The text up to `limit` characters, without halves of surrogate pairs, which no encoder takes."""
    if len(text) > limit:
        text = text[:limit] + "..."
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def shown(value: object) -> str:
    """A client's own value: text in quotes, a number as it is, of all else its kind."""
    if isinstance(value, str):
        return repr(cut(value))
    if isinstance(value, bool | float | None):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() <= 256 else "a number of very many digits"
    return f"a value of the type {type(value).__name__}"
