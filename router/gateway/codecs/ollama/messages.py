"""Ollama's messages as the messages of an OpenAI chat."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from router.core.raw_json import dumps
from router.gateway.codecs.ollama.fields import Message, ToolCall

#: How the base64 of an image begins, by its type's first bytes.
_IMAGE_TYPES = (("/9j/", "jpeg"), ("iVBOR", "png"), ("R0lGOD", "gif"), ("UklGR", "webp"))


def content_of(text: str, images: Iterable[str]) -> str | list[dict[str, Any]]:
    """A message's content: the text alone, or parts with `images` (base64 or data URLs)."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for image in images:
        kind = next((kind for start, kind in _IMAGE_TYPES if image.startswith(start)), "png")
        url = image if image.startswith("data:") else f"data:image/{kind};base64,{image}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts if images else text


class Conversation:
    """Translates messages in order.

    Tool calls of Ollama have no ids, those of OpenAI must have one. Missing ids are made up. A tool's answer without an id
    belongs to the first unanswered call of the tool's name.
    """

    def __init__(self) -> None:
        self._made = 0
        self._open: set[str] = set()  # ids of unanswered calls
        # Unanswered calls in order, by tool, and under "" of all tools. Answered ones are dropped when they are met.
        self._open_of: dict[str, deque[str]] = {}

    def translate(self, message: Message) -> dict[str, Any]:
        role = message["role"].lower()
        content = content_of(message.get("content") or "", message.get("images") or ())
        into: dict[str, Any] = {"role": role, "content": content}
        if thinking := message.get("thinking"):
            into["reasoning_content"] = thinking
        if calls := message.get("tool_calls"):
            self._open.clear()
            self._open_of.clear()
            into["tool_calls"] = [self._call(call) for call in calls]
        if role == "tool":
            tool = message.get("tool_name") or ""
            into["tool_call_id"] = self._answered(message.get("tool_call_id") or "", tool)
            if tool:
                into["name"] = tool
        return into

    def _call(self, call: ToolCall) -> dict[str, Any]:
        function = call["function"]
        name, arguments = function.get("name") or "", function.get("arguments")
        if not isinstance(arguments, str):
            arguments = dumps({} if arguments is None else arguments).decode()
        call_id = call.get("id") or ""
        if not call_id:
            call_id = f"call{self._made:05d}"  # nine letters and digits: all that Mistral's templates accept
            self._made += 1
        self._open.add(call_id)
        for tool in {name, ""}:
            self._open_of.setdefault(tool, deque()).append(call_id)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _answered(self, call_id: str, tool: str) -> str:
        if call_id:
            self._open.discard(call_id)
            return call_id
        waiting = self._open_of.get(tool, deque())
        while waiting:
            open_id = waiting.popleft()
            if open_id in self._open:
                self._open.discard(open_id)
                return open_id
        return "call00000"
