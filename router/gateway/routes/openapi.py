"""Adds to the OpenAPI document what FastAPI does not know: the hot endpoints (`router.gateway.endpoints`), and what
`router.gateway.asgi` answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_Schema = dict[str, Any]

_STRING: _Schema = {"type": "string"}
_OBJECT: _Schema = {"type": "object"}
_NUMBER: _Schema = {"type": "number"}
_INTEGER: _Schema = {"type": "integer"}
_FLAG: _Schema = {"type": "boolean"}
_COUNT = _INTEGER | {"minimum": 1}
_POSITIVE = _NUMBER | {"exclusiveMinimum": 0}
_TEXT_OR_NULL: _Schema = {"type": ["string", "null"]}


def _object(properties: dict[str, _Schema], required: str = "", **more: Any) -> _Schema:
    needs = {"required": required.split()} if required else {}
    return {"type": "object", **more, **needs, "properties": properties}


def _list(items: _Schema, **more: Any) -> _Schema:
    return {"type": "array", **more, "items": items}


def _text_or_list(items: _Schema) -> _Schema:
    return {"anyOf": [_STRING | {"minLength": 1}, _list(items, minItems=1)]}


_ERROR = {"message": _STRING, "type": _STRING, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL}
_SLO = {"ttft_ms": _POSITIVE, "tpot_ms": _POSITIVE, "e2e_ms": _POSITIVE}
_SCHEMAS: dict[str, _Schema] = {
    "Routing": _object(
        {
            "policy": _STRING | {"example": "latency"},
            "slo": _object(_SLO, additionalProperties=False),
            "on_miss": {"enum": ["best_effort", "reject"]},
            "max_cost_usd": _NUMBER | {"minimum": 0},
            "min_quality": _NUMBER | {"minimum": 0, "maximum": 1},
            "models": _list(_STRING, minItems=1),
            "priority": _INTEGER,
            "seed": _INTEGER,
        },
        description="The routing parameters of this request. Never forwarded.",
        additionalProperties=False,
    ),
    "Error": _object({"error": _object(_ERROR, "message type param code")}, "error"),
    "OllamaError": _object({"error": _STRING}, "error"),
}
_MODEL = _STRING | {"example": "auto", "description": "a model, an alias, `auto`, or `NAME:policy`"}
_ROUTING = {"$ref": "#/components/schemas/Routing"}
_SAME_PLACE = "the conversation; its requests go to the same instance where possible"
_CACHE_KEY = _STRING | {"description": _SAME_PLACE}
_COMMON = {
    "model": _MODEL,
    "stream": _FLAG,
    "max_tokens": _COUNT,
    "n": _COUNT | {"maximum": 128},
    "temperature": _NUMBER,
    "stream_options": _object({"include_usage": _FLAG}),
    "prompt_cache_key": _CACHE_KEY,
    "routing": _ROUTING,
}
_SESSION = {
    "name": "x-session-id",
    "in": "header",
    "required": False,
    "schema": _STRING,
    "description": "the conversation, if the body has no `prompt_cache_key`",
}
_TEXTS = _text_or_list(_STRING)
_OLLAMA = {
    "model": _STRING | {"minLength": 1},
    "stream": _FLAG | {"default": True},
    "options": _OBJECT,
    "keep_alive": {"anyOf": [_STRING, _NUMBER]},
}
_MESSAGES = _list(_object({"role": _STRING, "content": _STRING}, "role content"), minItems=1)
_ITEMS = ["message", "function_call", "function_call_output", "reasoning"]
_RESPONSE_ITEM = _object(
    {
        "type": {"enum": _ITEMS, "default": "message"},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": {"anyOf": [_STRING, _list(_OBJECT)]},
    },
    description="a message, a function_call, a function_call_output, or a reasoning item",
)
_TOOL = {
    "type": _STRING | {"description": "`function` or `namespace` (with `tools`); others are left out"},
    "name": _STRING,
    "description": _STRING,
    "parameters": _OBJECT,
    "tools": _list(_OBJECT),
}
_FORMAT = {"type": {"enum": ["text", "json_object", "json_schema"]}, "name": _STRING, "schema": _OBJECT}
_CHOICE = "`auto`, `none`, `required`, a function by its name, or `allowed_tools`"
_SCORED = _INTEGER | {"minimum": 0, "description": "0 with `echo` scores the prompt"}

#: path -> (summary, required members, members)
_PATHS: dict[str, tuple[str, str, dict[str, _Schema]]] = {
    "/v1/chat/completions": (
        "Chat",
        "model messages",
        _COMMON | {"messages": _MESSAGES, "max_completion_tokens": _COUNT},
    ),
    "/v1/completions": (
        "Complete a prompt",
        "model prompt",
        _COMMON | {"prompt": _TEXTS, "max_tokens": _SCORED},
    ),
    "/v1/embeddings": ("Embed texts", "model input", {"model": _MODEL, "input": _TEXTS, "routing": _ROUTING}),
    "/v1/responses": (
        "Respond (nothing is stored)",
        "model input",
        {
            "model": _MODEL,
            "input": _text_or_list(_RESPONSE_ITEM),
            "instructions": _STRING,
            "stream": _FLAG,
            "max_output_tokens": _COUNT,
            "temperature": _NUMBER,
            "top_p": _NUMBER,
            "tools": _list(_object(_TOOL, "type")),
            "tool_choice": {"description": _CHOICE},
            "text": _object({"format": _object(_FORMAT, "type")}),
            "reasoning": _object({"effort": _STRING}),
            "top_logprobs": _INTEGER | {"minimum": 0, "maximum": 20},
            "metadata": _OBJECT | {"additionalProperties": _STRING},
            "prompt_cache_key": _CACHE_KEY,
            "routing": _ROUTING,
        },
    ),
    "/api/chat": ("Chat (Ollama)", "model", _OLLAMA | {"messages": _MESSAGES}),
    "/api/generate": ("Generate (Ollama)", "model", _OLLAMA | {"prompt": _STRING}),
    "/api/embed": ("Embed texts (Ollama)", "model", _OLLAMA | {"input": _TEXTS}),
    "/api/embeddings": ("Embed a text (Ollama, older)", "model", _OLLAMA | {"prompt": _STRING}),
}
_STATUS = _OBJECT | {"additionalProperties": _STRING}
#: path -> (description, media type, schema, further answers)
_OPERATIONS: dict[str, tuple[str, str, _Schema, dict[str, Any]]] = {
    "/": ("Says that it runs.", "text/plain", _STRING, {}),
    "/healthz": ("The process is alive.", "application/json", _STATUS, {}),
    "/health": ("The same, by vLLM's name.", "application/json", _STATUS, {}),
    "/readyz": (
        "Whether the gateway can serve requests and record them. It stays ready while a database server is away: the "
        "answer then says so.",
        "application/json",
        _STATUS,
        {"503": {"description": "nothing can serve, draining, or a lost database file"}},
    ),
    "/metrics": ("Prometheus.", "text/plain", _STRING, {}),
}
_STATUSES = {
    400: "bad request, or routing parameters that no candidate can meet",
    401: "no or wrong key",
    404: "unknown model, or no such object",
    405: "method not allowed",
    409: "the name is taken",
    408: "the request arrived too slowly",
    413: "the body is too large",
    415: "the body is compressed",
    422: "the content is not valid",
    429: "rate limit, budget, or a hard SLO that cannot be met now",
    500: "the gateway failed",
    502: "every attempt failed upstream",
    503: "no live instance, or the queue is full",
    504: "a time limit passed",
}


def describe_other_paths(app: FastAPI) -> None:
    """Describe in `/openapi.json` what FastAPI does not know."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(_SCHEMAS)
            for path, probe in _OPERATIONS.items():
                schema["paths"][path] = {"get": _described(path, *probe)}
            for path, described in schema["paths"].items():
                for operation in described.values():
                    _document_errors(path, operation)
            for path, hot in _PATHS.items():
                schema["paths"][path] = {"post": _operation(path, *hot)}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _error_content(path: str) -> dict[str, Any]:
    """The content of an error, in the shape of the path's API."""
    name = "OllamaError" if path.startswith("/api/") else "Error"
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _document_errors(path: str, operation: dict[str, Any]) -> None:
    """Document what FastAPI does not know: bad input is a 400, and every error has the API's shape."""
    content = _error_content(path)
    responses = operation["responses"]
    documented = {status for status in responses if status[0] in "45" and status != "422"}
    if path.startswith("/admin"):
        documented.add("422")
    responses.pop("422", None)
    guarded = path.startswith(("/v1/", "/api/", "/admin"))
    known = ("400", "401", "404", "405", "413", "503") if guarded else ("405",)
    for status in sorted(documented | set(known)):
        if path in _OPERATIONS and status in responses:
            continue  # its own answer
        responses[status] = {"description": _STATUSES.get(int(status), "an error"), "content": content}


def _described(
    path: str, description: str, media_type: str, schema: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    name = path.strip("/") or "root"
    answer = {"description": "the answer", "content": {media_type: {"schema": schema}}}
    return {
        "summary": name.capitalize(),
        "tags": ["operations"],
        "description": description,
        "operationId": name,
        "responses": {"200": answer, **more},
    }


def _operation(path: str, summary: str, required: str, members: dict[str, _Schema]) -> dict[str, Any]:
    ollama = path.startswith("/api/")
    stream_type = "application/x-ndjson" if ollama else "text/event-stream"
    answers = {"application/json": {"schema": _OBJECT}, stream_type: {"schema": _STRING}}
    responses = {"200": {"description": "the answer", "content": answers}}
    for status, what in _STATUSES.items():
        responses[str(status)] = {"description": what, "content": _error_content(path)}
    body = _object(members, required)
    return {
        "summary": summary,
        "tags": ["ollama" if ollama else "generation"],
        "operationId": path.strip("/").replace("/", "_"),
        "parameters": [_SESSION],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": responses,
    }
