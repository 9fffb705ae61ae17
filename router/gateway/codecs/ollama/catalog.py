"""Ollama's read-only endpoints and its error bodies, built from the fleet's models."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from router.core.errors import Refusal
from router.core.quoting import cut
from router.gateway.codecs.ollama.answer import rfc3339

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


def tagged(name: str) -> str:
    """The name with its tag, as Ollama lists it; without a tag it gets `latest`."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


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


def version(headway: str) -> dict[str, str]:
    """The answer of /api/version: the API's version and the router's own."""
    return {"version": OLLAMA_VERSION, "headway": headway}


def error_body(message: str) -> bytes:
    """An error in Ollama's shape."""
    return orjson.dumps({"error": message})


def refusal_body(refusal: Refusal, model: str) -> bytes:
    """A refusal in Ollama's own words, where it has some. `model` is the client's name of the model."""
    if refusal.code == "model_not_found":
        return error_body(f"model '{cut(model)}' not found")
    if refusal.code == "server_overloaded":
        return error_body("server busy, please try again.  maximum pending requests exceeded")
    return error_body(refusal.message)
