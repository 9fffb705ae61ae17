"""How the engines of each kind write the same answers, errors and ends. A kind speaks as its emulated server does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

import backends
from backends.sse_events import END, event, objects
from router.core.interfaces import Backend, Batch, Call, Stream
from router.core.types import Candidate

CANDIDATE = Candidate("one", "fleet-model", "engine-model", context_tokens=4096)


def chat(**fields: Any) -> Call:
    """A call for one chat; `max_output_tokens` goes beside the body."""
    bound = fields.pop("max_output_tokens", None)
    body = {"model": "fleet-model", "messages": [{"role": "user", "content": "hi"}], **fields}
    return Call("chat", body, CANDIDATE, "req-1", max_output_tokens=bound)


@dataclass(frozen=True)
class Dialect:
    """`kind` is the backend's kind; the rest is written as its engines do."""

    kind: str

    @property
    def health_path(self) -> str:
        return backends.KINDS[self.kind].health_path

    def create(self, url: str, **settings: Any) -> Backend:
        return backends.create(self.kind, url=url, candidates=[CANDIDATE], **settings)

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


async def read_all(stream: Stream) -> list[Batch]:
    batches = []
    while (batch := await stream.read()) is not None:
        batches.append(batch)
    return batches


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
