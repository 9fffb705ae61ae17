"""Checks of a request body: what the router itself relies on must have the right type; everything else is
passed through for the engine to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from backends import bounded_json
from router.core.errors import Refusal, invalid_request
from router.core.quoting import cut

#: Up to here a body is parsed at once.
SMALL_BYTES = bounded_json.SMALL_BYTES

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
#: They name things: nobody reads more of them.
_NAMES = ("user", "prompt_cache_key", "encoding_format")
_AT_LEAST_ONE = ("max_tokens", "max_completion_tokens", "n", "best_of", "dimensions")
MAX_CHOICES = 128
#: The largest whole number that engines, databases and floats all take.
LARGEST_NUMBER = (1 << 53) - 1
#: Entries of lists, so that what is done for each of them holds the event loop for milliseconds at most.
MAX_MESSAGES = 4096
MAX_PARTS = 8192
MAX_TOOLS = 1024
MAX_PROMPTS = 2048
MAX_STOP_WORDS = 256
MAX_LOGIT_BIAS = 4096
MAX_NAME_CHARS = 1024


def parse_json(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, at once: for bodies below `bounded_json.SMALL_BYTES`. Raises a 400 Refusal."""
    try:
        return _object(bounded_json.loads(data))
    except ValueError as error:
        raise _unreadable(error) from None


async def parse_large_json(data: bytes) -> dict[str, Any]:
    """The same for a body of any size; the event loop runs in between."""
    try:
        return _object(await bounded_json.read(data))
    except ValueError as error:
        raise _unreadable(error) from None


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise invalid_request("The body must be a JSON object.")
    return body


def _unreadable(error: ValueError) -> Refusal:
    if isinstance(error, bounded_json.TooComplex):
        return invalid_request(f"The body {error}.")
    return invalid_request(f"The body is not valid JSON: {str(error).split(':', 1)[0]}.")


def at_most(limit: int, entries: Sized, name: str) -> None:
    """Raise a 400 that names `name` if there are more entries than `limit`."""
    if len(entries) > limit:
        raise invalid_request(f"{name} must have at most {limit} entries.", name)


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
        if value is not None and not 1 <= value <= LARGEST_NUMBER:
            raise invalid_request(f"{name} must be at least 1 and at most {LARGEST_NUMBER}.", name)
    for name in ("n", "best_of"):
        if (body.get(name) or 1) > MAX_CHOICES:
            raise invalid_request(f"{name} must be at most {MAX_CHOICES}.", name)
    for name in _NAMES:
        if len(body.get(name) or "") > MAX_NAME_CHARS:
            raise invalid_request(f"{name} must have at most {MAX_NAME_CHARS} characters.", name)
    options = body.get("stream_options")
    if options is not None:
        for name, value in options.items():
            if value is not None and not isinstance(value, bool):
                at = f"stream_options.{cut(name)}"
                raise invalid_request(f"{at} must be a boolean.", at)
    stop = body.get("stop")
    if isinstance(stop, list):
        at_most(MAX_STOP_WORDS, stop, "stop")
        if not all(isinstance(item, str) for item in stop):
            raise invalid_request("stop must be a string or a list of strings.", "stop")
    at_most(MAX_TOOLS, body.get("tools") or (), "tools")
    at_most(MAX_LOGIT_BIAS, body.get("logit_bias") or (), "logit_bias")
    if api == "chat":
        _check_messages(body.get("messages"))
    else:
        name = "prompt" if api == "completions" else "input"
        _check_prompt(body.get(name), name)


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise invalid_request("messages must be a non-empty list.", "messages")
    at_most(MAX_MESSAGES, messages, "messages")
    parts = 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise invalid_request(f"{where} must be an object.", where)
        if not isinstance(message.get("role"), str):
            raise invalid_request(f"{where}.role must be a string.", f"{where}.role")
        content = message.get("content")
        if isinstance(content, list):
            parts += len(content)
            if parts > MAX_PARTS:
                raise invalid_request(f"messages must have at most {MAX_PARTS} parts in all.", "messages")
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
        at_most(MAX_PROMPTS, prompt, name)
        good = all(isinstance(item, str) for item in prompt)
    elif isinstance(first, list):
        at_most(MAX_PROMPTS, prompt, name)
        good = all(isinstance(item, list) and (not item or _are_ids(item)) for item in prompt)
    else:
        good = _are_ids(prompt)
    if not good:
        raise invalid_request(what, name)


def _are_ids(prompt: list[Any]) -> bool:
    """Whether a list that is not empty holds token ids; there may be hundreds of thousands."""
    return set(map(type, prompt)) == {int} and min(prompt) >= 0


def output_cap(body: Mapping[str, Any]) -> int | None:
    """The client's bound on output tokens (for each choice)."""
    cap = body.get("max_completion_tokens")
    return cap if cap is not None else body.get("max_tokens")
