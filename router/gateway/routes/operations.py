"""Health, readiness and metrics in the API's description. `router.gateway.asgi` serves them."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse


def operation_routes() -> APIRouter:
    """`/`, `/healthz`, `/readyz` and `/metrics`."""
    router = APIRouter(tags=["operations"])

    @router.head("/", include_in_schema=False)
    @router.get("/", response_class=PlainTextResponse)
    async def root() -> str:
        return "Headway is running"

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        raise NotImplementedError

    @router.get(
        "/readyz", responses={503: {"description": "nothing can serve, draining, or a lost database file"}}
    )
    async def readyz() -> Response:
        """Whether the gateway can serve requests and record them. It stays ready while a database server is away: the
        answer then says so."""
        raise NotImplementedError

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus."""
        raise NotImplementedError

    return router
