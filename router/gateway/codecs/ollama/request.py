"""Requests of Ollama's API translated to the OpenAI-shaped form that the router works with.

Meanings and defaults are those of Ollama's documentation and server. Load-time options (`num_ctx` and its
like) and `keep_alive` are checked and dropped: where and how models are loaded is the fleet's business.
"""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Any, Literal, NamedTuple

from router.core.errors import Refusal, invalid_request
from router.core.quoting import quoted
from router.core.raw_json import dumps
from router.core.types import Outcome
from router.request.body import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, at_most

Load = Literal["load", "unload"]


class Translated(NamedTuple):
    """A request in OpenAI's shape.

    `api` is "chat", "completions" or "embeddings"; `body` has the model's name as asked, and `routing` if
    the client gave one. `load` is set when nothing is to be generated: the request only loads or unloads
    the model, and is answered at once with that as its `done_reason`.
    """

    body: dict[str, Any]
    stream: bool
    api: Literal["chat", "completions", "embeddings"] = "chat"
    load: Load | None = None


# --- checked reading ---------------------------------------------------------------------------------
def _flag(body: dict[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid_request(f"{name} must be a boolean", name)
    return value


def _text(body: dict[str, Any], name: str, param: str | None = None) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        at = param or name
        raise invalid_request(f"{at} must be a string", at)
    return value


def _list(body: dict[str, Any], name: str, param: str | None = None) -> list[Any]:
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        at = param or name
        raise invalid_request(f"{at} must be an array", at)
    return value


def _object(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid_request(f"{param} must be an object", param)
    return value


def asked_model(body: dict[str, Any], *, missing_is_unknown: bool = False) -> str:
    """The model's name as asked (`name` is read too, as older clients write it). An empty one is a 400, or
    with `missing_is_unknown` the 404 of /api/generate and /api/embed."""
    name = _text(body, "model") or _text(body, "name")
    if name:
        return name
    if missing_is_unknown:
        raise Refusal(404, "model_not_found", "model '' not found", Outcome.REJECTED_INVALID, param="model")
    raise invalid_request("model is required", "model")


_MAX_DURATION_CHARS = 200
#: Possessive: what does not match is not tried again in other ways.
_DURATION = re.compile(r"([+-]?)((?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:ns|us|µs|μs|ms|s|m|h))++)")
_DURATION_PART = re.compile(r"([0-9.]++)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def keep_alive_s(value: Any) -> float | None:
    """`keep_alive` in seconds: a number of seconds or a Go duration ("5m", "1h30m"), infinity for a negative
    one (never unload), None when it was not given. A bare numeric string is a 400, as in Ollama."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        return math.inf if value < 0 else float(min(value, 1e12))
    if not isinstance(value, str):
        raise invalid_request("keep_alive must be a number of seconds or a duration string", "keep_alive")
    if value in ("0", "+0", "-0"):
        return 0.0
    if len(value) > _MAX_DURATION_CHARS:
        raise invalid_request(f"time: invalid duration {quoted(value)}", "keep_alive")
    match = _DURATION.fullmatch(value)
    if match is None:
        unit = "missing unit in" if re.fullmatch(r"[+-]?[0-9.]+", value) else "invalid"
        raise invalid_request(f"time: {unit} duration {quoted(value)}", "keep_alive")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION_PART.findall(match[2]))
    return math.inf if match[1] == "-" and seconds > 0 else seconds


# --- options -----------------------------------------------------------------------------------------
#: Option -> (field of the OpenAI-shaped body, whole number). The last three are vLLM's and llama.cpp's own.
_NUMBERS = {
    "num_predict": ("max_tokens", True),
    "seed": ("seed", True),
    "temperature": ("temperature", False),
    "top_p": ("top_p", False),
    "presence_penalty": ("presence_penalty", False),
    "frequency_penalty": ("frequency_penalty", False),
    "top_k": ("top_k", True),
    "min_p": ("min_p", False),
    "repeat_penalty": ("repetition_penalty", False),
}
_LARGEST = 1 << 63
_POSITIVE = {"num_predict", "top_k"}  # otherwise no bound


def _options(body: dict[str, Any], into: dict[str, Any]) -> None:
    options = body.get("options")
    if options is None:
        return
    for name, value in _object(options, "options").items():
        if value is None:
            continue
        if name == "stop":
            if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                raise invalid_request('option "stop" must be of type array of strings', "options.stop")
            if value:
                into["stop"] = value
        elif name in _NUMBERS:
            field, whole = _NUMBERS[name]
            number = _option_number(name, value, whole)
            if (name in _POSITIVE and number <= 0) or (name == "seed" and number == -1):
                continue
            into[field] = number


def _option_number(name: str, value: Any, whole: bool) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        kind = "integer" if whole else "float32"
        raise invalid_request(f'option "{name}" must be of type {kind}', f"options.{name}")
    # Go reads every JSON number as a float first, so 10.0 is a whole number there.
    return int(value) if whole else value


def _common(body: dict[str, Any], into: dict[str, Any]) -> None:
    """The fields that chat and generate share, but for logprobs."""
    _options(body, into)
    wanted = body.get("format")
    if wanted == "json":
        into["response_format"] = {"type": "json_object"}
    elif isinstance(wanted, dict):
        schema = {"name": "response", "schema": wanted}
        into["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif wanted not in (None, ""):
        raise invalid_request('invalid format: expected "json" or a JSON schema object', "format")
    for name in ("truncate", "shift"):
        _flag(body, name, True)
    if body.get("routing") is not None:
        into["routing"] = body["routing"]


def _think(body: dict[str, Any], into: dict[str, Any]) -> None:
    think = body.get("think")
    if think is None or think == "":
        return
    if isinstance(think, bool):
        # Chat templates do not agree on the name of the switch.
        into["chat_template_kwargs"] = {"enable_thinking": think, "thinking": think}
    elif think in ("low", "medium", "high", "max"):
        into["reasoning_effort"] = think
    else:
        raise invalid_request('think must be a boolean, "low", "medium", "high" or "max"', "think")


def _logprobs(body: dict[str, Any]) -> int | None:
    """How many alternatives for each token are asked for; None when no logprobs are."""
    top = body.get("top_logprobs") or 0
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= 20:
        raise invalid_request("top_logprobs must be between 0 and 20", "top_logprobs")
    return top if _flag(body, "logprobs", False) else None


# --- messages ----------------------------------------------------------------------------------------
#: How the base64 of an image begins, by its type's first bytes.
_IMAGE_TYPES = (("/9j/", "jpeg"), ("iVBOR", "png"), ("R0lGOD", "gif"), ("UklGR", "webp"))


def _content(text: str, images: list[Any], param: str) -> str | list[dict[str, Any]]:
    if not images:
        return text
    at_most(MAX_PARTS, images, param)
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for image in images:
        if not isinstance(image, str) or not image:
            raise invalid_request(f"{param} must hold base64 strings", param)
        kind = next((kind for start, kind in _IMAGE_TYPES if image.startswith(start)), "png")
        url = image if image.startswith("data:") else f"data:image/{kind};base64,{image}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


class _Messages:
    """Translates a conversation. Ollama's tool calls have no ids of their own, OpenAI's must: ids are made
    where they lack, and an answer without one belongs to the first open call of its tool's name."""

    def __init__(self) -> None:
        self._made = 0
        self._open: set[str] = set()  # ids of calls not yet answered
        # Their order for each tool, and under "" for all; an id that was answered is dropped when it is met.
        self._open_of: dict[str, deque[str]] = {}

    def translate(self, message: Any, at: str) -> dict[str, Any]:
        given = _object(message, at)
        role = _text(given, "role", f"{at}.role").lower()
        if not role:
            raise invalid_request(f"{at}.role is required", f"{at}.role")
        text = _text(given, "content", f"{at}.content")
        images = _list(given, "images", f"{at}.images")
        into: dict[str, Any] = {"role": role, "content": _content(text, images, f"{at}.images")}
        if thinking := _text(given, "thinking", f"{at}.thinking"):
            into["reasoning_content"] = thinking
        if calls := _list(given, "tool_calls", f"{at}.tool_calls"):
            self._open.clear()
            self._open_of.clear()
            at_most(MAX_TOOLS, calls, f"{at}.tool_calls")
            into["tool_calls"] = [
                self._call(call, f"{at}.tool_calls[{number}]") for number, call in enumerate(calls)
            ]
        if role == "tool":
            tool = _text(given, "tool_name", f"{at}.tool_name")
            call_id = _text(given, "tool_call_id", f"{at}.tool_call_id")
            into["tool_call_id"] = self._answered(call_id, tool)
            if tool:
                into["name"] = tool
        return into

    def _call(self, call: Any, at: str) -> dict[str, Any]:
        given = _object(call, at)
        function = _object(given.get("function"), f"{at}.function")
        name = _text(function, "name", f"{at}.function.name")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = dumps({} if arguments is None else arguments).decode()
        call_id = _text(given, "id", f"{at}.id")
        if not call_id:
            call_id = f"call{self._made:05d}"  # nine letters and digits: all that Mistral's templates take
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


# --- endpoints ---------------------------------------------------------------------------------------
def _load(body: dict[str, Any], alive_s: float | None, stream: bool) -> Translated:
    return Translated(body, stream, load="unload" if alive_s == 0 else "load")


def chat_to_openai(body: dict[str, Any]) -> Translated:
    """Translate a /api/chat request. Streaming is Ollama's default. Raises a 400 Refusal naming `param`."""
    into: dict[str, Any] = {"model": asked_model(body)}
    stream = _flag(body, "stream", True)
    alive_s = keep_alive_s(body.get("keep_alive"))
    given = _list(body, "messages")
    at_most(MAX_MESSAGES, given, "messages")
    _common(body, into)
    _think(body, into)
    top = _logprobs(body)
    if top is not None:
        into["logprobs"] = True
        into["top_logprobs"] = top
    tools = _list(body, "tools")
    at_most(MAX_TOOLS, tools, "tools")
    if tools:
        into["tools"] = [_object(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    if not given:
        return _load(into, alive_s, stream)
    messages = _Messages()
    into["messages"] = [
        messages.translate(message, f"messages[{number}]") for number, message in enumerate(given)
    ]
    into["stream"] = stream
    return Translated(into, stream)


def generate_to_openai(body: dict[str, Any]) -> Translated:
    """Translate a /api/generate request: to a chat of a system and a user message, or to a completion when
    the prompt is `raw` or a `suffix` is to be filled towards. Raises a 400 or 404 Refusal naming `param`.

    A custom `template` and token ids in `context` are refused: both belong to one loaded model.
    """
    into: dict[str, Any] = {"model": asked_model(body, missing_is_unknown=True)}
    stream = _flag(body, "stream", True)
    alive_s = keep_alive_s(body.get("keep_alive"))
    prompt, suffix, system = _text(body, "prompt"), _text(body, "suffix"), _text(body, "system")
    template, context, images = _text(body, "template"), _list(body, "context"), _list(body, "images")
    raw = _flag(body, "raw", False)
    if raw and (template or system or context):
        raise invalid_request("raw mode does not support template, system, or context", "raw")
    if template:
        raise invalid_request("template is not supported here; render the prompt and send it raw", "template")
    if context:
        raise invalid_request("context is not supported here; send the history to /api/chat", "context")
    _common(body, into)
    _think(body, into)
    top = _logprobs(body)
    if not prompt:
        return _load(into, alive_s, stream)
    into["stream"] = stream
    if raw or suffix:
        if images:
            raise invalid_request("images need a chat: send them without raw and suffix", "images")
        into["prompt"] = prompt
        if suffix:
            into["suffix"] = suffix
        if top is not None:
            into["logprobs"] = top
        for field in ("chat_template_kwargs", "reasoning_effort"):
            into.pop(field, None)
        return Translated(into, stream, "completions")
    if top is not None:
        into["logprobs"] = True
        into["top_logprobs"] = top
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": _content(prompt, images, "images")})
    into["messages"] = messages
    return Translated(into, stream)


def embed_to_openai(body: dict[str, Any]) -> Translated:
    """Translate a /api/embed request. No input at all only loads the model."""
    into: dict[str, Any] = {"model": asked_model(body, missing_is_unknown=True)}
    given = body.get("input")
    if given is None:
        given = []
    several = isinstance(given, list)
    if not isinstance(given, str | list) or (several and not all(isinstance(text, str) for text in given)):
        raise invalid_request("input must be a string or an array of strings", "input")
    size = body.get("dimensions")
    if size is not None and size != 0:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise invalid_request("dimensions must be a positive integer", "dimensions")
        into["dimensions"] = size
    return _embedding(body, into, given)


def embeddings_to_openai(body: dict[str, Any]) -> Translated:
    """Translate a request of the older /api/embeddings: one `prompt`."""
    return _embedding(body, {"model": asked_model(body)}, _text(body, "prompt"))


def _embedding(body: dict[str, Any], into: dict[str, Any], given: str | list[str]) -> Translated:
    _common({**body, "format": None}, into)
    for option in {field for field, _ in _NUMBERS.values()} | {"stop"}:
        into.pop(option, None)
    alive_s = keep_alive_s(body.get("keep_alive"))
    if not given:
        return Translated(into, False, "embeddings", "unload" if alive_s == 0 else "load")
    into["input"] = given
    into["encoding_format"] = "float"
    return Translated(into, False, "embeddings")
