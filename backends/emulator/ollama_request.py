"""The requests to an emulated Ollama, read by its rules for names, keep-alive times and options."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from backends.emulator.http import Exchange
from backends.emulator.openai_fields import Rejected, wanted_schema, wants_json
from backends.emulator.text import chat_text, count_tokens, requested_output_tokens

NEVER_S = math.inf
_TYPES = {str: "string", bool: "bool", list: "[]", dict: "map[string]interface {}"}
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
#: Options of a loaded runner: a value other than the loaded one forces a reload. Only num_ctx changes the engine model;
#: the others only cost the reload.
LOAD_OPTIONS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "draft_num_predict")
_INTEGERS = frozenset(
    {*LOAD_OPTIONS, "num_predict", "num_keep", "top_k", "repeat_last_n", "seed", "mirostat"} - {"use_mmap"}
)
_NUMBERS = frozenset(
    {"temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty"}
)


def go_duration_s(text: str) -> float:
    """Seconds of a duration in the syntax of Go's time.ParseDuration ("5m", "1h30m", "300ms"). A number without a unit,
    except "0", is an error there too. Raises ValueError with Go's text."""
    rest = text
    sign = 1.0
    if rest[:1] in {"-", "+"}:
        sign = -1.0 if rest[0] == "-" else 1.0
        rest = rest[1:]
    if rest == "0":
        return 0.0
    if not rest:
        raise ValueError(f'time: invalid duration "{text}"')
    total = 0.0
    while rest:
        found = _DURATION.match(rest)
        if found is None:
            what = "missing unit in" if re.fullmatch(r"\d+(\.\d*)?|\.\d+", rest) else "invalid"
            raise ValueError(f'time: {what} duration "{text}"')
        total += float(found[1]) * _UNITS_S[found[2]]
        rest = rest[found.end() :]
    return sign * total


def keep_alive_s(value: Any) -> float | None:
    """Seconds for which a model stays loaded after its last request: None if not given, infinite for negative values.
    Raises Rejected."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            seconds = go_duration_s(value)
        except ValueError as error:
            raise Rejected(400, str(error)) from None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise Rejected(400, f"Unsupported type: '{type(value).__name__}'")
    return NEVER_S if seconds < 0 else seconds


@dataclass(frozen=True, slots=True)
class Options:
    """The members of `options` that the emulator reads."""

    num_ctx: int | None = None
    num_predict: int | None = None
    stops: tuple[str, ...] = ()
    load: tuple[tuple[str, Any], ...] = ()  # load-time options other than num_ctx, as given
    requested_tokens: int | None = None


def parse_options(value: Any, names: list[str]) -> Options:
    """The options of a request; unknown ones are ignored. Raises Rejected: Ollama answers a wrong type with a 500."""
    if value is None:
        return Options()
    if not isinstance(value, Mapping):
        raise Rejected(
            400, "json: cannot unmarshal options into Go struct field of type map[string]interface {}"
        )
    for name, given in value.items():
        if given is None:
            continue
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if name in _INTEGERS and not number:
            raise Rejected(500, f'option "{name}" must be of type integer')
        if name in _NUMBERS and not number:
            raise Rejected(500, f'option "{name}" must be of type float32')
    stop = value.get("stop")
    if isinstance(stop, str):
        stop = [stop]
    if stop is not None and not (isinstance(stop, list) and all(isinstance(item, str) for item in stop)):
        raise Rejected(500, 'option "stop" must be of type array')
    num_ctx = value.get("num_ctx")
    predict = value.get("num_predict")
    try:
        requested = requested_output_tokens(value.get("emulate_output_tokens"), names)
    except ValueError as error:
        raise Rejected(500, str(error)) from None
    return Options(
        num_ctx=max(4, int(num_ctx)) if num_ctx else None,
        num_predict=int(predict) if predict is not None else None,
        stops=tuple(item for item in stop or () if item),
        load=tuple((name, value[name]) for name in LOAD_OPTIONS[1:] if value.get(name) is not None),
        requested_tokens=requested,
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One generation request, checked. `keep_s` is its keep-alive in seconds (None: the server's). `empty`: it has no
    prompt, and only loads or unloads its model. With `cuts` a prompt that is too long is cut, else refused. `logprobs` is
    the number of alternatives for each token (None: not requested)."""

    text: str
    options: Options
    keep_s: float | None = None
    empty: bool = False
    raw: bool = False
    stream: bool = False
    include_usage: bool = False
    as_json: bool = False
    schema: Mapping[str, Any] | None = None
    cuts: bool = True
    logprobs: int | None = None


