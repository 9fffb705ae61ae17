"""How the engines of each kind write the same answers, errors and ends. A kind speaks as its emulated server does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

import backends
from backends.sse_events import END, event, objects
from router.core.errors import UpstreamError
from router.core.interfaces import Backend, Batch, Call
from router.core.types import Candidate
from tests.contract.backends.fakes import FakeEngine, Script

CANDIDATE = Candidate("one", "fleet-model", "engine-model", context_tokens=4096)


def chat(**fields: Any) -> Call:
    """A call for one chat; `max_output_tokens` goes beside the body."""
    bound = fields.pop("max_output_tokens", None)
    body = {"model": "fleet-model", "messages": [{"role": "user", "content": "hi"}], **fields}
    return Call("chat", body, CANDIDATE, "req-1", max_output_tokens=bound)


@asynccontextmanager
async def scripted(
    kind: str, script: Script, *, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[tuple[FakeEngine, Backend]]:
    """An engine that follows a script, and the backend of this kind for it."""
    async with FakeEngine(script, tls) as engine:
        backend = backends.create(kind, **{"url": engine.url, "candidates": [CANDIDATE]} | settings)
        try:
            yield engine, backend
        finally:
            await backend.aclose()


@dataclass(frozen=True)
class Dialect:
    """`kind` is the backend's kind; the rest is written as its engines do."""

    kind: str

    @property
    def health_path(self) -> str:
        return backends.KINDS[self.kind].health_path

    def create(self, url: str, **settings: Any) -> Backend:
        return backends.create(self.kind, url=url, candidates=[CANDIDATE], **settings)

    def over(
        self, script: Script, **settings: Any
    ) -> AbstractAsyncContextManager[tuple[FakeEngine, Backend]]:
        """As `scripted`."""
        return scripted(self.kind, script, **settings)

    def text(self, content: str) -> bytes:
        raise NotImplementedError

    def end(self, output_tokens: int) -> bytes:
        """What follows the last token: reason, usage, end mark."""
        raise NotImplementedError

    def error_event(self) -> bytes:
        raise NotImplementedError

    def error_body(self, message: str, status: int) -> bytes:
        raise NotImplementedError

    chat_path = "/v1/chat/completions"
    nothing = b": still here\n\n"  # bytes of a body that say nothing


class OpenAIDialect(Dialect):
    def _chunk(self, payload: Mapping[str, Any]) -> bytes:
        head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "engine-model"}
        return event(orjson.dumps({**head, **payload}))

    def text(self, content: str) -> bytes:
        choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": None}
        return self._chunk({"choices": [choice]})

    def end(self, output_tokens: int) -> bytes:
        usage = {"prompt_tokens": 9, "completion_tokens": output_tokens, "total_tokens": 9 + output_tokens}
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
        return self._chunk({"choices": [last]}) + self._chunk({"choices": [], "usage": usage}) + END

    def error_event(self) -> bytes:
        error = {"message": "secret", "type": "ServiceUnavailableError", "param": None, "code": 503}
        return event(orjson.dumps({"error": error})) + END

    def error_body(self, message: str, status: int) -> bytes:
        return orjson.dumps({"error": {"message": message, "type": "E", "param": "p", "code": status}})


class OllamaDialect(Dialect):
    chat_path = "/api/chat"
    nothing = b"\n"

    def text(self, content: str) -> bytes:
        message = {"role": "assistant", "content": content}
        return orjson.dumps({"model": "engine-model", "message": message, "done": False}) + b"\n"

    def end(self, output_tokens: int) -> bytes:
        last = {
            "model": "engine-model",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 9,
            "eval_count": output_tokens,
        }
        return orjson.dumps(last) + b"\n"

    def error_event(self) -> bytes:
        return b'{"error":"secret"}\n'

    def error_body(self, message: str, status: int) -> bytes:
        del status
        return orjson.dumps({"error": message})


#: By the emulated server that speaks it.
_DIALECTS = {"vllm": OpenAIDialect, "ollama": OllamaDialect}
DIALECTS = [_DIALECTS[kind.emulator](kind.name) for kind in backends.KINDS.values()]


class Reader:
    """A sink that takes one batch at a time: `read` gives the next one, None at a clean end, or raises the failure. While
    nobody reads, the call is paused."""

    def __init__(self, backend: Backend, call: Call) -> None:
        self.answer: dict[str, Any] | None = None
        self.was_sent = 0
        self._batches: list[Batch] = []
        self._end: Exception | bool = False
        self._changed = asyncio.Event()
        self._call = backend.start(call, self)

    def sent(self) -> None:
        self.was_sent += 1

    def take(self, batch: Batch) -> bool:
        assert not self._end
        self._batches.append(batch)
        self._changed.set()
        return True

    def ended(self, answer: dict[str, Any] | None) -> None:
        assert not self._end
        self.answer = answer
        self._end = True
        self._changed.set()

    def failed(self, error: Exception) -> None:
        assert not self._end
        self._end = error
        self._changed.set()

    async def read(self) -> Batch | None:
        if not self._batches and not self._end:
            self._changed.clear()
            self._call.resume()
            await self._changed.wait()
        if self._batches:
            return self._batches.pop(0)
        if isinstance(self._end, Exception):
            raise self._end
        return None

    def abort(self) -> None:
        """Give the call up; whoever reads gets an UpstreamError."""
        self._call.abort()
        if not self._end:
            self.failed(UpstreamError("given up"))


def stream(backend: Backend, call: Call) -> Reader:
    """Start a call. Raises UpstreamError if it cannot be sent."""
    return Reader(backend, call)


async def read_all(reader: Reader) -> list[Batch]:
    batches = []
    while (batch := await reader.read()) is not None:
        batches.append(batch)
    return batches


async def streamed(backend: Backend, call: Call) -> list[Batch]:
    """The batches of a whole stream; cancelled, it gives the call up."""
    reader = stream(backend, call)
    try:
        return await read_all(reader)
    finally:
        reader.abort()


async def complete(backend: Backend, call: Call) -> dict[str, Any]:
    """The answer in one piece."""
    reader = stream(backend, call._replace(streams=False))
    assert await read_all(reader) == []
    assert reader.answer is not None
    return reader.answer


def answer_of(batches: list[Batch]) -> tuple[str, int, Any, str | None]:
    """Text, tokens, usage and finish reason of a whole answer; asserts that the events are OpenAI's."""
    content, tokens, usage, finish = "", 0, None, None
    for batch in batches:
        tokens += batch.tokens
        usage = batch.usage or usage
        finish = batch.finish_reason or finish
        assert batch.data == b"" or batch.data.endswith(b"\n\n")
        for payload in objects(batch.data):
            assert payload["model"] == "fleet-model"
            (choice,) = payload["choices"]
            delta = choice.get("delta", choice)
            content += delta.get("content") or delta.get("text") or ""
    return content, tokens, usage, finish
