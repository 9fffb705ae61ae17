"""Events of OpenAI's streams, as engines send them."""

from __future__ import annotations

from typing import Any

import orjson

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "llama"}
TEXT_HEAD = {**HEAD, "id": "cmpl-1", "object": "text_completion"}


def sse(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def chunk(delta: dict[str, Any], finish_reason: str | None = None, index: int = 0, **more: Any) -> bytes:
    """An event of a chat; `more` are members of its choice."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return sse({**HEAD, "choices": [choice | more]})


def text_chunk(text: str, finish_reason: str | None = None, index: int = 0, **more: Any) -> bytes:
    """An event of a completion."""
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return sse({**TEXT_HEAD, "choices": [choice | more]})
