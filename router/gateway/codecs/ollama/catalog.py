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

#: The release of Ollama whose API is spoken here; clients compare it to turn features on.
OLLAMA_VERSION = "0.12.11"

_NEVER = "9999-12-31T23:59:59Z"  # a model of the fleet is not unloaded by the router
_SIZE = re.compile(
    r"(?:^|[-_:/ ])([0-9]{1,9}x)?([0-9]{1,9}(?:\.[0-9]{1,9})?)([bm])(?=$|[-_:/. ])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What the catalogue tells of one model; None is unknown. `size_bytes` is that of its weights."""

    name: str
    family: str | None = None
    quantization: str | None = None
    context_tokens: int | None = None
    parameter_size: str | None = None
    size_bytes: int | None = None
    capabilities: tuple[str, ...] = ("completion", "tools")


def tagged(name: str) -> str:
    """The name as Ollama lists it: with its tag, `latest` if it has none."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def parameter_size(name: str) -> str | None:
    """The parameter count that a model's name tells (`llama-3.1-8b` -> `8.0B`); None if it tells none."""
    match = _SIZE.search(name)
    if match is None:
        return None
    experts, number, unit = match.groups()
    return f"{experts.lower()}{number}{unit.upper()}" if experts else f"{float(number):.1f}{unit.upper()}"


def _digest(name: str) -> str:
    """A stable id in a digest's form. The weights are the engines'; the router knows the name only."""
    return hashlib.sha256(name.encode()).hexdigest()


def _details(card: ModelCard) -> dict[str, Any]:
    details: dict[str, Any] = {
        "parent_model": "",
        "format": "",
        "family": card.family or "",
        "families": [card.family] if card.family else None,
        "parameter_size": card.parameter_size or parameter_size(card.name) or "",
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
        "size": card.size_bytes or 0,  # clients read a plain integer: 0 where it is unknown
        "digest": _digest(card.name),
        "details": _details(card),
    }


def tags(cards: Iterable[ModelCard], modified_ns: int) -> dict[str, Any]:
    """The answer of /api/tags; `modified_ns` is when the fleet was read, in ns since the epoch."""
    modified_at = rfc3339(modified_ns)
    return {
        "models": [
            _entry(card) | {"modified_at": modified_at, "capabilities": list(card.capabilities)}
            for card in cards
        ]
    }


def ps(cards: Iterable[ModelCard], expires_ns: int | None = None) -> dict[str, Any]:
    """The answer of /api/ps for the models that live instances hold now."""
    expires_at = _NEVER if expires_ns is None else rfc3339(expires_ns)
    return {
        "models": [
            _entry(card)
            | {
                "expires_at": expires_at,
                "size_vram": card.size_bytes or 0,
                "context_length": card.context_tokens or 0,
            }
            for card in cards
        ]
    }


def show(card: ModelCard, modified_ns: int) -> dict[str, Any]:
    """The answer of /api/show."""
    architecture = card.family or "unknown"
    info: dict[str, Any] = {"general.architecture": architecture, "general.basename": card.name}
    size = card.parameter_size or parameter_size(card.name)
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
        "capabilities": list(card.capabilities),
        "modified_at": rfc3339(modified_ns),
    }


def version(headway: str) -> dict[str, str]:
    """The answer of /api/version: the API's version, and the router's own beside it."""
    return {"version": OLLAMA_VERSION, "headway": headway}


def error_body(message: str) -> bytes:
    """An error in Ollama's shape."""
    return orjson.dumps({"error": message})


def refusal_body(refusal: Refusal, model: str) -> bytes:
    """A refusal as Ollama words it, where it has words of its own; `model` is the name as asked."""
    if refusal.code == "model_not_found":
        return error_body(f"model '{cut(model)}' not found")
    if refusal.code == "server_overloaded":
        return error_body("server busy, please try again.  maximum pending requests exceeded")
    return error_body(refusal.message)