def native_job(body: Mapping[str, Any], names: list[str], *, chat: bool) -> Job:
    """A job from the body of /api/chat or /api/generate. Raises Rejected."""
    top = body.get("top_logprobs")
    if isinstance(top, int) and not 0 <= top <= 20:
        raise Rejected(400, "top_logprobs must be between 0 and 20")
    options = parse_options(body.get("options"), names)
    keep_s = keep_alive_s(body.get("keep_alive"))
    raw = bool(typed_field(body, "raw", bool, False))
    if chat:
        messages = typed_field(body, "messages", list, None) or []
        if not all(isinstance(item, dict) for item in messages):
            raise Rejected(400, "json: cannot unmarshal messages into Go struct field of type api.Message")
        text, empty = chat_text(messages), not messages
    else:
        if raw and any(body.get(key) for key in ("template", "system", "context")):
            raise Rejected(400, "raw mode does not support template, system, or context")
        prompt = typed_field(body, "prompt", str, "") or ""
        text, empty = (typed_field(body, "system", str, "") or "") + prompt, not prompt
    form = body.get("format")
    return Job(
        text,
        options,
        keep_s,
        empty,
        raw,
        stream=body.get("stream") is not False,
        as_json=bool(form),
        schema=form if isinstance(form, Mapping) and form else None,
        cuts=body.get("truncate") is not False,
        logprobs=(top or 0) if typed_field(body, "logprobs", bool, False) else None,
    )


def openai_text(body: Mapping[str, Any], *, chat: bool) -> str:
    """The prompt of /v1/chat/completions or /v1/completions. Raises Rejected."""
    if not chat:
        return typed_field(body, "prompt", str, "") or ""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise Rejected(400, "[] is too short - 'messages'")
    return chat_text(messages)


def openai_job(body: Mapping[str, Any], names: list[str], text: str) -> Job:
    """A job from the body of /v1/chat/completions or /v1/completions. Raises Rejected."""
    extra = body.get("options")
    native: dict[str, Any] = {"num_predict": body.get("max_tokens"), "stop": body.get("stop")}
    if isinstance(extra, Mapping):  # the emulator's own field; a real Ollama reads no options here
        native["emulate_output_tokens"] = extra.get("emulate_output_tokens")
    schema = wanted_schema(body) or None
    stream_options = body.get("stream_options")
    form = body.get("response_format")
    if isinstance(form, Mapping):
        typed_field(form, "type", str, "")
    return Job(
        text,
        parse_options(native, names),
        stream=bool(typed_field(body, "stream", bool, False)),
        include_usage=isinstance(stream_options, Mapping) and bool(stream_options.get("include_usage")),
        as_json=schema is not None or wants_json(body),
        schema=schema,
    )


def json_object(exchange: Exchange) -> dict[str, Any]:
    """The body as a JSON object. Raises Rejected."""
    if not exchange.body:
        raise Rejected(400, "missing request body")
    try:
        body = exchange.json()
    except orjson.JSONDecodeError as error:
        raise Rejected(400, f"invalid character at offset {error.pos} in JSON") from None
    if not isinstance(body, dict):
        raise Rejected(400, f"json: cannot unmarshal {_json_type(body)} into Go value of type api.Request")
    return body


def typed_field(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """A field of a body, of the right type, or `default`. Raises Rejected."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise Rejected(
            400,
            f"json: cannot unmarshal {_json_type(value)} into Go struct field .{name} of type {_TYPES[kind]}",
        )
    return value


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


def allowed_host(host: str) -> bool:
    """Whether Ollama, bound to loopback, answers a request with this Host header."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    if (
        not name
        or name == "localhost"
        or name.endswith((".localhost", ".local", ".internal"))
        or "." not in name
    ):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_unspecified


def fit_context(data: bytes, tokens: int, context: int, cuts: bool) -> tuple[bytes, int, bool]:
    """Fit prompt and output into the context: what is generated, and whether nothing was cut.

    A prompt above the context loses its beginning, down to the half that a context shift would leave if the answer
    needs room (Ollama does not report it). Without truncation it is an error.
    """
    prompt = count_tokens(data)
    if prompt >= context:
        if not cuts:
            raise Rejected(
                400,
                f"request ({prompt} tokens) exceeds the available context size ({context} tokens), try increasing it",
            )
        kept = max(1, context - min(tokens, max(1, context // 2)))
        data = data[-kept * 4 :]
        prompt = count_tokens(data)
    room = context - prompt
    return data, min(tokens, room), tokens <= room
