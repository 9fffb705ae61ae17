"""Ollama's read-only endpoints over the fleet's models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, model_validator

from router import __version__
from router.core.errors import Refusal, invalid_request
from router.core.quoting import cut
from router.gateway.codecs.ollama.catalog import ModelCard, ps, show, tags, version
from router.gateway.routes.access import model_names, not_found
from router.gateway.service import Gateway
from router.request.body import parse_json
from router.request.model_names import ModelNames


class ShowRequest(BaseModel):
    """Ollama's /api/show; `name` is the older spelling of `model`."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_a_content_type(cls, body: Any) -> Any:
        """Ollama reads JSON whatever the content type says, and its own examples (`curl -d`) set none."""
        return parse_json(body) if isinstance(body, bytes) else body


def ollama_routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["ollama"])

    def cards(names: ModelNames, live_only: bool = False) -> list[ModelCard]:
        found = []
        for model in gateway.config.models:
            if model.name not in names.models:
                continue
            instances = list(gateway.runner.scheduler.fleet.serving(model.name))
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

    @router.get("/tags")
    async def list_tags(request: Request) -> dict[str, Any]:
        """The fleet's models that the caller's key may use."""
        return tags(cards(model_names(gateway, request)), modified_ns())

    @router.get("/ps")
    async def running(request: Request) -> dict[str, Any]:
        """The models that live instances serve."""
        return ps(cards(model_names(gateway, request), live_only=True))

    @router.post("/show")
    async def show_model(wanted: ShowRequest, request: Request) -> dict[str, Any]:
        """One model."""
        names = model_names(gateway, request)
        name = wanted.model or wanted.name
        if not name:
            raise invalid_request("model is required", "model")
        try:
            found, _ = names.resolve(names.spelled(name))
        except Refusal as refusal:
            if refusal.code != "model_not_found":
                raise
            found = ()
        if len(found) != 1:
            raise not_found(f"model '{cut(name)}' not found")
        return show(next(card for card in cards(names) if card.name == found[0]), modified_ns())

    @router.get("/version")
    async def get_version() -> dict[str, str]:
        """The version of the API, and the router's own."""
        return version(__version__)

    return router
