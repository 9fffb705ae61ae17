"""Answers in Ollama's shape, or parts of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from backends.bounded_json import loads_with_halves
from router.core.errors import Refusal
from router.core.quoting import cut
from router.core.raw_json import LongList
from router.gateway.codecs.codec import listed, said_in, texts_of

#: A path of the API, after /api/.
Endpoint = Literal["chat", "generate", "embed", "embeddings"]

NS = 1_000_000_000
_NS_PER_MS = 1_000_000


def rfc3339(at_ns: int) -> str:
    """A time in ns since the epoch as RFC 3339 in UTC."""
    seconds, rest_ns = divmod(at_ns, NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"


def add_metrics(
    into: dict[str, Any], usage: Mapping[str, Any] | None, headway: Mapping[str, Any] | None
) -> None:
    """Add the six metrics, durations in ns. Like Ollama, leave out those that are unknown or zero.

    `load_duration` is the time until an instance took the request, queueing included, `prompt_eval_duration` the time from
    there to the first token. All but the total are unknown for an answer without a first token.
    """
    counts, times = usage or {}, headway or {}
    total_ms, ttft_ms, wait_ms = times.get("e2e_ms"), times.get("ttft_ms"), times.get("queue_wait_ms") or 0.0
    load_ms = prompt_ms = eval_ms = None
    if total_ms is not None and ttft_ms is not None:
        load_ms, prompt_ms, eval_ms = wait_ms, ttft_ms - wait_ms, total_ms - ttft_ms
    for name, value in (
        ("total_duration", total_ms),
        ("load_duration", load_ms),
        ("prompt_eval_count", counts.get("prompt_tokens")),
        ("prompt_eval_duration", prompt_ms),
        ("eval_count", counts.get("completion_tokens")),
        ("eval_duration", eval_ms),
    ):
        if not isinstance(value, int | float) or value <= 0:
            continue
        number = round(value * _NS_PER_MS) if name.endswith("_duration") else value
        if number:
            into[name] = number


_DONE_REASONS = {"tool_calls": "stop", "function_call": "stop", "content_filter": "stop"}


def done(
    into: dict[str, Any],
    usage: Mapping[str, Any] | None,
    finish_reason: str | None,
    headway: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Add the members of an answer's end: `done`, the reason, the metrics, the `headway` object."""
    into["done"] = True
    if finish_reason:
        into["done_reason"] = _DONE_REASONS.get(finish_reason, finish_reason)
    add_metrics(into, usage, headway)
    if headway is not None:
        into["headway"] = headway
    return into


def written(
    chat: bool, content: str = "", thinking: str = "", calls: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The members of an answer or line for what the model wrote, in a `chat` or a generation."""
    said: dict[str, Any] = {"role": "assistant", "content": content} if chat else {"response": content}
    if thinking:
        said["thinking"] = thinking
    if calls:
        said["tool_calls"] = calls
    return {"message": said} if chat else said


def said_by(texts: Mapping[str, Any]) -> tuple[str, str]:
    """The text and the reasoning of a message, a delta, or a completion."""
    content, thinking = said_in(texts)
    return content or texts_of(texts.get("text") or texts.get("refusal"))[0], thinking


def tool_calls_of(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls with their arguments as objects. A call whose arguments are not a JSON object was cut off: it is left out,
    because a client must not run half a call."""
    complete = []
    for number, call in enumerate(calls):
        function = call.get("function") or {}
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str):  # some engines send an object
            try:
                arguments = loads_with_halves(arguments.encode())
            except orjson.JSONDecodeError:
                continue
        if not isinstance(arguments, dict) or not function.get("name"):
            continue
        one: dict[str, Any] = {"id": call["id"]} if call.get("id") else {}
        one["function"] = {"index": number, "name": function["name"], "arguments": arguments}
        complete.append(one)
    return complete


def logprobs_of(given: Any) -> list[dict[str, Any]]:
    """Logprobs of a chat (`content` items) or of a completion (parallel lists) as Ollama's list."""
    if not isinstance(given, dict):
        return []
    if isinstance(given.get("content"), list):
        fields = ("token", "logprob", "bytes", "top_logprobs")
        return [
            {
                name: item[name] for name in fields if item.get(name) not in (None, [])
            }  # as Ollama, no empty lists
            for item in given["content"]
            if isinstance(item, dict)
        ]
    tokens, logprobs, tops = map(listed, map(given.get, ("tokens", "token_logprobs", "top_logprobs")))
    items: list[dict[str, Any]] = []
    for number, (token, logprob) in enumerate(zip(tokens, logprobs, strict=False)):
        if logprob is None:
            continue
        item: dict[str, Any] = {"token": token, "logprob": logprob}
        if number < len(tops) and isinstance(tops[number], dict):
            item["top_logprobs"] = [{"token": one, "logprob": p} for one, p in tops[number].items()]
        items.append(item)
    return items


# --- embeddings ---------------------------------------------------------------------------------------------
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


# --- errors -------------------------------------------------------------------------------------------------
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
