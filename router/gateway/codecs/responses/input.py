"""The input of OpenAI's Responses API as the messages of a chat, and checked reading of its members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from router.core.errors import Refusal, invalid_request
from router.core.quoting import cut
from router.request.body import MAX_MESSAGES, MAX_PARTS, at_most

#: The newer name of `system`; not every chat template knows it.
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def object_at(value: Any, at: str) -> dict[str, Any]:
    """An object, or a 400 that names the place `at`."""
    if not isinstance(value, dict):
        raise invalid_request(f"{at} must be an object.", at)
    return value


def string_of(of: Mapping[str, Any], name: str, at: str) -> str:
    """The string member `name` of what stands `at`, or a 400."""
    value = of.get(name)
    if not isinstance(value, str):
        raise invalid_request(f"{at}.{name} must be a string.", f"{at}.{name}")
    return value


def unknown(kind: object, param: str, what: str) -> Refusal:
    """The 400 for a `type` that is not taken here."""
    if not isinstance(kind, str):
        return invalid_request(f"{param} must be a string.", param)
    if kind == "item_reference":
        return invalid_request("Items cannot be referred to: nothing is stored here.", param)
    return invalid_request(f"{what} of the type '{cut(kind)}' are not supported.", param)


def messages_of(given: Any) -> list[dict[str, Any]]:
    """The messages of a string or a list of items. Raises a 400 Refusal that names `param`."""
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid_request("input must be a string or a list of items.", "input")
    at_most(MAX_MESSAGES, given, "input")
    messages: list[dict[str, Any]] = []
    for number, one in enumerate(given):
        at = f"input[{number}]"
        item = object_at(one, at)
        kind = item.get("type")
        if kind is None:  # a message may leave it out
            kind = "message"
        take = _ITEMS.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise unknown(kind, f"{at}.type", "Items")
        take(item, at, messages)
    return messages


def _message(item: dict[str, Any], at: str, messages: list[dict[str, Any]]) -> None:
    asked = string_of(item, "role", at)
    role = _ROLES.get(asked)
    if role is None:
        raise invalid_request(f"{at}.role must be user, assistant, system or developer.", f"{at}.role")
    content = _content(item.get("content"), f"{at}.content")
    if role == "assistant":
        _turn(messages, "content", "tool_calls")["content"] = content
    else:
        messages.append({"role": role, "content": content})


def _turn(messages: list[dict[str, Any]], *taken: str) -> dict[str, Any]:
    """The assistant's message that the next item belongs to: the last one if it has none of the members `taken`, else a
    new one. Reasoning, text and calls that follow one another are one message of a chat."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(name) is not None for name in taken):
        last = {"role": "assistant", "content": None}
        messages.append(last)
    return last


def _content(given: Any, at: str) -> str | list[dict[str, Any]]:
    """A message's content; parts only where text alone does not say it, as some chat templates take no parts."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise invalid_request(f"{at} must be a string or a list of parts.", at)
    at_most(MAX_PARTS, given, at)
    parts = [_part(part, f"{at}[{number}]") for number, part in enumerate(given)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text
    return parts or ""


def _part(given: Any, at: str) -> dict[str, Any]:
    part = object_at(given, at)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise unknown(kind, f"{at}.type", "Parts")
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": string_of(part, "text", at)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": string_of(part, "refusal", at)}
    if kind == "input_image":
        if part.get("file_id") is not None:
            raise invalid_request("No files are stored here: send image_url.", f"{at}.file_id")
        image = {"url": string_of(part, "image_url", at)}
        if part.get("detail") is not None:
            image["detail"] = string_of(part, "detail", at)
        return {"type": "image_url", "image_url": image}
    raise unknown(kind, f"{at}.type", "Parts")


def _reasoning(item: dict[str, Any], at: str, messages: list[dict[str, Any]]) -> None:
    texts = []
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list):
            raise invalid_request(f"{at}.{name} must be a list.", f"{at}.{name}")
        texts = [
            string_of(object_at(part, f"{at}.{name}[{number}]"), "text", f"{at}.{name}[{number}]")
            for number, part in enumerate(parts)
        ]
        if texts:
            break
    if texts:  # without its text (encrypted elsewhere) it says nothing to an engine
        _turn(messages, "reasoning", "content", "tool_calls")["reasoning"] = "\n".join(texts)


def _function_call(item: dict[str, Any], at: str, messages: list[dict[str, Any]]) -> None:
    call = {
        "id": string_of(item, "call_id", at),
        "type": "function",
        "function": {"name": string_of(item, "name", at), "arguments": string_of(item, "arguments", at)},
    }
    _turn(messages).setdefault("tool_calls", []).append(call)


def _function_call_output(item: dict[str, Any], at: str, messages: list[dict[str, Any]]) -> None:
    content = _content(item.get("output"), f"{at}.output")
    messages.append({"role": "tool", "tool_call_id": string_of(item, "call_id", at), "content": content})


_ITEMS: Mapping[str, Callable[[dict[str, Any], str, list[dict[str, Any]]], None]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}
