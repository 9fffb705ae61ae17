"""Answers in OpenAI's shape translated to Ollama's: NDJSON streams, whole objects, embeddings."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from backends.engine_numbers import finish_reason as finish_reason_of
from router.core.raw_json import LongList
from router.gateway.codecs.openai.assemble import merge_tool_call
from router.gateway.codecs.openai.events import Cut, cut, event_payload, parse_event

Kind = Literal["chat", "generate"]

_NS = 1_000_000_000
#: Where engines put what a model thinks, the newer name last.
_THINKING = ("reasoning_content", "reasoning")


def rfc3339(at_ns: int) -> str:
    """A time in ns since the epoch as RFC 3339 in UTC."""
    seconds, rest_ns = divmod(at_ns, _NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"


@dataclass(frozen=True, slots=True)
class Timings:
    """What is known of an answer's times in seconds; None is left out of the answer.

    `total_s` from arrival to the last token, `load_s` until an instance took the request (queueing
    included), `prompt_eval_s` from there to the first token, `eval_s` from the first token to the last.
    """

    total_s: float | None = None
    load_s: float | None = None
    prompt_eval_s: float | None = None
    eval_s: float | None = None


def _metrics(into: dict[str, Any], usage: Mapping[str, Any] | None, timings: Timings) -> None:
    """Add the six metrics, those that are unknown or zero left out as Ollama does."""
    counts = usage or {}
    for name, value in (
        ("total_duration", timings.total_s),
        ("load_duration", timings.load_s),
        ("prompt_eval_count", counts.get("prompt_tokens")),
        ("prompt_eval_duration", timings.prompt_eval_s),
        ("eval_count", counts.get("completion_tokens")),
        ("eval_duration", timings.eval_s),
    ):
        if not isinstance(value, int | float) or value <= 0:
            continue
        number = round(value * _NS) if name.endswith("_duration") else value
        if number:
            into[name] = number


_DONE_REASONS = {"tool_calls": "stop", "function_call": "stop", "content_filter": "stop"}


def _done(
    into: dict[str, Any],
    usage: Mapping[str, Any] | None,
    finish_reason: str | None,
    timings: Timings,
    headway: Mapping[str, Any] | None,
) -> dict[str, Any]:
    into["done"] = True
    if finish_reason:
        into["done_reason"] = _DONE_REASONS.get(finish_reason, finish_reason)
    _metrics(into, usage, timings)
    if headway is not None:
        into["headway"] = headway
    return into


def _thinking(texts: Mapping[str, Any]) -> str:
    return next((value for name in _THINKING if (value := texts.get(name))), "")


def _tool_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls with their arguments as objects. One whose arguments are no JSON object was cut off; it is left
    out, for a client must not run half a call."""
    whole = []
    for number, call in enumerate(calls):
        function = call.get("function") or {}
        try:
            arguments = orjson.loads(function.get("arguments") or "{}")
        except orjson.JSONDecodeError:
            continue
        if not isinstance(arguments, dict) or not function.get("name"):
            continue
        one: dict[str, Any] = {"id": call["id"]} if call.get("id") else {}
        one["function"] = {"index": number, "name": function["name"], "arguments": arguments}
        whole.append(one)
    return whole


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _logprobs(given: Any) -> list[dict[str, Any]]:
    """Logprobs of a chat (`content` items) or of a completion (parallel lists) as Ollama's list."""
    if not isinstance(given, dict):
        return []
    if isinstance(given.get("content"), list):
        fields = ("token", "logprob", "bytes", "top_logprobs")
        return [
            {name: item[name] for name in fields if item.get(name) is not None}
            for item in given["content"]
            if isinstance(item, dict)
        ]
    tokens, logprobs, tops = map(_listed, map(given.get, ("tokens", "token_logprobs", "top_logprobs")))
    items: list[dict[str, Any]] = []
    for number, (token, logprob) in enumerate(zip(tokens, logprobs, strict=False)):
        if logprob is None:
            continue
        item: dict[str, Any] = {"token": token, "logprob": logprob}
        if number < len(tops) and isinstance(tops[number], dict):
            item["top_logprobs"] = [{"token": one, "logprob": p} for one, p in tops[number].items()]
        items.append(item)
    return items


