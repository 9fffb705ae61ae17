"""The FastAPI application: everything but the hot paths, which `router.gateway.endpoints` serves in front of it, and what
`router.gateway.asgi` answers itself."""

from __future__ import annotations

from fastapi import FastAPI

from router import __version__
from router.gateway.routes.access import Guard, add_error_handlers
from router.gateway.routes.admin import admin_routes
from router.gateway.routes.keys import holder_routes, operator_routes
from router.gateway.routes.models import model_routes, ollama_routes
from router.gateway.routes.openapi import describe_other_paths
from router.gateway.routes.overview import overview_routes
from router.gateway.routes.routing import routing_routes
from router.gateway.routes.ui import report_routes, ui_routes
from router.gateway.service import Gateway


def create_app(gateway: Gateway) -> FastAPI:
    """The application over a running gateway."""
    app = FastAPI(
        title="Headway",
        version=__version__,
        docs_url=None,  # `ui_routes` serves our own page: FastAPI's loads its script from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Guard, gateway=gateway)
    # `include_router` would build each route a second time, which takes long.
    for routes in (
        *(model_routes, routing_routes, ollama_routes),
        *(admin_routes, operator_routes, holder_routes),
        *(overview_routes, ui_routes, report_routes),
    ):
        app.router.routes.extend(routes(gateway).routes)
    add_error_handlers(app)
    describe_other_paths(app)
    return app
