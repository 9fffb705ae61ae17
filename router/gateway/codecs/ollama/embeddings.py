"""Embeddings in Ollama's shape."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import orjson

from router.core.raw_json import LongList
from router.gateway.codecs.ollama.answer import add_metrics


def _vectors(answer: Mapping[str, Any]) -> list[list[float]]:
    items = sorted(answer.get("data") or [], key=lambda item: item.get("index") or 0)
    return [item["embedding"] for item in items]


_NUMBERS = frozenset({int, float})


#: Numbers between two turns of the event loop. A vector with more than the second is not scaled.
_STEP, _MOST_NUMBERS = 8192, 262_144


async def at_length_1(answer: Mapping[str, Any]) -> None:
    """Scale an answer's vectors to length 1, as Ollama does. The event loop runs between the steps."""
    done = 0
    for item in answer.get("data") or ():
        vector = item["embedding"]
        unit = _unit(vector)
        if unit is not vector:
            item["embedding"] = LongList.of(unit, orjson.dumps(unit))
        done += len(vector)
        if done > _STEP:
            done = 0
            await asyncio.sleep(0)


def _unit(vector: list[float]) -> list[float]:
    if len(vector) > _MOST_NUMBERS or not all(type(value) in _NUMBERS for value in vector):
        return vector
    length = math.hypot(*vector)
    if length == 0 or abs(length - 1) < 1e-4:
        return vector
    return [value / length for value in vector]


def embed_from_openai(
    answer: Mapping[str, Any], model: str, headway: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The answer of /api/embed, for vectors scaled by `at_length_1`. An empty `answer` is that of a request that only loads."""
    into: dict[str, Any] = {"model": model, "embeddings": _vectors(answer)}
    prompt_tokens = (answer.get("usage") or {}).get("prompt_tokens")
    add_metrics(into, {"prompt_tokens": prompt_tokens}, headway)
    if headway is not None:
        into["headway"] = headway
    return into


def embeddings_from_openai(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the older /api/embeddings."""
    vectors = _vectors(answer)
    return {"embedding": vectors[0] if vectors else []}