class NdjsonStream:
    """Turns a stream's server-sent events into lines of /api/chat or /api/generate.

    `kind` is the endpoint, `model` the name as the client asked for it; the events may be chat chunks or
    completion chunks. `clock` gives ns since the epoch.
    """

    __slots__ = ("_calls", "_chat", "_clock", "_cut", "_finish_reason", "_open", "_second", "_shown")

    def __init__(self, kind: Kind, model: str, clock: Callable[[], int] = time.time_ns) -> None:
        self._chat = kind == "chat"
        self._clock = clock
        self._open = b'{"model":' + orjson.dumps(model) + b',"created_at":"'
        self._second = -1
        self._shown = b""
        self._cut: Cut | None = None
        self._calls: list[dict[str, Any]] = []
        self._finish_reason: str | None = None

    def feed(self, data: bytes) -> bytes:
        """The lines for whole events; empty when they say nothing (a role, a part of a tool call).

        Tool calls come once they are complete. Raises UpstreamError for an event that is not JSON."""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        start = self._start()
        lines: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            like = self._cut
            if like is not None and data.startswith(like.head, at):
                pieces, at, foreign = like.run(data, at)
                if pieces:
                    before, after = self._frame(like.field)
                    before = start + before
                    lines += [before + piece + after for piece in pieces if piece]
                if not foreign:
                    continue
            stop = data.find(b"\n\n", at) + 2
            stop = end if stop < 2 else stop
            line = self._event(data[at:stop], start)
            if line:
                lines.append(line)
            at = stop
        return b"".join(lines)

    def finish(
        self,
        usage: Mapping[str, Any] | None,
        finish_reason: str | None,
        timings: Timings,
        headway: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The last line: `done`, why, the six metrics in ns (left out when zero), and our own account.
        `finish_reason` falls back to the one seen in the stream."""
        start = self._start()
        message = {"message": {"role": "assistant", "content": ""}} if self._chat else {"response": ""}
        last = _done(message, usage, finish_reason or self._finish_reason, timings, headway)
        return self._take_calls(start) + start + b'",' + orjson.dumps(last)[1:] + b"\n"

    def error(self, message: str) -> bytes:
        """The line that ends a stream which failed after its first token; no `done` line follows it."""
        return orjson.dumps({"error": message}) + b"\n"

    def _start(self) -> bytes:
        """The line up to and with its time; made once for what arrived in one read."""
        second, rest_ns = divmod(self._clock(), _NS)
        if second != self._second:
            self._second = second
            self._shown = rfc3339(second * _NS)[:-10].encode()
        return self._open + self._shown + b"%09dZ" % rest_ns

    def _frame(self, field: str) -> tuple[bytes, bytes]:
        thinking = b'","thinking":"' if field in _THINKING else b""
        if self._chat:
            return b'","message":{"role":"assistant","content":"' + thinking, b'"},"done":false}\n'
        return b'","response":"' + thinking, b'","done":false}\n'

    def _event(self, event: bytes, start: bytes) -> bytes:
        payload = event_payload(event)
        if payload is None:
            return b""
        choices = parse_event(payload).get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index"):
            return b""
        texts = choice.get("delta")
        if not isinstance(texts, dict):
            texts = choice
        # Only what is passed on by itself may be cut: the rest is seen by its field.
        self._cut = cut(event, choice, texts)
        if self._cut is not None and self._cut.field not in ("content", "text", *_THINKING):
            self._cut = None
        content = texts.get("content") or texts.get("text") or texts.get("refusal") or ""
        line = self._line(start, content, _thinking(texts), _logprobs(choice.get("logprobs")))
        pieces = texts.get("tool_calls")
        for piece in pieces if isinstance(pieces, list) else ():
            merge_tool_call(self._calls, piece)
        if choice.get("finish_reason") is not None:
            self._finish_reason = finish_reason_of(choice["finish_reason"])
            line += self._take_calls(start)
        return line

    def _line(self, start: bytes, content: str, thinking: str, logprobs: list[dict[str, Any]]) -> bytes:
        if not (content or thinking or logprobs):
            return b""
        said: dict[str, Any] = (
            {"role": "assistant", "content": content} if self._chat else {"response": content}
        )
        if thinking:
            said["thinking"] = thinking
        line: dict[str, Any] = {"message": said} if self._chat else said
        if logprobs:
            line["logprobs"] = logprobs
        line["done"] = False
        return start + b'",' + orjson.dumps(line)[1:] + b"\n"

    def _take_calls(self, start: bytes) -> bytes:
        calls, self._calls = _tool_calls(self._calls), []
        if not calls or not self._chat:
            return b""
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        return start + b'",' + orjson.dumps({"message": message, "done": False})[1:] + b"\n"


def whole(
    kind: Kind,
    model: str,
    answer: Mapping[str, Any],
    timings: Timings,
    headway: Mapping[str, Any] | None = None,
    *,
    at_ns: int | None = None,
) -> dict[str, Any]:
    """The one object of a request that did not stream, from a whole OpenAI answer with its `usage`."""
    choice: Mapping[str, Any] = (answer.get("choices") or [{}])[0]
    texts: Mapping[str, Any] = choice.get("message") or choice
    content = texts.get("content") or texts.get("text") or texts.get("refusal") or ""
    into = _stamped(model, at_ns)
    said: dict[str, Any] = (
        {"role": "assistant", "content": content} if kind == "chat" else {"response": content}
    )
    if thinking := _thinking(texts):
        said["thinking"] = thinking
    if kind == "chat":
        if calls := _tool_calls(texts.get("tool_calls") or []):
            said["tool_calls"] = calls
        into["message"] = said
    else:
        into |= said
    if logprobs := _logprobs(choice.get("logprobs")):
        into["logprobs"] = logprobs
    return _done(into, answer.get("usage"), choice.get("finish_reason"), timings, headway)


def loaded(kind: Kind, model: str, reason: str, *, at_ns: int | None = None) -> dict[str, Any]:
    """The answer to a request that only loads or unloads the model (`Translated.load`)."""
    into = _stamped(model, at_ns)
    into |= {"message": {"role": "assistant", "content": ""}} if kind == "chat" else {"response": ""}
    return _done(into, None, reason, Timings(), None)


def _stamped(model: str, at_ns: int | None) -> dict[str, Any]:
    return {"model": model, "created_at": rfc3339(time.time_ns() if at_ns is None else at_ns)}


# --- embeddings --------------------------------------------------------------------------------------
def _vectors(answer: Mapping[str, Any]) -> list[list[float]]:
    items = sorted(answer.get("data") or [], key=lambda item: item.get("index") or 0)
    return [item["embedding"] for item in items]


_NUMBERS = frozenset({int, float})


#: Numbers between two turns of the event loop. A vector with more of them is left as it is.
_STEP, _MOST_NUMBERS = 8192, 262_144


async def at_length_1(answer: Mapping[str, Any]) -> None:
    """Bring an answer's vectors to length 1, as Ollama gives them, where the engine has not; the event loop runs between
    the steps."""
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
    answer: Mapping[str, Any], model: str, timings: Timings, headway: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The answer of /api/embed, of vectors `at_length_1`; an empty `answer` gives the one to a request that only loads."""
    into: dict[str, Any] = {"model": model, "embeddings": _vectors(answer)}
    usage = answer.get("usage") or {}
    counts = {"prompt_tokens": usage.get("prompt_tokens")}
    _metrics(into, counts, Timings(total_s=timings.total_s, load_s=timings.load_s))
    if headway is not None:
        into["headway"] = headway
    return into


def embeddings_from_openai(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the older /api/embeddings."""
    vectors = _vectors(answer)
    return {"embedding": vectors[0] if vectors else []}
