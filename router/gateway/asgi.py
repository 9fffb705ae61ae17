"""The ASGI application that the server gets. It answers `/`, probes and scrapes. All else is FastAPI's (`router.gateway.app`),
which is loaded, in a thread, when it is first needed: it takes a tenth of a gateway's memory and half of its start.
`router.gateway.routes.openapi` describes both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import orjson

from router.core.errors import Refusal
from router.core.refusals import draining, method_not_allowed
from router.gateway.codecs.openai import openai_error
from router.gateway.intake.callers import RawHeaders, caller_terms
from router.gateway.scraping import Scrapes, metrics_page
from router.gateway.service import Gateway
from router.gateway.telemetry.exposition import MEDIA_TYPE, Page

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_JSON, _TEXT = b"application/json", b"text/plain; charset=utf-8"
#: The paths that are answered here, by these methods.
_PATHS = ("/", "/healthz", "/health", "/readyz", "/metrics")
_METHODS = ("GET", "HEAD")
#: Those that callers with any host name may use. `/health` is vLLM's name of `/healthz`: load generators look there.
_PROBES = ("/healthz", "/health", "/readyz")
#: One at a time: while pydantic builds models, it changes the warning filters of the whole process.
_LOADING = threading.Lock()


class Application:
    """`on_start` runs when the server starts. `scrape` makes the metrics page of all workers (None: one process)."""

    def __init__(
        self,
        gateway: Gateway,
        on_start: Callable[[], Awaitable[None]] | None = None,
        scrape: Callable[[], Awaitable[Page]] | None = None,
    ) -> None:
        self._gateway = gateway
        self._on_start = on_start
        self._scrapes = Scrapes(scrape or partial(metrics_page, gateway))
        self._fastapi: Any = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        if scope["path"] not in _PATHS:
            await self._pass_on(scope, receive, send)
            return
        try:
            await self._answer(scope["method"], scope["path"], scope["headers"], send)
        except Refusal as refusal:
            allow = [(b"allow", ", ".join(_METHODS).encode())] if refusal.status == 405 else []
            await _respond(send, refusal.status, _JSON, openai_error(refusal), headers=allow)

    async def _pass_on(self, scope: Any, receive: Receive, send: Send) -> None:
        """Have FastAPI answer. If the server stops and no longer waits for the request, the answer is a 503, unless something
        has been sent already."""
        begun = False

        async def sending(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await (await self._fastapi_app())(scope, receive, sending)
        except asyncio.CancelledError:
            if not begun:
                refusal = draining()
                retry_after = [(b"retry-after", f"{refusal.retry_after_s:.0f}".encode())]
                await _respond(send, refusal.status, _JSON, openai_error(refusal), headers=retry_after)

    async def _answer(self, method: str, path: str, headers: RawHeaders, send: Send) -> None:
        """Answer a path of `_PATHS`. Raises Refusal before anything is sent."""
        rules = self._gateway.rules
        if path not in _PROBES and rules.keys.open:  # it refuses pages of other sites
            caller_terms(rules, headers, dict(headers))
        if method not in _METHODS:
            raise method_not_allowed()
        if path == "/":
            await _respond(send, 200, _TEXT, b"Headway is running")
        elif path in {"/healthz", "/health"}:
            await _respond(send, 200, _JSON, orjson.dumps({"status": "ok"}))
        elif path == "/readyz":
            status, content = self._gateway.readiness()
            await _respond(send, status, _JSON, orjson.dumps(content))
        else:
            page = await self._scrapes.page()
            await _respond(send, 200, MEDIA_TYPE.encode(), *page.pieces())

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        if self._on_start is not None:
            await self._on_start()
        await send({"type": "lifespan.startup.complete"})
        with suppress(asyncio.CancelledError):  # after a second signal the server does not wait
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    async def _fastapi_app(self) -> Any:
        async with self._loading:
            if self._fastapi is None:
                self._fastapi = await asyncio.to_thread(self._load)
        return self._fastapi

    def _load(self) -> Any:
        from router.gateway.app import create_app

        with _LOADING:
            return create_app(self._gateway)


async def _respond(
    send: Send, status: int, media_type: bytes, *pieces: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a body piece by piece. A client that reads slowly delays only its own response."""
    size = str(sum(map(len, pieces))).encode()
    headers = [(b"content-length", size), (b"content-type", media_type), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
