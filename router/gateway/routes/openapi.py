"""Adds to the OpenAPI document what FastAPI does not know: the hot endpoints (`router.gateway.endpoints`), and what
`router.gateway.asgi` answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from router.gateway.codecs.ollama.fields import OllamaChat, OllamaEmbed, OllamaEmbeddings, OllamaGenerate
from router.gateway.codecs.responses.fields import ResponseBody
from router.request import body as bodies
from router.request.routing_input import Routing

_Schema = dict[str, Any]

_STRING: _Schema = {"type": "string"}
_OBJECT: _Schema = {"type": "object"}
_TEXT_OR_NULL: _Schema = {"type": ["string", "null"]}
_JSON_TYPES = {str: "string", dict: "object", list: "array"}


def _object(properties: dict[str, _Schema], *required: str) -> _Schema:
    return _OBJECT | {"required": [*required], "properties": properties}


_ERROR = {"message": _STRING, "type": _STRING, "param": _TEXT_OR_NULL, "code": _TEXT_OR_NULL}
_ERRORS = {
    "Error": _object({"error": _object(_ERROR, *_ERROR)}, "error"),
    "OllamaError": _object({"error": _STRING}, "error"),
}
_MODEL = _STRING | {"example": "auto", "description": "a model, an alias, `auto`, or `NAME:policy`"}
_ROUTING = {
    "$ref": "#/components/schemas/Routing",
    "description": "the routing parameters of this request; never forwarded",
}
_SESSION = {
    "name": "x-session-id",
    "in": "header",
    "required": False,
    "schema": _STRING,
    "description": "the conversation, if the body has no `prompt_cache_key`; its requests go to the same instance where possible",
}
#: path -> (summary, the model of its body)
_PATHS: dict[str, tuple[str, type]] = {
    "/v1/chat/completions": ("Chat", bodies.Chat),
    "/v1/completions": ("Complete a prompt", bodies.Completion),
    "/v1/embeddings": ("Embed texts", bodies.Embedding),
    "/v1/responses": ("Respond (nothing is stored)", ResponseBody),
    "/api/chat": ("Chat (Ollama)", OllamaChat),
    "/api/generate": ("Generate (Ollama)", OllamaGenerate),
    "/api/embed": ("Embed texts (Ollama)", OllamaEmbed),
    "/api/embeddings": ("Embed a text (Ollama, older)", OllamaEmbeddings),
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
            schema["components"]["schemas"] |= _ERRORS | _bodies()
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


class _Schemas(GenerateJsonSchema):
    """JSON schemas of the models that check bodies (`router.request.validation`)."""

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> _Schema:
        return {"type": _JSON_TYPES[schema["cls"]]}

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> _Schema:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}  # not every kind names its `type`


def _bodies() -> dict[str, _Schema]:
    """The schemas of the bodies on the hot paths, with what the checks of their models leave to others."""
    models = (Routing, *(model for _, model in _PATHS.values()))
    _, found = TypeAdapter.json_schemas(
        [(each.__name__, "validation", TypeAdapter(each)) for each in models],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schemas,
    )
    schemas: dict[str, _Schema] = found["$defs"]
    for path, (_, model) in _PATHS.items():
        body = schemas[model.__name__]
        body["properties"]["routing"] = _ROUTING
        if path.startswith("/v1/"):
            body["properties"] = {"model": _MODEL} | body["properties"]
            body["required"] = ["model", *body.get("required", ())]
    return schemas


def _operation(path: str, summary: str, model: type) -> dict[str, Any]:
    ollama = path.startswith("/api/")
    stream_type = "application/x-ndjson" if ollama else "text/event-stream"
    answers = {"application/json": {"schema": _OBJECT}, stream_type: {"schema": _STRING}}
    responses = {"200": {"description": "the answer", "content": answers}}
    for status, what in _STATUSES.items():
        responses[str(status)] = {"description": what, "content": _error_content(path)}
    body = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "summary": summary,
        "tags": ["ollama" if ollama else "generation"],
        "operationId": path.strip("/").replace("/", "_"),
        "parameters": [_SESSION],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": responses,
    }
