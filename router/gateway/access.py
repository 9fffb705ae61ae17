"""Who may ask, how much they may send, and how errors are told, for everything that FastAPI serves."""

from __future__ import annotations

from ipaddress import ip_address
from math import ceil
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.config import ConfigError
from router.core.errors import Refusal, invalid_request
from router.core.types import Outcome
from router.gateway.fronts import openai_error
from router.gateway.ollama_front import refusal_body
from router.gateway.service import Gateway
from router.gateway.wish import KeyTerms
from router.store.database import StoreError

#: Of a body that is no prompt.
SMALL_BODY_MB = 0.25


class Guard:
    """What holds before a route reads anything: the caller's key on /v1 and /api, and the body's size."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if scope["path"].startswith(("/v1/", "/api/")):
            try:
                client_key(self._gateway, request)
            except Refusal as refusal:
                await refusal_response(request, refusal)(scope, receive, send)
                return
        limit_mb = self._gateway.config.limits.max_body_mb
        if scope["path"] != "/v1/routing/predict":  # all others take a few settings
            limit_mb = min(limit_mb, SMALL_BODY_MB)
        left = int(limit_mb * 1024 * 1024)

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body is larger than {limit_mb:g} MiB.")
            return message

        await self._app(scope, bounded, send)


def client_key(gateway: Gateway, request: Request) -> KeyTerms | None:
    """The caller's key; None on an open gateway. Raises the 401."""
    name = gateway.rules.keys.authenticate(_authorization(request))
    return None if name is None else gateway.rules.terms[name]


def _authorization(request: Request) -> bytes | None:
    header = request.headers.get("authorization")
    return None if header is None else header.encode("latin-1")


def admin_only(gateway: Gateway, request: Request) -> None:
    """Let in who has the admin key, or without one who is on this machine. Raises the 401."""
    if gateway.admin_key is not None:
        if gateway.rules.keys.is_admin(_authorization(request), gateway.admin_key):
            return
    elif _is_local(request):
        return
    raise Refusal(401, "invalid_api_key", "The admin key is missing or wrong.", Outcome.REJECTED_AUTH)


def _is_local(request: Request) -> bool:
    """Whether a program on this machine asks: not through a proxy, and not a page of some web site."""
    if request.client is None or not _is_loopback(request.client.host):
        return False
    if not _names_this_machine(request.headers.get("host", "")):
        return False  # a web page whose name was pointed here
    return not any(name in request.headers for name in ("origin", "forwarded", "x-forwarded-for"))


def _names_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in {"", "localhost"} or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def refusal_response(request: Request, refusal: Refusal) -> Response:
    """A refusal in the shape of the API that was called."""
    ollama = request.url.path.startswith("/api/")
    content = refusal_body(refusal, "") if ollama else openai_error(refusal)
    headers = {}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(max(1, ceil(refusal.retry_after_s)))
    if not refusal.should_retry:
        headers["x-should-retry"] = "false"
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(content, refusal.status, headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Tell every known error in the contract's shape."""
    respond = refusal_response

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return respond(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:]) or None
        return respond(request, invalid_request(f"{param or 'body'}: {first['msg']}", param))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        code = _HTTP_CODES.get(error.status_code, "invalid_request")
        refusal = Refusal(error.status_code, code, str(error.detail), Outcome.REJECTED_INVALID)
        response = respond(request, refusal)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ConfigError)
    async def config(request: Request, error: ConfigError) -> Response:
        return respond(request, Refusal(422, "invalid_fleet", str(error), Outcome.REJECTED_INVALID))

    @app.exception_handler(StoreError)
    async def store(request: Request, error: StoreError) -> Response:
        return respond(
            request,
            Refusal(503, "store_unavailable", str(error), Outcome.REJECTED_NO_INSTANCE, retry_after_s=2),
        )


def not_found(what: str) -> Refusal:
    """The 404 for a thing that is not there (or is another's)."""
    return Refusal(404, "not_found", what, Outcome.REJECTED_INVALID)
