"""Checks of a request body: what the router itself relies on must have the right type; everything else is
passed through for the engine to judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from router.core.errors import invalid_request

_NUMBER = (int, float)
#: Members with one simple type; null is allowed for all.
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "stream": ((bool,), "a boolean"),
    "max_tokens": ((int,), "an integer"),
    "max_completion_tokens": ((int,), "an integer"),
    "n": ((int,), "an integer"),
    "best_of": ((int,), "an integer"),
    "temperature": (_NUMBER, "a number"),
    "top_p": (_NUMBER, "a number"),
    "presence_penalty": (_NUMBER, "a number"),
    "frequency_penalty": (_NUMBER, "a number"),
    "seed": ((int,), "an integer"),
    "stop": ((str, list), "a string or a list of strings"),
    "stream_options": ((dict,), "an object"),
    "tools": ((list,), "a list"),
    "response_format": ((dict,), "an object"),
    "logit_bias": ((dict,), "an object"),
    "user": ((str,), "a string"),
    "prompt_cache_key": ((str,), "a string"),
    "echo": ((bool,), "a boolean"),
    "suffix": ((str,), "a string"),
    "dimensions": ((int,), "an integer"),
    "encoding_format": ((str,), "a string"),
}
_AT_LEAST_ONE = ("max_tokens", "max_completion_tokens", "n", "best_of", "dimensions")
MAX_CHOICES = 128
#: Levels of nesting; what is sent on must be written as JSON again, which has its own limit.
MAX_DEPTH = 100


def parse_json(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`; a 400 if it is none."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise invalid_request(f"The body is not valid JSON: {str(error).split(':', 1)[0]}.") from None
    if not isinstance(body, dict):
        raise invalid_request("The body must be a JSON object.")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _deeper_than(MAX_DEPTH, body):
        raise invalid_request(f"The body is nested more than {MAX_DEPTH} levels deep.")
    return body


def _deeper_than(limit: int, value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            member
            for each in level
            for member in (each.values() if isinstance(each, dict) else each)
            if isinstance(member, (dict, list))
        ]
        if not level:
            return False
    return True


def check(api: str, body: Mapping[str, Any]) -> None:
    """Check an OpenAI-shaped body for `api` ("chat", "completions", "embeddings")."""
    for name, value in body.items():
        rule = _TYPES.get(name)
        if rule is not None and value is not None:
            kinds, what = rule
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise invalid_request(f"{name} must be {what}.", name)
    for name in _AT_LEAST_ONE:
        value = body.get(name)
        if value is not None and value < 1:
            raise invalid_request(f"{name} must be at least 1.", name)
    for name in ("n", "best_of"):
        if (body.get(name) or 1) > MAX_CHOICES:
            raise invalid_request(f"{name} must be at most {MAX_CHOICES}.", name)
    options = body.get("stream_options")
    if options is not None:
        for name, value in options.items():
            if value is not None and not isinstance(value, bool):
                raise invalid_request(f"stream_options.{name} must be a boolean.", f"stream_options.{name}")
    stop = body.get("stop")
    if isinstance(stop, list) and not all(isinstance(item, str) for item in stop):
        raise invalid_request("stop must be a string or a list of strings.", "stop")
    if api == "chat":
        _check_messages(body.get("messages"))
    else:
        name = "prompt" if api == "completions" else "input"
        _check_prompt(body.get(name), name)


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise invalid_request("messages must be a non-empty list.", "messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise invalid_request(f"{where} must be an object.", where)
        if not isinstance(message.get("role"), str):
            raise invalid_request(f"{where}.role must be a string.", f"{where}.role")
        content = message.get("content")
        if isinstance(content, list):
            if not all(isinstance(part, dict) for part in content):
                raise invalid_request(f"{where}.content must be a list of objects.", f"{where}.content")
        elif content is not None and not isinstance(content, str):
            raise invalid_request(f"{where}.content must be a string or a list.", f"{where}.content")


def _check_prompt(prompt: object, name: str) -> None:
    what = f"{name} must be a string, a list of strings, or a list of token ids."
    if isinstance(prompt, str):
        if not prompt and name == "prompt":
            raise invalid_request(f"{name} must not be empty.", name)
        return
    if not isinstance(prompt, list) or not prompt:
        raise invalid_request(what, name)
    first = prompt[0]
    if isinstance(first, str):
        good = all(isinstance(item, str) for item in prompt)
    elif isinstance(first, int) and not isinstance(first, bool):
        good = all(type(item) is int and item >= 0 for item in prompt)
    elif isinstance(first, list):
        good = all(
            isinstance(item, list) and all(type(token) is int and token >= 0 for token in item)
            for item in prompt
        )
    else:
        good = False
    if not good:
        raise invalid_request(what, name)


def output_cap(body: Mapping[str, Any]) -> int | None:
    """The client's bound on output tokens (for each choice)."""
    cap = body.get("max_completion_tokens")
    return cap if cap is not None else body.get("max_tokens")
