"""The control plane, by FastAPI: models, routing and feedback, the admin API, health and metrics, and
Ollama's read-only endpoints."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from ipaddress import ip_address
from math import ceil
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router import __version__
from router.config import ConfigError, FleetConfig, InstanceConfig, parse_instance, with_instances
from router.core.errors import Refusal, invalid_request
from router.core.types import Outcome
from router.explain import describe, described_candidates
from router.gateway import body as bodies
from router.gateway.api import build_request
from router.gateway.fronts import openai_error
from router.gateway.ollama_front import ModelCard, ps, refusal_body, show, tags, version
from router.gateway.openapi import add_generation_paths
from router.gateway.prompt import prompt_facts
from router.gateway.scaling import scaling
from router.gateway.service import Gateway
from router.gateway.wish import KeyTerms, from_body, from_headers
from router.store.database import StoreError
from router.store.explanations import kept
from router.store.records import RequestRecord


class Feedback(BaseModel):
    """A caller's judgement of an answer: `quality` from 0 (useless) to 1 (perfect)."""

    model_config = ConfigDict(extra="forbid")

    request_id: str = Field(min_length=1, max_length=200)
    quality: float = Field(ge=0, le=1, allow_inf_nan=False)


class ShowRequest(BaseModel):
    """Ollama's /api/show; `name` is the older spelling of `model`."""

    model: str | None = None
    name: str | None = None


def create_app(gateway: Gateway, lifespan: Callable[[], Awaitable[None]] | None = None) -> FastAPI:
    """The FastAPI application over a running gateway."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if lifespan is not None:
            await lifespan()
        yield

    app = FastAPI(
        title="Headway",
        version=__version__,
        lifespan=life,
        docs_url="/docs",
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(_Guard, gateway=gateway)
    app.include_router(_operations(gateway))
    app.include_router(_models(gateway))
    app.include_router(_routing(gateway))
    app.include_router(_ollama(gateway))
    app.include_router(_admin(gateway))
    _errors(app)
    add_generation_paths(app)
    return app


class _Guard:
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
                _key(self._gateway, request)
            except Refusal as refusal:
                await _refusal_response(request, refusal)(scope, receive, send)
                return
        limit_mb = self._gateway.config.limits.max_body_mb
        left = int(limit_mb * 1024 * 1024)

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body is larger than {limit_mb:g} MiB.")
            return message

        await self._app(scope, bounded, send)


# --- who asks ----------------------------------------------------------------------------------------
def _key(gateway: Gateway, request: Request) -> KeyTerms | None:
    """The caller's key; None on an open gateway. Raises the 401."""
    name = gateway.rules.keys.authenticate(_authorization(request))
    return None if name is None else gateway.rules.terms[name]


def _authorization(request: Request) -> bytes | None:
    header = request.headers.get("authorization")
    return None if header is None else header.encode("latin-1")


def _admin_only(gateway: Gateway, request: Request) -> None:
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
    return not any(name in request.headers for name in ("origin", "forwarded", "x-forwarded-for"))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


# --- errors ------------------------------------------------------------------------------------------
def _refusal_response(request: Request, refusal: Refusal) -> Response:
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


def _errors(app: FastAPI) -> None:
    respond = _refusal_response

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


def _not_found(what: str) -> Refusal:
    return Refusal(404, "not_found", what, Outcome.REJECTED_INVALID)


