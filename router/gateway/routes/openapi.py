"""Adds to the OpenAPI document what FastAPI does not know: the hot endpoints (`router.gateway.endpoints`), and what
`router.gateway.asgi` answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_NUMBER = {"type": "number", "exclusiveMinimum": 0}
_SCHEMAS: dict[str, Any] = {
    "Routing": {
        "type": "object",
        "description": "The routing parameters of this request. Never forwarded.",
        "additionalProperties": False,
        "properties": {
            "policy": {"type": "string", "example": "latency"},
            "slo": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"ttft_ms": _NUMBER, "tpot_ms": _NUMBER, "e2e_ms": _NUMBER},
            },
            "on_miss": {"enum": ["best_effort", "reject"]},
            "max_cost_usd": {"type": "number", "minimum": 0},
            "min_quality": {"type": "number", "minimum": 0, "maximum": 1},
            "models": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "priority": {"type": "integer"},
            "seed": {"type": "integer"},
        },
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "OllamaError": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
}
_COMMON = {
    "model": {
        "type": "string",
        "example": "auto",
        "description": "a model, an alias, `auto`, or `NAME:policy`",
    },
    "stream": {"type": "boolean"},
    "max_tokens": {"type": "integer", "minimum": 1},
    "n": {"type": "integer", "minimum": 1, "maximum": 128},
    "temperature": {"type": "number"},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    "prompt_cache_key": {
        "type": "string",
        "description": "the conversation; its requests go to the same instance where possible",
    },
    "routing": {"$ref": "#/components/schemas/Routing"},
}
_SESSION = {
    "name": "x-session-id",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "the conversation, if the body has no `prompt_cache_key`",
}
_TEXTS = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]
}
_OLLAMA = {
    "model": {"type": "string", "minLength": 1},
    "stream": {"type": "boolean", "default": True},
    "options": {"type": "object"},
    "keep_alive": {"anyOf": [{"type": "string"}, {"type": "number"}]},
}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
    },
}
_RESPONSE_ITEM = {
    "type": "object",
    "description": "a message, a function_call, a function_call_output, or a reasoning item",
    "properties": {
        "type": {
            "enum": ["message", "function_call", "function_call_output", "reasoning"],
            "default": "message",
        },
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
    },
}
_RESPONSE_TOOL = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {
        "type": {"const": "function"},
        "name": {"type": "string"},
        "description": {"type": "string"},
        "parameters": {"type": "object"},
    },
}
_RESPONSE_FORMAT = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]},
        "name": {"type": "string"},
        "schema": {"type": "object"},
    },
}

_STATUS = {"type": "object", "additionalProperties": {"type": "string"}}

#: path -> (summary, tag, required members, members)
_PATHS: dict[str, tuple[str, str, list[str], dict[str, Any]]] = {
    "/v1/chat/completions": (
        "Chat",
        "generation",
        ["model", "messages"],
        _COMMON | {"messages": _MESSAGES, "max_completion_tokens": {"type": "integer", "minimum": 1}},
    ),
    "/v1/completions": (
        "Complete a prompt",
        "generation",
        ["model", "prompt"],
        _COMMON
        | {
            "prompt": _TEXTS,
            "max_tokens": {"type": "integer", "minimum": 0, "description": "0 with `echo` scores the prompt"},
        },
    ),
    "/v1/embeddings": (
        "Embed texts",
        "generation",
        ["model", "input"],
        {"model": _COMMON["model"], "input": _TEXTS, "routing": _COMMON["routing"]},
    ),
    "/v1/responses": (
        "Respond (nothing is stored)",
        "generation",
        ["model", "input"],
        {
            "model": _COMMON["model"],
            "input": {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "items": _RESPONSE_ITEM, "minItems": 1},
                ]
            },
            "instructions": {"type": "string"},
            "stream": {"type": "boolean"},
            "max_output_tokens": {"type": "integer", "minimum": 1},
            "temperature": {"type": "number"},
            "top_p": {"type": "number"},
            "tools": {"type": "array", "items": _RESPONSE_TOOL},
            "tool_choice": {
                "description": "`auto`, `none`, `required`, a function by its name, or `allowed_tools`"
            },
            "text": {"type": "object", "properties": {"format": _RESPONSE_FORMAT}},
            "reasoning": {"type": "object", "properties": {"effort": {"type": "string"}}},
            "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
            "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
            "prompt_cache_key": _COMMON["prompt_cache_key"],
            "routing": _COMMON["routing"],
        },
    ),
    "/api/chat": ("Chat (Ollama)", "ollama", ["model"], _OLLAMA | {"messages": _MESSAGES}),
    "/api/generate": ("Generate (Ollama)", "ollama", ["model"], _OLLAMA | {"prompt": {"type": "string"}}),
    "/api/embed": ("Embed texts (Ollama)", "ollama", ["model"], _OLLAMA | {"input": _TEXTS}),
    "/api/embeddings": (
        "Embed a text (Ollama, older)",
        "ollama",
        ["model"],
        _OLLAMA | {"prompt": {"type": "string"}},
    ),
}
#: path -> (description, media type, schema, further answers)
_OPERATIONS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "/": ("Says that it runs.", "text/plain", {"type": "string"}, {}),
    "/healthz": ("The process is alive.", "application/json", _STATUS, {}),
    "/readyz": (
        "Whether the gateway can serve requests and record them. It stays ready while a database server is away: the "
        "answer then says so.",
        "application/json",
        _STATUS,
        {"503": {"description": "nothing can serve, draining, or a lost database file"}},
    ),
    "/metrics": ("Prometheus.", "text/plain", {"type": "string"}, {}),
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
            for path, operation in _OPERATIONS.items():
                schema["paths"][path] = {"get": _described(path, *operation)}
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    _document_errors(path, operation)
            for path, (summary, tag, required, members) in _PATHS.items():
                schema["paths"][path] = {"post": _operation(path, summary, tag, required, members)}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document_errors(path: str, operation: dict[str, Any]) -> None:
    """Document what FastAPI does not know: bad input is a 400, and every error has the API's shape."""
    name = "OllamaError" if path.startswith("/api/") else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
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


def _operation(
    path: str, summary: str, tag: str, required: list[str], members: dict[str, Any]
) -> dict[str, Any]:
    ollama = path.startswith("/api/")
    error = {"$ref": f"#/components/schemas/{'OllamaError' if ollama else 'Error'}"}
    responses: dict[str, Any] = {
        "200": {
            "description": "the answer",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "application/x-ndjson" if ollama else "text/event-stream": {"schema": {"type": "string"}},
            },
        }
    }
    for status, what in _STATUSES.items():
        responses[str(status)] = {"description": what, "content": {"application/json": {"schema": error}}}
    body = {"type": "object", "required": required, "properties": members}
    return {
        "summary": summary,
        "tags": [tag],
        "operationId": path.strip("/").replace("/", "_"),
        "parameters": [_SESSION],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": responses,
    }
