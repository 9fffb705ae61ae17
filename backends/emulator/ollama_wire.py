"""Ollama's bytes: NDJSON of its native API, and the SSE of its OpenAI-compatible one."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import orjson

from backends.emulator.generation import Choice, Generation, Wire
from backends.emulator.ollama_catalog import rfc3339
from backends.emulator.ollama_request import Job, Options
from backends.emulator.text import seed_of
from backends.emulator.vllm_wire import FINGERPRINT, token_id, token_ids, token_logprobs
from backends.sse_events import END, event


def openai_error(status: int, message: str) -> bytes:
    """The error object of Ollama's /v1."""
    kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}})


def _metrics(generation: Generation) -> dict[str, int]:
    """Ollama's six figures; zeros are left out. Durations are the model's over its speed."""
    choice, speed = generation.choices[0], generation.driver.speed
    sequence = choice.sequence
    arrived = generation.submitted_at
    ready = sequence.runner_at_s if sequence.runner_at_s is not None else arrived
    admitted = sequence.admitted_at_s if sequence.admitted_at_s is not None else ready
    first = choice.first_at if choice.first_at is not None else admitted
    last = max(choice.last_at, first)

    def ns(model_s: float) -> int:
        return max(0, int(model_s / speed * 1e9))

    found = {
        "total_duration": ns(max(last, ready) - arrived),
        "load_duration": ns(ready - arrived),
        "prompt_eval_count": sequence.prompt_tokens,
        "prompt_eval_duration": ns(first - admitted),
        "eval_count": choice.produced,
        "eval_duration": ns(last - first),
    }
    return {name: value for name, value in found.items() if value}


class NativeWire(Wire):
    """/api/chat (`chat`) and /api/generate. `load_reason` is "load" or "unload" for a request without a prompt."""

    content_type = "application/x-ndjson"
    head_first = False

    def __init__(self, chat: bool, model: str, job: Job) -> None:
        self._chat = chat
        self._model = model
        self._job = job
        self.prompt = b""
        self.load_reason: str | None = None

    def prepare(self, choice: Choice) -> None:
        model = orjson.dumps(self._model)
        choice.head = b'{"model":' + model + b',"created_at":"'
        choice.tail = b'"},"done":false}\n' if self._chat else b'","done":false}\n'

    def pieces(self, choice: Choice, start: int, stop: int, last: bool) -> bytes:
        if start == stop:
            return b""
        middle = b'Z","message":{"role":"assistant","content":"' if self._chat else b'Z","response":"'
        stamp = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds").encode()
        line = choice.head + stamp + middle + choice.answer.escaped(start, stop) + choice.tail
        if self._job.logprobs is None:
            return line
        logprobs = orjson.dumps(self._logprobs(choice, start, stop))
        return line.removesuffix(b"}\n") + b',"logprobs":' + logprobs + b"}\n"

    def closing(self, generation: Generation) -> bytes:
        return orjson.dumps(self._last(generation, "")) + b"\n"

    def whole(self, generation: Generation) -> bytes:
        text = "".join(choice.answer.raw(0, choice.produced) for choice in generation.choices)
        found = self._last(generation, text)
        if self._job.logprobs is not None and generation.choices:
            found["logprobs"] = self._logprobs(generation.choices[0], 0, generation.choices[0].produced)
        return orjson.dumps(found)

    def _logprobs(self, choice: Choice, start: int, stop: int) -> list[dict[str, Any]]:
        return token_logprobs(choice, start, stop, seed_of(self.prompt), self._job.logprobs or 0)

    def stream_error(self, status: int, message: str) -> bytes:
        return self.error_body(status, message) + b"\n"

    def error_body(self, status: int, message: str) -> bytes:
        return orjson.dumps({"error": message})

    def _last(self, generation: Generation, text: str) -> dict[str, Any]:
        found: dict[str, Any] = {"model": self._model, "created_at": rfc3339(datetime.now(UTC))}
        if self._chat:
            found["message"] = {"role": "assistant", "content": text}
        else:
            found["response"] = text
        found["done"] = True
        if self.load_reason is not None:
            found["done_reason"] = self.load_reason
            return found
        choice = generation.choices[0]
        found["done_reason"] = choice.finish_reason
        if not self._chat and not self._job.raw:
            pieces = (choice.answer.piece(index) for index in range(choice.produced))
            found["context"] = token_ids(self.prompt) + [token_id(piece.encode()) for piece in pieces]
        return found | _metrics(generation)