# --- operations --------------------------------------------------------------------------------------
def _operations(gateway: Gateway) -> APIRouter:
    router = APIRouter(tags=["operations"])

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
    @router.get("/readyz", responses={503: {"description": "nothing can serve, or draining"}})
    async def readyz() -> Response:
        """Whether requests can be served."""
        if gateway.draining:
            return Response('{"status":"draining"}', 503, media_type="application/json")
        instances = gateway.runner.scheduler.instances.values()
        if not any(instance.healthy and not instance.draining for instance in instances):
            return Response('{"status":"no live instance"}', 503, media_type="application/json")
        return Response('{"status":"ready"}', media_type="application/json")

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus."""
        return Response(gateway.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _models(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["models"])

    def entry(name: str) -> dict[str, Any]:
        model = gateway.config.model(name)
        owner = model.family if model is not None and model.family else "headway"
        return {"id": name, "object": "model", "created": gateway.rules.created, "owned_by": owner}

    @router.get("/models")
    async def models(request: Request) -> dict[str, Any]:
        """The fleet's models."""
        _key(gateway, request)
        return {"object": "list", "data": [entry(model.name) for model in gateway.config.models]}

    @router.get("/models/{model_id:path}")
    async def model(model_id: str, request: Request) -> dict[str, Any]:
        """One model, by name or alias."""
        _key(gateway, request)
        name = gateway.rules.names.name_of(model_id)
        if name is None:
            gateway.rules.names.resolve(model_id)
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
def _routing(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["routing"])

    @router.post("/routing/predict")
    async def predict(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """A dry run of a chat (`messages`), completion (`prompt`) or embedding (`input`) request: candidates,
        predictions and scores; nothing is sent, no row written, no counter advanced."""
        terms = _key(gateway, request)
        rules = gateway.rules
        routing = body.pop("routing", None)
        api = "chat" if "messages" in body else "embeddings" if "input" in body else "completions"
        bodies.check(api, body)
        headers = {name.lower(): value for name, value in request.headers.raw}
        wish = rules.wishes.merge(
            body.get("model"),
            terms,
            None if routing is None else from_body(routing),
            from_headers(headers.get),
        )
        facts = prompt_facts(api, body)
        now = gateway.runner.clock()
        record = RequestRecord(id="predict", received_at=time.time(), arrived_at=now)
        asked = build_request(rules, record, wish, api, body, facts)
        await gateway.count_tokens(asked, api, body)
        decision = gateway.runner.scheduler.decide(asked, now)
        candidates = described_candidates(kept(decision, now))
        chosen = next(candidate for candidate in candidates if candidate["chosen"])
        return {
            "policy": wish.policy,
            "model": chosen["model"],
            "instance": chosen["instance"],
            "prompt_tokens": asked.prompt_tokens,
            "candidates": candidates,
        }

    @router.get("/routing/{request_id}")
    async def routing(request_id: str, request: Request) -> dict[str, Any]:
        """What was decided for one of the caller's requests, and what happened."""
        terms = _key(gateway, request)
        row = await gateway.store.request(request_id, None if terms is None else terms.name)
        if row is None:
            raise _not_found("There is no such request")
        return await describe(gateway.store, row)

    @router.post("/feedback")
    async def feedback(given: Feedback, request: Request) -> dict[str, Any]:
        """Tell how good an answer was."""
        terms = _key(gateway, request)
        name = None if terms is None else terms.name
        if not await gateway.store.add_feedback(given.request_id, given.quality, name):
            raise _not_found("There is no such request")
        return {"request_id": given.request_id, "quality": given.quality}

    return router


# --- Ollama ------------------------------------------------------------------------------------------
def _ollama(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["ollama"])

    def cards(live_only: bool = False) -> list[ModelCard]:
        found = []
        for model in gateway.config.models:
            instances = list(gateway.runner.scheduler.serving(model.name))
            if live_only and not any(instance.healthy for instance in instances):
                continue
            candidates = [instance.candidates[model.name] for instance in instances]
            contexts = [c.context_tokens for c in candidates if c.context_tokens is not None]
            quantizations = {c.quantization for c in candidates if c.quantization}
            found.append(
                ModelCard(
                    model.name,
                    model.family,
                    quantizations.pop() if len(quantizations) == 1 else None,
                    max(contexts, default=model.context_tokens),
                )
            )
        return found

    def modified_ns() -> int:
        return gateway.rules.created * 1_000_000_000

    @router.head("/tags", include_in_schema=False)
    @router.get("/tags")
    async def list_tags(request: Request) -> dict[str, Any]:
        """The fleet's models."""
        _key(gateway, request)
        return tags(cards(), modified_ns())

    @router.get("/ps")
    async def running(request: Request) -> dict[str, Any]:
        """The models that live instances serve."""
        _key(gateway, request)
        return ps(cards(live_only=True))

    @router.post("/show")
    async def show_model(asked: ShowRequest, request: Request) -> dict[str, Any]:
        """One model."""
        _key(gateway, request)
        name = asked.model or asked.name
        if not name:
            raise invalid_request("model is required", "model")
        known = gateway.rules.names.name_of(name)
        card = next((card for card in cards() if card.name == known), None)
        if card is None:
            raise _not_found(f"model '{name[:80]}' not found")
        return show(card, modified_ns())

    @router.head("/version", include_in_schema=False)
    @router.get("/version")
    async def get_version(request: Request) -> dict[str, str]:
        """The version of the API that is spoken, and the router's own."""
        _key(gateway, request)
        return version(__version__)

    return router


# --- admin -------------------------------------------------------------------------------------------
def _admin(gateway: Gateway) -> APIRouter:
    def admin_only(request: Request) -> None:
        _admin_only(gateway, request)

    router = APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(admin_only)])

    @router.get("/fleet")
    async def fleet() -> dict[str, Any]:
        """Instances with health, load and what they serve."""
        scheduler = gateway.runner.scheduler
        now = gateway.runner.clock()
        return {
            "models": [model.model_dump(mode="json") for model in gateway.config.models],
            "instances": [_instance(gateway, each, now) for each in gateway.config.instances],
            "queue_depth": scheduler.queue_depth,
            "live_requests": scheduler.live,
            "draining": gateway.draining,
        }

    @router.post("/instances", status_code=201, responses={409: {}, 422: {}})
    async def add_instance(body: dict[str, Any]) -> dict[str, Any]:
        """Add one instance, given as in the fleet file."""
        added = parse_instance(body)

        def edit(config: FleetConfig) -> FleetConfig:
            if config.instance(added.name) is not None:
                raise Refusal(
                    409, "name_taken", f"An instance {added.name} is there already", Outcome.REJECTED_INVALID
                )
            return with_instances(config, (*config.instances, added))

        await gateway.change(edit)
        return _instance(gateway, added, gateway.runner.clock())

    @router.delete("/instances/{name}")
    async def remove_instance(name: str, drain: bool = False) -> dict[str, Any]:
        """Take an instance out: at once, or with `drain=true` when its last request has ended."""
        if gateway.config.instance(name) is None:
            raise _not_found("There is no such instance")
        if drain:
            gateway.drain_instance(name)
            return {"name": name, "draining": True}
        await gateway.remove_instance(name)
        return {"name": name, "removed": True}

    @router.get("/requests")
    async def requests(
        since: Annotated[float | None, Query(allow_inf_nan=False)] = None,
        outcome: Outcome | None = None,
        policy: str | None = None,
        model: str | None = None,
        instance: str | None = None,
        key: str | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """Recorded requests, newest first."""
        page = await gateway.store.requests(
            since=since,
            outcome=None if outcome is None else outcome.value,
            policy=policy,
            model=model,
            instance=instance,
            key=key,
            limit=limit,
            cursor=cursor,
        )
        return {"requests": page.requests, "next_cursor": page.next_cursor}

    @router.get("/requests/{request_id}")
    async def request(request_id: str) -> dict[str, Any]:
        """One request with every candidate and every attempt."""
        row = await gateway.store.request(request_id, any_key=True)
        if row is None:
            raise _not_found("There is no such request")
        return await describe(gateway.store, row)

    @router.post("/reload", responses={422: {}})
    async def reload() -> dict[str, Any]:
        """Read the fleet file again; a bad one is refused and the old one stays."""
        config = await gateway.reload()
        return {"instances": len(config.instances), "models": len(config.models)}

    @router.get("/scaling")
    async def get_scaling() -> dict[str, Any]:
        """How many replicas each model wants, from what is in flight and queued now."""
        return {
            "models": [
                asdict(each)
                for each in scaling(gateway.runner.scheduler, [model.name for model in gateway.config.models])
            ]
        }

    return router


def _instance(gateway: Gateway, config: InstanceConfig, now: float) -> dict[str, Any]:
    instance = gateway.runner.scheduler.instances[config.name]
    report = instance.report
    return {
        "name": instance.name,
        "kind": config.kind,
        "url": config.url,
        "hardware": instance.hardware,
        "serves": {name: candidate.upstream_model for name, candidate in instance.candidates.items()},
        "healthy": instance.healthy,
        "draining": instance.draining,
        "ejections": instance.ejections,
        "in_flight": instance.in_flight,
        "awaiting_first_token": instance.awaiting_first_token,
        "max_concurrency": instance.max_concurrency,
        "running": report.running,
        "waiting": report.waiting,
        "kv_usage": report.kv_usage,
        "report_age_s": None if instance.reported_at is None else round(now - instance.reported_at, 3),
        "prediction": gateway.prediction_quality(instance.name),
    }
