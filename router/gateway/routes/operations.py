"""Health, readiness and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from router.gateway.service import Gateway
from router.gateway.telemetry.exposition import MEDIA_TYPE, Page
from router.gateway.telemetry.scrapes import Scrapes, metrics_page


def operation_routes(gateway: Gateway, scrape: Callable[[], Awaitable[Page]] | None) -> APIRouter:
    """`/`, `/healthz`, `/readyz` and `/metrics`. `scrape` makes the metrics page of all workers (None: one process)."""
    router = APIRouter(tags=["operations"])
    scrapes = Scrapes(scrape or partial(metrics_page, gateway.metrics))

    @router.head("/", include_in_schema=False)
    @router.get("/", response_class=PlainTextResponse)
    async def root() -> str:
        return "Headway is running"

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @router.head("/readyz", include_in_schema=False)
    @router.get(
        "/readyz", responses={503: {"description": "nothing can serve, draining, or a lost database file"}}
    )
    async def readyz() -> Response:
        """Whether the gateway can serve requests and record them. It stays ready while a database server is away: the
        answer then says so."""
        if gateway.draining:
            return JSONResponse({"status": "draining"}, 503)
        instances = gateway.runner.scheduler.instances.values()
        if not any(instance.healthy and not instance.draining for instance in instances):
            return JSONResponse({"status": "no live instance"}, 503)
        store = gateway.store
        fault = store.fault
        if fault is None and store.full and gateway.rules.config.store.when_full == "refuse":
            fault = "no room is left for records"
        if fault is not None:
            return JSONResponse({"status": "store fault", "reason": fault}, 503)
        away = {"store": "does not answer; records wait"} if store.away else {}
        return JSONResponse({"status": "ready", **away})

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus."""
        return _PageResponse(await scrapes.page())

    return router


class _PageResponse(Response):
    """A metrics page, sent piece by piece. A client that reads slowly delays only its own response."""

    def __init__(self, page: Page) -> None:
        self._page = page
        size = sum(map(len, page.pieces()))
        super().__init__(None, headers={"content-length": str(size)}, media_type=MEDIA_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._page.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
