"""The control plane, by FastAPI: models, routing and feedback, the admin API, health and metrics, and
Ollama's read-only endpoints."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from router import __version__
from router.core.errors import Refusal, invalid_request
from router.core.types import Outcome
from router.explain import describe, described_candidates
from router.gateway.codecs.responses.request import is_response, responses_to_chat
from router.gateway.endpoints import ClientGone, build_request, checked, read_body
from router.gateway.http import body as bodies
from router.gateway.keys.reservation import KeyReservation
from router.gateway.routes.access import Guard, add_error_handlers, client_key, not_found
from router.gateway.routes.admin import admin_routes
from router.gateway.routes.keys import key_routes
from router.gateway.routes.ollama import ollama_routes
from router.gateway.routes.openapi import add_generation_paths
from router.gateway.routes.overview import overview_routes
from router.gateway.routes.ui import ui_routes
from router.gateway.service import Gateway
from router.gateway.telemetry.exposition import OneAtATime, Page, PageResponse
from router.request.prompt import prompt_facts
from router.request.routing_params import KeyTerms
from router.store.explanations import kept
from router.store.records import RequestRecord

_PREDICT_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}},
    }
}


class Feedback(BaseModel):
    """A caller's judgement of an answer: `quality` from 0 (useless) to 1 (perfect)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    request_id: str = Field(min_length=1, max_length=200)
    quality: float = Field(ge=0, le=1, allow_inf_nan=False)


def create_app(
    gateway: Gateway,
    lifespan: Callable[[], Awaitable[None]] | None = None,
    scrape: Callable[[], Awaitable[Page]] | None = None,
) -> FastAPI:
    """The FastAPI application over a running gateway. `scrape` gives the metrics of all workers (None: there is one)."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if lifespan is not None:
            await lifespan()
        yield

    app = FastAPI(
        title="Headway",
        version=__version__,
        lifespan=life,
        docs_url=None,  # `ui_routes` has a page of our own: FastAPI's loads its script from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Guard, gateway=gateway)
    app.include_router(_operations(gateway, scrape))
    app.include_router(_models(gateway))
    app.include_router(_routing(gateway))
    app.include_router(ollama_routes(gateway))
    app.include_router(admin_routes(gateway))
    app.include_router(key_routes(gateway))
    app.include_router(overview_routes(gateway))
    app.include_router(ui_routes(gateway))
    add_error_handlers(app)
    add_generation_paths(app)
    return app


# --- operations --------------------------------------------------------------------------------------
def _operations(gateway: Gateway, scrape: Callable[[], Awaitable[Page]] | None) -> APIRouter:
    router = APIRouter(tags=["operations"])
    scrapes = OneAtATime(scrape or gateway.metrics.page)

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
        """Whether requests can be served and recorded. A database server that is away is told and no reason to stop."""
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
        return PageResponse(await scrapes.page())

    return router


def _models(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["models"])

    def entry(name: str) -> dict[str, Any]:
        model = gateway.config.model(name)
        owner = model.family if model is not None and model.family else "headway"
        return {"id": name, "object": "model", "created": gateway.rules.created, "owned_by": owner}

    @router.get("/models")
    async def models(request: Request) -> dict[str, Any]:
        """The fleet's models that the caller's key may use."""
        names = gateway.rules.routing_rules.names_for(client_key(gateway, request))
        return {"object": "list", "data": [entry(name) for name in names.models]}

    @router.get("/models/{model_id:path}")
    async def model(model_id: str, request: Request) -> dict[str, Any]:
        """One model, by name or alias."""
        names = gateway.rules.routing_rules.names_for(client_key(gateway, request))
        name = names.name_of(model_id)
        if name is None:
            names.resolve(model_id)
            raise Refusal(
                404,
                "model_not_found",
                "This name stands for no single model",
                Outcome.REJECTED_INVALID,
                param="model",
            )
        return entry(name)

    return router


# --- routing -----------------------------------------------------------------------------------------
async def _dry_run(
    gateway: Gateway, request: Request, terms: KeyTerms | None, reservation: KeyReservation | None
) -> dict[str, Any]:
    """What would be decided now. `lease` is what the request holds of its key's limits: its prompt's tokens are taken
    like those of a request that is sent."""
    rules = gateway.rules
    headers = {name.lower(): value for name, value in request.headers.raw}
    try:
        data = await read_body(headers, request.receive, rules.config.limits.max_body_mb)
    except ClientGone:
        raise invalid_request("The request was not complete.") from None
    body = await bodies.parse_large_json(data)
    rules.fields.check_names(body)
    if is_response(body):
        body = responses_to_chat(body).body
    api = "chat" if "messages" in body else "embeddings" if "input" in body else "completions"
    params = checked(rules, terms, headers, api, body)
    facts = prompt_facts(api, body)
    now = gateway.runner.clock()
    record = RequestRecord(
        id="predict",
        received_at=time.time(),
        arrived_at=now,
        key_name=None if terms is None else terms.name,
    )
    asked = build_request(rules, record, params, api, body, facts, headers.get(b"x-session-id"))
    if reservation is not None:
        await gateway.budget_admission.hold(reservation, asked.prompt_tokens, None, [])
    await gateway.count_tokens(asked, api, body, facts)
    decision = gateway.runner.scheduler.decide(asked, now)
    candidates = described_candidates(kept(decision, now))
    chosen = next(candidate for candidate in candidates if candidate["chosen"])
    return {
        "policy": params.policy,
        "model": chosen["model"],
        "instance": chosen["instance"],
        "prompt_tokens": asked.prompt_tokens,
        "candidates": candidates,
    }


def _routing(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["routing"])

    @router.post("/routing/predict", openapi_extra=_PREDICT_BODY)
    async def predict(request: Request) -> dict[str, Any]:
        """A dry run of a chat (`messages`), completion (`prompt`), embedding (`input`) or response (`input` with
        items, or with a field that only responses have): candidates, predictions and scores; nothing is sent, no row
        written, no counter advanced."""
        terms = client_key(gateway, request)
        if terms is None or terms.name is None:
            return await _dry_run(gateway, request, None, None)
        reservation = await gateway.budget_admission.enter(
            gateway.rules.accounts[terms.name], time.time(), [], sends=False
        )
        try:
            return await _dry_run(gateway, request, terms, reservation)
        finally:
            reservation.close(0.0, 0.0)

    @router.get("/routing/{request_id}")
    async def routing(request_id: str, request: Request) -> dict[str, Any]:
        """What was decided for one of the caller's requests, and what happened."""
        terms = client_key(gateway, request)
        row = await gateway.recorded(request_id, None if terms is None else terms.name)
        if row is None:
            raise not_found("There is no such request")
        return await describe(gateway.store, row)

    @router.post("/feedback")
    async def feedback(given: Feedback, request: Request) -> dict[str, Any]:
        """Tell how good an answer was."""
        terms = client_key(gateway, request)
        name = None if terms is None else terms.name
        if not await gateway.take_feedback(given.request_id, given.quality, name):
            raise not_found("There is no such request")
        return {"request_id": given.request_id, "quality": given.quality}

    return router