class OpenAiWire(Wire):
    """Ollama's /v1/chat/completions (`chat`) and /v1/completions."""

    content_type = "text/event-stream"
    head_first = False

    def __init__(self, chat: bool, model: str, job: Job) -> None:
        self._chat = chat
        self._model = model
        self._include_usage = job.include_usage
        started_s = time.time()
        self._created = int(started_s)
        # Ollama's ids are a number below 999: they are not unique.
        number = int(started_s * 1e6) % 999
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{number}"

    def prepare(self, choice: Choice) -> None:
        mark = "\0"
        head, _, tail = self._event(mark, None, first=False).partition(orjson.dumps(mark)[1:-1])
        choice.head, choice.tail = head, tail

    def pieces(self, choice: Choice, start: int, stop: int, last: bool) -> bytes:
        if start == stop:
            return b""
        if start == 0:
            return self._event(choice.answer.raw(start, stop), None, first=True)
        return choice.head + choice.answer.escaped(start, stop) + choice.tail

    def closing(self, generation: Generation) -> bytes:
        data = self._event(None, generation.choices[0].finish_reason, first=False)
        if self._include_usage:
            chunk = self._envelope([])
            chunk["usage"] = self._usage(generation)
            data += event(orjson.dumps(chunk))
        return data + END

    def whole(self, generation: Generation) -> bytes:
        choice = generation.choices[0]
        text = choice.answer.raw(0, choice.produced)
        part: dict[str, Any] = {"index": 0}
        if self._chat:
            part["message"] = {"role": "assistant", "content": text}
        else:
            part["text"] = text
        part["finish_reason"] = choice.finish_reason
        body = self._envelope([part])
        body["object"] = "chat.completion" if self._chat else "text_completion"
        body["usage"] = self._usage(generation)
        return orjson.dumps(body)

    def stream_error(self, status: int, message: str) -> bytes:
        # Ollama decodes the native error line as an empty answer: the client gets neither the error nor [DONE].
        return self._event("", None, first=False)

    def error_body(self, status: int, message: str) -> bytes:
        return openai_error(status, message)

    def _event(self, text: str | None, finish_reason: str | None, *, first: bool) -> bytes:
        part: dict[str, Any] = {"index": 0}
        if self._chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            if text is not None:
                delta["content"] = text
            part["delta"] = delta
        else:
            part["text"] = text or ""
        part["finish_reason"] = finish_reason
        chunk = self._envelope([part])
        if not self._chat and self._include_usage:
            chunk["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return event(orjson.dumps(chunk))

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "system_fingerprint": FINGERPRINT,  # Ollama itself writes "fp_ollama"
            "choices": choices,
        }

    def _usage(self, generation: Generation) -> dict[str, int]:
        choice = generation.choices[0]
        prompt = choice.sequence.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": choice.produced,
            "total_tokens": prompt + choice.produced,
        }


class EmbeddingWire(NativeWire):
    """/api/embed, /api/embeddings ("legacy") and /v1/embeddings ("openai"); never streamed."""

    def __init__(self, api: str, model: str, vectors: list[list[float]]) -> None:
        super().__init__(False, model, Job("", Options()))
        self._api = api
        self._vectors = vectors

    def whole(self, generation: Generation) -> bytes:
        tokens = sum(choice.sequence.prompt_tokens for choice in generation.choices)
        if self._api == "legacy":
            return orjson.dumps({"embedding": self._vectors[0] if self._vectors else []})
        if self._api == "openai":
            data = [
                {"object": "embedding", "embedding": vector, "index": index}
                for index, vector in enumerate(self._vectors)
            ]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return orjson.dumps({"object": "list", "data": data, "model": self._model, "usage": usage})
        found: dict[str, Any] = {"model": self._model, "embeddings": self._vectors}
        figures = _metrics(generation)
        found |= {name: figures[name] for name in ("total_duration", "load_duration") if name in figures}
        if tokens:
            found["prompt_eval_count"] = tokens
        return orjson.dumps(found)

    def error_body(self, status: int, message: str) -> bytes:
        return openai_error(status, message) if self._api == "openai" else super().error_body(status, message)
