"""The fleet's models, as clients of OpenAI and of Ollama list them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, model_validator

from backends.ollama import tagged
from router import __version__
from router.core.errors import Refusal, invalid_request, model_not_found
from router.core.quoting import cut
from router.gateway.codecs.ollama.answer import rfc3339
from router.gateway.routes.access import model_names, not_found
from router.gateway.service import Gateway
from router.request.body import parse_json
from router.request.model_names import ModelNames

#: The release of Ollama whose API this is. Clients compare it to turn features on. The first with `/v1/responses` is 0.13.4:
#: `codex --oss` takes no older one.
OLLAMA_VERSION = "0.13.4"

_NEVER = "9999-12-31T23:59:59Z"  # the router never unloads a model
_CAPABILITIES = ("completion", "tools")
_SIZE = re.compile(
    r"(?:^|[-_:/ ])([0-9]{1,9}x)?([0-9]{1,9}(?:\.[0-9]{1,9})?)([bm])(?=$|[-_:/. ])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model in the catalogue; None is unknown."""

    name: str
    family: str | None = None
    quantization: str | None = None
    context_tokens: int | None = None


def parameter_size(name: str) -> str | None:
    """The parameter count in a model's name (`llama-3.1-8b` -> `8.0B`); None if there is none."""
    match = _SIZE.search(name)
    if match is None:
        return None
    experts, number, unit = match.groups()
    return f"{experts.lower()}{number}{unit.upper()}" if experts else f"{float(number):.1f}{unit.upper()}"


def _digest(name: str) -> str:
    """A stable id that looks like a digest. The router knows only the name: the weights are at the engines."""
    return hashlib.sha256(name.encode()).hexdigest()


def _details(card: ModelCard) -> dict[str, Any]:
    details: dict[str, Any] = {
        "parent_model": "",
        "format": "",
        "family": card.family or "",
        "families": [card.family] if card.family else None,
        "parameter_size": parameter_size(card.name) or "",
        "quantization_level": card.quantization or "",
    }
    if card.context_tokens is not None:
        details["context_length"] = card.context_tokens
    return details


def _entry(card: ModelCard) -> dict[str, Any]:
    name = tagged(card.name)
    return {
        "name": name,
        "model": name,
        "size": 0,  # of the weights: unknown, but clients expect an integer
        "digest": _digest(card.name),
        "details": _details(card),
    }


def tags(cards: Iterable[ModelCard], modified_ns: int) -> dict[str, Any]:
    """The answer of /api/tags; `modified_ns` is when the fleet was read, in ns since the epoch."""
    modified_at = rfc3339(modified_ns)
    more = {"modified_at": modified_at, "capabilities": _CAPABILITIES}
    return {"models": [_entry(card) | more for card in cards]}


def ps(cards: Iterable[ModelCard]) -> dict[str, Any]:
    """The answer of /api/ps for the models that live instances hold now."""
    more = {"expires_at": _NEVER, "size_vram": 0}
    return {"models": [_entry(card) | more | {"context_length": card.context_tokens or 0} for card in cards]}


def show(card: ModelCard, modified_ns: int) -> dict[str, Any]:
    """The answer of /api/show."""
    architecture = card.family or "unknown"
    info: dict[str, Any] = {"general.architecture": architecture, "general.basename": card.name}
    size = parameter_size(card.name)
    if size is not None and (match := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([BM])", size)):
        info["general.parameter_count"] = round(float(match[1]) * (1e9 if match[2] == "B" else 1e6))
    if card.context_tokens is not None:
        info[f"{architecture}.context_length"] = card.context_tokens
    return {
        "license": "",
        "modelfile": f"# served by Headway\nFROM {tagged(card.name)}\n",
        "parameters": "",
        "template": "",
        "details": _details(card),
        "model_info": info,
        "capabilities": _CAPABILITIES,
        "modified_at": rfc3339(modified_ns),
    }


# --- routes -------------------------------------------------------------------------------------------------
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
        return {"version": OLLAMA_VERSION, "headway": __version__}

    return router
