"""The texts of a request and of its answer, as a reader sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def asked_text(api: str, body: Mapping[str, Any]) -> str:
    """The prompt's text of a checked chat or completion; "" if a part of it is no text. Messages of a longer chat begin with
    their role."""
    if api != "chat":
        prompt = body["prompt"]
        return prompt if isinstance(prompt, str) else ""
    said = [(str(message.get("role")), _content(message.get("content"))) for message in body["messages"]]
    if any(text is None for _, text in said):
        return ""
    if len(said) == 1:
        return said[0][1] or ""
    return "\n\n".join(f"{role}: {text}" for role, text in said)


def answer_text(api: str, answer: Mapping[str, Any]) -> str:
    """The text of an answer's first choice, in OpenAI's form; "" if it has none."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if api == "chat" else choice["text"]
    except (KeyError, IndexError, TypeError):
        return ""
    return text if isinstance(text, str) else ""


def _content(content: Any) -> str | None:
    """The text of a message; None if a part of it is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") if part.get("type") == "text" else None for part in content]
    return None if None in texts else "".join(map(str, texts))
