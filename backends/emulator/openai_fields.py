"""Reads fields of OpenAI-shaped bodies, with vLLM's error texts where it has its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from backends.emulator.answers import example_json
from backends.emulator.http import Exchange


class Rejected(Exception):
    """A request that is answered with an error, by any emulated server. `kind` is vLLM's `error.type`."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


def invalid(message: str, param: str) -> Rejected:
    """A parameter with a value that vLLM refuses."""
    return Rejected(400, message, param=param)


def validation(loc: str, message: str) -> Rejected:
    """A type error in the words of the body's schema check."""
    return Rejected(
        400, f"1 validation error: {{'loc': ('body', '{loc}'), 'msg': '{message}'}}", "Bad Request", loc
    )


def json_object(exchange: Exchange) -> dict[str, Any]:
    """The body as a JSON object."""
    kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Rejected(400, "Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")
    try:
        body = exchange.json()
    except orjson.JSONDecodeError as error:
        # Only the position is reported: the parser's own text could quote the prompt.
        raise Rejected(400, f"JSON decode error at position {error.pos}", "Bad Request") from None
    if not isinstance(body, dict):
        raise validation("", "Input should be a valid dictionary")
    return body


def integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise validation(name, "Input should be a valid integer")
    return value


def boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise validation(name, "Input should be a valid boolean")
    return bool(value)


def number_between(body: Mapping[str, Any], name: str, least: float, most: float) -> None:
    """Check a sampling parameter that the emulator does not use."""
    value = body.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise validation(name, "Input should be a valid number")
    if not least <= value <= most:
        raise invalid(f"{name} must be in [{least}, {most}], got {value}.", name)


def strings(body: Mapping[str, Any], name: str) -> list[str]:
    value = body.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise validation(name, "Input should be a valid string or list of strings")


def wants_json(body: Mapping[str, Any]) -> bool:
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind is not None and not isinstance(kind, str):
        raise validation("response_format", "Input should be a valid string")
    return kind in {"json_object", "json_schema"}


def wanted_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of `response_format`; None without one."""
    form = body.get("response_format")
    wanted = form.get("json_schema") if isinstance(form, Mapping) else None
    schema = wanted.get("schema") if isinstance(wanted, Mapping) else None
    return schema if isinstance(schema, Mapping) else None


def messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if messages is None:
        raise validation("messages", "Field required")
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise validation("messages", "Input should be a valid list")
    for item in messages:
        if not isinstance(item.get("role"), str):
            raise validation("messages", "Input should have a role")
        if not isinstance(item.get("content"), str | list | None):
            raise validation("messages", "Input should have a valid content")
    return messages


def forced_tool(body: Mapping[str, Any]) -> tuple[dict[str, Any], bool] | None:
    """The function that `tool_choice` forces, and whether it was named; None if none is forced."""
    tools = body.get("tools")
    choice = body.get("tool_choice")
    if tools == []:
        raise invalid(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
            "tools",
        )
    if choice in (None, "none", "auto"):
        return None
    if not isinstance(tools, list):
        raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    functions = [
        tool["function"]
        for tool in tools
        if isinstance(tool, dict)
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
    ]
    if choice == "required" and functions:
        return functions[0], False
    if isinstance(choice, dict):
        wanted = choice.get("function")
        name = wanted.get("name") if isinstance(wanted, dict) else None
        for function in functions:
            if function["name"] == name:
                return function, True
        raise invalid(
            "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
        )
    raise invalid("Invalid value for `tool_choice`: only named tools, none, auto or required.", "tool_choice")


def tool_arguments(function: Mapping[str, Any]) -> str:
    """Arguments that fit the simple parts of a function's schema."""
    schema = function.get("parameters")
    return example_json(schema if isinstance(schema, Mapping) else {"type": "object"})
