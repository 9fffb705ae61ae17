"""Access to FastAPI's paths: callers, limits of bodies, and the shape of errors."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.config import ConfigError
from router.core.errors import Refusal, invalid_request
from router.core.quoting import cut
from router.core.refusals import method_not_allowed
from router.core.types import Outcome
from router.explain import described_candidates
from router.gateway.codecs.ollama.answer import refusal_body
from router.gateway.codecs.openai import error_object, openai_error
from router.gateway.http.request_body import announces_more, check_encoding, too_large
from router.gateway.intake.callers import caller_terms, check_admin
from router.gateway.relay.answer import refusal_headers
from router.gateway.service import Gateway
from router.request.model_names import ModelNames
from router.request.routing_params import KeyTerms
from router.request.validation import path_of, sentence_of
from router.store.database import StoreError
from router.store.explanations import kept

#: The largest body of a path that has no prompt; it is parsed at once.
MAX_BODY_BYTES = 256 * 1024
#: Paths whose body has a prompt.
_PROMPT_PATHS = frozenset({"/v1/routing/predict"})


class Guard:
    """Checks before a route reads anything: the caller's key on /v1, /api and /admin, and the body's size."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        path = scope["path"]
        left = int(self._gateway.config.limits.max_body_mb * 1024 * 1024)
        if path not in _PROMPT_PATHS:
            left = min(left, MAX_BODY_BYTES)
        oversized = too_large(left / 1024 / 1024)
        try:
            # An open gateway checks every path, to refuse pages of other sites.
            if self._gateway.rules.keys.open or path.startswith(("/v1/", "/api/")):
                client_key(self._gateway, request)
            if path.startswith("/admin"):
                check_admin(self._gateway.rules, self._gateway.admin_key, scope)
            headers = dict(scope["headers"])
            check_encoding(headers)
            if announces_more(headers.get(b"content-length", b""), left):
                raise oversized
        except Refusal as refusal:
            await refusal_response(request, refusal)(scope, receive, send)
            return

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, oversized.message)
            return message

        if scope["method"] == "HEAD":  # the answer to a GET, of which the server sends the head only
            scope = {**scope, "method": "GET"}
        await self._app(scope, bounded, send)


def client_key(gateway: Gateway, request: Request) -> KeyTerms | None:
    """The terms of the caller's key; None on an open gateway. Raises as `callers.caller_terms`."""
    raw = request.scope["headers"]
    return caller_terms(gateway.rules, raw, dict(raw))


def client_name(gateway: Gateway, request: Request) -> str | None:
    """The name of the caller's key; None on an open gateway. Raises as `callers.caller_terms`."""
    terms = client_key(gateway, request)
    return None if terms is None else terms.name


def model_names(gateway: Gateway, request: Request) -> ModelNames:
    """The names of models that the caller's key may use. Raises as `callers.caller_terms`."""
    return gateway.rules.routing_rules.names_for(client_key(gateway, request))


def admin_router() -> APIRouter:
    """A router for paths under /admin, where `Guard` checks the caller."""
    return APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(known_parameters)])


def known_parameters(request: Request) -> None:
    """Raise a 400 for a query parameter that the path does not have. Without a misspelled `drain=true`, an instance would be
    removed at once."""
    known = {field.alias for field in get_flat_params(request.scope["route"].dependant)}
    for name in request.query_params:
        if name not in known:
            raise invalid_request(f"{cut(name)} is not a known parameter.", cut(name))


def refusal_response(request: Request, refusal: Refusal) -> Response:
    """A refusal in the shape of the API that was called. That of a dry run has the candidates."""
    ollama = request.scope["path"].startswith("/api/")  # not request.url, which depends on the header Host
    content = refusal_body(refusal, "") if ollama else openai_error(refusal)
    if (decision := refusal.decision) is not None:
        candidates = described_candidates(kept(decision, None))
        content = orjson.dumps({"error": error_object(refusal), "candidates": candidates})
    headers = {name.decode(): value.decode() for name, value in refusal_headers(refusal)}
    return Response(content, refusal.status, headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Answer every known error in the shape of the API."""

    async def respond(request: Request, error: Exception) -> Response:
        response = refusal_response(request, _refusal_of(request, error))
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        return response

    for kind in (Refusal, RequestValidationError, HTTPException, ConfigError, StoreError):
        app.add_exception_handler(kind, respond)


def _refusal_of(request: Request, error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return invalid_request("The body is not valid JSON.")
        param = path_of(first["loc"][1:])
        if not param and first["type"] in {"dict_type", "model_attributes_type"}:
            return invalid_request("The body must be a JSON object, with content-type: application/json.")
        return invalid_request(f"{param or 'The body'} {sentence_of(first)}.", param or None)
    if isinstance(error, HTTPException):
        # FastAPI cannot read the body: a number of thousands of digits, or bytes that are no text.
        if error.status_code == 400:
            return invalid_request("The body is not valid JSON, or holds a number that is too large.")
        if error.status_code == 404:
            return not_found("There is no such path: /openapi.json lists all that there are.")
        if error.status_code == 405:
            return method_not_allowed()
        code = "request_too_large" if error.status_code == 413 else "invalid_request"
        return invalid_request(str(error.detail), None, code, error.status_code)
    if isinstance(error, ConfigError):
        first = str(error).partition("\n")[0]  # `headway check` has a line for each problem
        return invalid_request(first, None, "invalid_fleet", 422)
    # Only operators may see where the database is.
    message = str(error) if request.scope["path"].startswith("/admin") else "The database does not answer."
    return Refusal(503, "store_unavailable", message, Outcome.REJECTED_NO_INSTANCE, retry_after_s=2)


def not_found(what: str) -> Refusal:
    """The 404 for a thing that does not exist, or belongs to another key."""
    return invalid_request(what, None, "not_found", 404)
