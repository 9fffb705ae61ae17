"""The input of OpenAI's Responses API as the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_Messages = list[dict[str, Any]]


def messages_of(given: str | Sequence[dict[str, Any]] | None) -> _Messages:
    """The messages of a checked string or list of items."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: _Messages = []
    for item in given or ():
        if "role" in item:
            _add_message(item["role"], _content(item["content"]), messages)
        elif "arguments" in item:
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            _turn(messages).setdefault("tool_calls", []).append(call)
        elif "output" in item:
            output = _content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
        elif thoughts := item.get("content") or item.get("summary"):
            # Reasoning without text (encrypted elsewhere) means nothing to an engine.
            text = "\n".join([thought["text"] for thought in thoughts])
            _turn(messages, "reasoning", "content", "tool_calls")["reasoning"] = text
    return messages


def _add_message(role: str, content: str | list[dict[str, Any]], messages: _Messages) -> None:
    if role == "assistant":
        _turn(messages, "content", "tool_calls")["content"] = content
    else:
        # `developer` is the newer name of `system`; not every chat template knows it.
        messages.append({"role": "system" if role == "developer" else role, "content": content})


def _turn(messages: _Messages, *taken: str) -> dict[str, Any]:
    """The assistant's message that the next item belongs to: the last message if it has none of the members `taken`, or a
    new one. Reasoning, text and calls that follow one another are one message of a chat."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(name) is not None for name in taken):
        last = {"role": "assistant", "content": None}
        messages.append(last)
    return last


def _content(given: str | Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A message's content. Parts are used only where text alone is not enough: some chat templates take no parts."""
    if isinstance(given, str):
        return given
    if len(given) == 1 and "text" in given[0]:
        text: str = given[0]["text"]
        return text
    return [_part(part) for part in given] or ""


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    if "refusal" in part:
        return {"type": "refusal", "refusal": part["refusal"]}
    image = {"url": part["image_url"]}
    if (detail := part.get("detail")) is not None:
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}
