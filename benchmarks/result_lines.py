"""Results as JSON text that can be read and compared line by line."""

from __future__ import annotations

from typing import Any

import orjson


def result_lines(value: Any) -> str:
    """JSON with a line for each list of plain values. Takes what orjson takes, NumPy's values too."""
    return _lines(orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)), "\n") + "\n"


def _lines(value: Any, margin: str) -> str:
    inner = margin + " "
    if isinstance(value, dict) and value:
        return (
            "{"
            + ",".join(f"{inner}{_plain(key)}: {_lines(each, inner)}" for key, each in value.items())
            + margin
            + "}"
        )
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return "[" + ",".join(inner + _lines(each, inner) for each in value) + margin + "]"
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return orjson.dumps(value).decode()
