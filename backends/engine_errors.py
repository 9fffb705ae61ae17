"""Translates an engine's error answer to the router's errors.

Known shapes: `{"error": {"message", "type", "param", "code"}}` with `code` an int (vLLM, llama-server) or a string
(OpenAI), `{"error": "text"}` (Ollama; vLLM's 401), `{"detail": "text" | [...]}` (FastAPI), `{"object": "error",
"message", ...}` (older vLLM), and text that is not JSON.

The error of a failed attempt keeps only status, type and code, because an engine's text may quote the prompt. A refused
request (400, 422) is answered to its author, so the engine's message is passed on, without the input that validation
errors repeat.
"""

from __future__ import annotations

import re
from typing import Any

from backends.bounded_json import loads_event
from router.core.errors import UpstreamError, UpstreamRejected
from router.core.quoting import cut

MAX_MESSAGE_CHARS = 300
#: The finish reason of an answer that the engine did not complete. vLLM ends the running ones so when it is ended.
ABORT = "abort"

_REFUSED = frozenset({400, 422})
_NOT_FOUND, _NO_METHOD, _NOT_IMPLEMENTED = 404, 405, 501
#: FastAPI's answer for a path that it does not have; a 404 for an unknown model says more.
_NO_ROUTE = {"detail": "Not Found"}
_REFUSED_TYPES = frozenset({"BadRequestError", "invalid_request_error", "exceed_context_size_error"})
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
#: Validation errors of pydantic, rendered by Python's repr, repeat the whole input.
_REPEATED_INPUT = re.compile(r"['\"]input['\"]\s*+:|input_value=")
_VALIDATION_MESSAGE = re.compile(r"['\"]msg['\"]\s*+:\s*+(['\"])(.{1,200}?)\1")
#: vLLM's messages end with the invalid value.
_REPEATED_VALUE = "(parameter="
#: The most characters of a message, and of the place in a validation error.
_MAX_READ_CHARS = 10_000
_MAX_STEPS = 10
_CONTEXT = re.compile(r"context length|context size|context window|maximum model length|max_model_len", re.I)
#: What llama-server answers with 500, where it lacks what the request needs.
_LACKS = re.compile(r"input \(\d+ tokens\) is too large to process|(?:image|audio) input is not supported")


def from_response(status: int, body: bytes) -> UpstreamError:
    """The error for an answer whose status is not 2xx."""
    try:
        payload: Any = loads_event(body)
    except ValueError:
        payload = None
    if status in _REFUSED:
        return _rejected(payload, status)
    return _failed(payload, status)


def from_event(payload: Any, *, started: bool) -> UpstreamError:
    """The error for an error object inside a 200 stream. `started`: tokens came before it."""
    fields = _fields(payload)
    code = fields.get("code")
    status = code if type(code) is int and 400 <= code <= 599 else None
    kind = fields.get("type")
    refused = isinstance(kind, str) and kind in _REFUSED_TYPES
    if not started and (status in _REFUSED or (status is None and refused)):
        return _rejected(payload, status or 400)
    return _failed(payload, status)


def stopped() -> UpstreamError:
    """The error for an answer with the finish reason `ABORT`."""
    return UpstreamError("the engine stopped in the middle of its answer")


def _fields(payload: Any) -> dict[str, Any]:
    """The error's members, in any of the known shapes."""
    if not isinstance(payload, dict):
        return {}
    error = payload.get("error", payload)
    if isinstance(error, dict):
        fields: dict[str, Any] = error
    elif isinstance(error, str):
        fields = {"message": error}
    else:
        fields = {}
    if "message" not in fields and "detail" in payload:
        return {**fields, "message": _detail(payload["detail"])}
    return fields


def _detail(detail: Any) -> str | None:
    """FastAPI's `detail`: a text, or a list of validation errors, of which place and message are kept."""
    if isinstance(detail, str):
        return detail
    if not isinstance(detail, list):
        return None
    parts = []
    for item in detail[:3]:
        if isinstance(item, dict) and isinstance(item.get("msg"), str):
            place = item.get("loc")
            steps = place[:_MAX_STEPS] if isinstance(place, list) else ()
            where = ".".join(cut(str(step)) for step in steps if isinstance(step, str | int))
            said = item["msg"][:_MAX_READ_CHARS]
            parts.append(f"{where}: {said}" if where else said)
    return "; ".join(parts) or None


def _message(fields: dict[str, Any]) -> str | None:
    message = fields.get("message")
    if not isinstance(message, str) or not message.strip():
        return None
    message = message[:_MAX_READ_CHARS]
    if _REPEATED_INPUT.search(message):
        found = [match.group(2) for match in _VALIDATION_MESSAGE.finditer(message)]
        message = "; ".join(found[:3])
        if not message:
            return None
    return message.partition(_REPEATED_VALUE)[0].rstrip()[:MAX_MESSAGE_CHARS]


def _rejected(payload: Any, status: int) -> UpstreamRejected:
    fields = _fields(payload)
    message = _message(fields) or "the engine refused the request"
    code, param = fields.get("code"), fields.get("param")
    if fields.get("type") == "exceed_context_size_error" or _CONTEXT.search(message):
        code = "context_length_exceeded"
    return UpstreamRejected(
        message,
        status,
        param=param.removeprefix("body.") if isinstance(param, str) else None,
        # It appears in logs and records.
        code=code if isinstance(code, str) and _IDENTIFIER.fullmatch(code) else None,
    )


def _failed(payload: Any, status: int | None) -> UpstreamError:
    if status == _NO_METHOD or (status == _NOT_FOUND and payload == _NO_ROUTE):  # embeddings at a chat server
        return UpstreamError(f"the engine answered {status}: it has no such endpoint", _NOT_IMPLEMENTED)
    fields = _fields(payload)
    message = fields.get("message")
    if isinstance(message, str) and (found := _LACKS.match(message)):
        return UpstreamError(f"the engine answered {status}: {found.group()}", _NOT_IMPLEMENTED)
    names = [
        value
        for value in (fields.get("type"), fields.get("code"))
        if isinstance(value, str) and _IDENTIFIER.fullmatch(value)
    ]
    what = f"the engine answered {status}" if status is not None else "the engine reported an error"
    return UpstreamError(f"{what} ({', '.join(names)})" if names else what, status)
