"""Objects of OpenAI's Responses API: the items of a response and its usage.

A model's reasoning is one item (`reasoning_text`, as OpenAI has it for open-weight models), its text and refusal are one
message, and each tool call is one item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from router.gateway.codecs.codec import listed, said_in

#: The namespace and the name of each function in one, by its name in a chat.
Namespaces = Mapping[str, tuple[str, str]]


def item_id(prefix: str, ids: str, index: int) -> str:
    """The id of the output item at `index`."""
    return f"{prefix}_{ids}_{index}"


def usage_object(usage: Mapping[str, Any]) -> dict[str, Any]:
    """A chat's usage under the names of this API. Unknown details are 0: the API has no null there."""
    prompt, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": _count(usage.get("prompt_tokens_details"), "cached_tokens"),
            "cache_write_tokens": 0,
        },
        "output_tokens": output,
        "output_tokens_details": {
            "reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens")
        },
        "total_tokens": prompt + output,
    }


def _count(of: Any, name: str) -> int:
    value = of.get(name) if isinstance(of, Mapping) else None
    return value if type(value) is int else 0


# --- items -------------------------------------------------------------------------------------------
def part_of(
    kind: str, text: str, logprobs: Sequence[dict[str, Any]] = (), annotations: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A part of an item: an `output_text`, a `refusal` or a `reasoning_text`."""
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": annotations, "logprobs": logprobs}
    return {"type": kind, "refusal" if kind == "refusal" else "text": text}


def annotations_of(given: Any) -> list[dict[str, Any]]:
    """A chat's annotations. A chat nests the members of each under the name of its type; this API does not."""
    found = []
    for one in listed(given):
        if isinstance(one, dict) and isinstance(kind := one.get("type"), str):
            nested = one.get(kind)
            found.append({"type": kind, **nested} if isinstance(nested, dict) else one)
    return found


def item_of(kind: str, ids: str, index: int, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The item at `index` that has parts of this kind: the reasoning or the message."""
    if kind == "reasoning_text":
        item = {"id": item_id("rs", ids, index), "type": "reasoning", "status": status, "summary": []}
    else:
        item = {"id": item_id("msg", ids, index), "type": "message", "status": status, "role": "assistant"}
    return item | {"content": parts}


def call_item(
    item: str, status: str, call_id: str, name: str, arguments: str, namespaces: Namespaces
) -> dict[str, Any]:
    call = {
        "id": item,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }
    if name in namespaces:
        call["namespace"], call["name"] = namespaces[name]
    return call


def logprobs_of(given: Any) -> list[dict[str, Any]]:
    """A chat's log probabilities, with every member that this API requires."""
    items = given.get("content") if isinstance(given, Mapping) else None
    return [
        {
            **_logprob(one),
            "top_logprobs": [
                _logprob(top) for top in listed(one.get("top_logprobs")) if isinstance(top, Mapping)
            ],
        }
        for one in listed(items)
        if isinstance(one, Mapping)
    ]


def _logprob(given: Mapping[str, Any]) -> dict[str, Any]:
    token = given.get("token")
    token = token if isinstance(token, str) else ""
    known = given.get("bytes")
    return {
        "token": token,
        "logprob": given.get("logprob"),
        "bytes": list(token.encode("utf-8", "surrogatepass")) if known is None else known,
    }


def output_of(choice: Mapping[str, Any], ids: str, namespaces: Namespaces) -> list[dict[str, Any]]:
    """The items of a chat's choice, all complete."""
    said: Mapping[str, Any] = choice.get("message") or {}
    output: list[dict[str, Any]] = []
    content, thoughts = said_in(said)
    if thoughts:
        thought = part_of("reasoning_text", thoughts)
        output.append(item_of("reasoning_text", ids, 0, "completed", [thought]))
    parts = []
    if content:
        annotations = annotations_of(said.get("annotations"))
        parts.append(part_of("output_text", content, logprobs_of(choice.get("logprobs")), annotations))
    if refusal := said.get("refusal"):
        parts.append(part_of("refusal", refusal))
    if parts:
        output.append(item_of("output_text", ids, len(output), "completed", parts))
    for call in said.get("tool_calls") or ():
        function = call.get("function") or {}
        index = len(output)
        call_id = call.get("id") or item_id("call", ids, index)
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):  # some engines send an object
            arguments = orjson.dumps(arguments).decode()
        item, name = item_id("fc", ids, index), function.get("name") or ""
        output.append(call_item(item, "completed", call_id, name, arguments, namespaces))
    return output
