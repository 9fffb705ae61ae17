"""OpenAI's list of models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from router.core.errors import model_not_found
from router.gateway.routes.access import model_names
from router.gateway.service import Gateway


def model_routes(gateway: Gateway) -> APIRouter:
    """`/v1/models`: the fleet's models that the caller's key may use."""
    router = APIRouter(prefix="/v1", tags=["models"])

    def entry(name: str) -> dict[str, Any]:
        model = gateway.config.model(name)
        owner = model.family if model is not None and model.family else "headway"
        return {"id": name, "object": "model", "created": gateway.rules.created, "owned_by": owner}

    @router.get("/models/", include_in_schema=False)
    @router.get("/models")
    async def models(request: Request) -> dict[str, Any]:
        """The fleet's models that the caller's key may use."""
        names = model_names(gateway, request)
        return {"object": "list", "data": [entry(name) for name in names.models]}

    @router.get("/models/{model_id:path}")
    async def model(model_id: str, request: Request) -> dict[str, Any]:
        """One model, by name or alias, also with a policy's suffix."""
        names = model_names(gateway, request)
        found, _ = names.resolve(model_id)
        if len(found) > 1:
            raise model_not_found("This name can mean several models")
        return entry(found[0])

    return router
