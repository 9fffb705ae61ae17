"""The ASGI application that the server gets. It answers probes and scrapes itself. All else is FastAPI's (`router.gateway.app`),
which is loaded, in a thread, when it is first needed: it takes a tenth of a gateway's memory and half of its start.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson

from router.core.errors import Refusal
from router.gateway.intake.callers import caller_terms
from router.gateway.service import Gateway
from router.gateway.telemetry.exposition import MEDIA_TYPE, Page
from router.gateway.telemetry.scrapes import Scrapes, metrics_page

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

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
        self._scrapes = Scrapes(scrape or partial(metrics_page, gateway.metrics))
        self._fastapi: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        match scope["method"], scope["path"]:
            case "GET" | "HEAD", "/healthz":
                await _respond(send, 200, b"application/json", orjson.dumps({"status": "ok"}))
            case "GET" | "HEAD", "/readyz":
                status, content = self._gateway.readiness()
                await _respond(send, status, b"application/json", orjson.dumps(content))
            case "GET", "/metrics" if self._may(scope["headers"]):
                page = await self._scrapes.page()
                await _respond(send, 200, MEDIA_TYPE.encode(), *page.pieces())
            case _:
                await (await self._loaded())(scope, receive, send)

    def _may(self, headers: Any) -> bool:
        """Whether the metrics may be sent. Otherwise FastAPI refuses."""
        rules = self._gateway.rules
        try:
            if rules.keys.open:  # it refuses pages of other sites
                caller_terms(rules, headers, dict(headers))
        except Refusal:
            return False
        return True

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        if self._on_start is not None:
            await self._on_start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _loaded(self) -> Any:
        if self._fastapi is None:
            self._fastapi = asyncio.create_task(asyncio.to_thread(self._load), name="FastAPI")
        loading = self._fastapi
        try:
            return await asyncio.shield(loading)
        except Exception:
            if self._fastapi is loading:
                self._fastapi = None  # the next request tries again
            raise

    def _load(self) -> Any:
        from router.gateway.app import create_app

        with _LOADING:
            return create_app(self._gateway)


async def _respond(send: Send, status: int, media_type: bytes, *pieces: bytes) -> None:
    """Send a body piece by piece. A client that reads slowly delays only its own response."""
    size = str(sum(map(len, pieces))).encode()
    headers = [(b"content-length", size), (b"content-type", media_type)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
