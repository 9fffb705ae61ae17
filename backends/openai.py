"""Kind `openai`, any server with OpenAI's API, and the adapter of all kinds whose API is OpenAI's.

The adapter sends the client's body with the engine's model name, streaming, usage and the output bound set.
Authorization is the operator's; no header of the client is forwarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from backends.endpoint import Endpoint, EngineAdapter, mismatches
from backends.engine_numbers import token_count
from backends.json_calls import JsonCall, json_answer, sound_answer
from backends.kind import EngineKind
from backends.metrics import load_report
from backends.scanning import EventFormat, SseScanner, StreamedCall
from router.core.errors import UpstreamError
from router.core.interfaces import COUNTED_FIELDS, Call, OpenCall, Sink
from router.core.types import LoadReport

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "tokenize": "/tokenize",
}
#: Scrapes left out after an engine said that it has no metrics.
_SCRAPES_SKIPPED = 30


def generation_body(call: Call, chat_bound: str, *, counts_each: bool = False) -> dict[str, Any]:
    """The body of a streamed generation request. `counts_each`: the engine can tell the usage so far in every
    event (SGLang and others know it too, but an `openai` instance may be anything)."""
    body = bounded_body(call, chat_bound)
    body["stream"] = True
    options = body.get("stream_options")
    wanted = {**options, "include_usage": True} if isinstance(options, dict) else {"include_usage": True}
    if call.usage_each and counts_each:
        wanted["continuous_usage_stats"] = True
    body["stream_options"] = wanted
    return body


def non_streaming_body(call: Call, chat_bound: str) -> dict[str, Any]:
    """The body of a request for an answer in one piece."""
    body = bounded_body(call, chat_bound)
    if call.api != "embeddings":
        body["stream"] = False
        body.pop("stream_options", None)
    return body


def bounded_body(call: Call, chat_bound: str) -> dict[str, Any]:
    """A copy of the client's body with the engine's model name and the smaller of the client's and the
    router's output bound, under the name that the client used (never under both)."""
    body, api = dict(call.body), call.api
    body["model"] = call.candidate.upstream_model
    if api == "embeddings":
        return body
    if api == "completions" and "raw" in body:
        del body["raw"]  # of Ollama's API; here every prompt is
    both = api == "chat" and "max_completion_tokens" in body
    names = ("max_completion_tokens", "max_tokens") if both else ("max_tokens",)
    keep, bound = None, call.max_output_tokens
    for name in names:
        given = body.get(name)
        if type(given) is int:
            keep = keep or name
            bound = given if bound is None or given < bound else bound
    if bound is not None:
        if keep is None:
            keep = next((n for n in names if n in body), chat_bound if api == "chat" else "max_tokens")
        for name in names:
            if name != keep and name in body:
                del body[name]
        body[keep] = bound
    return body


def _salt_cache(call: Call, body: dict[str, Any]) -> None:
    """Have vLLM keep the prompt apart in its prefix cache. A client's own salt divides its key's part further: taken as
    it is, it could be another key's."""
    own = body.get("cache_salt")
    body["cache_salt"] = call.cache_salt if not isinstance(own, str) else f"{call.cache_salt}:{own}"


def _prompts(body: Mapping[str, Any]) -> int:
    """How many prompts a body has; its answer has `n` choices for each."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


class OpenAIBackend(EngineAdapter):
    """One instance of an engine with OpenAI's API; `router.core.interfaces.Backend`."""

    def __init__(self, kind: EngineKind, endpoint: Endpoint) -> None:
        """Raises as `EngineAdapter`."""
        super().__init__(kind, endpoint, PATHS)
        self._tokenizes = kind.tokenizes
        self._skip_scrapes = 0
        self._formats = {"chat": EventFormat(), "completions": EventFormat()}

    def start(self, call: Call, sink: Sink) -> OpenCall:
        kind = self._kind
        streams = call.streams and call.api != "embeddings"
        if streams:
            body = generation_body(call, kind.chat_bound, counts_each=kind.counts_each)
        else:
            body = non_streaming_body(call, kind.chat_bound)
        if call.cache_salt is not None and kind.salts_cache and call.api != "embeddings":
            _salt_cache(call, body)
        head, value = self._heads[call.api], call.request_id_value
        if kind.uuid_ids:
            value = f"{call.request_id.removeprefix('req_'):0<32}{value.removeprefix(call.request_id)}"
        if not streams:
            read, vectors = partial(_renamed, call), call.api == "embeddings"
            return JsonCall(self.pool, head, value, body, sink, read, vectors=vectors).start()
        prompts, n = _prompts(body), body.get("n")
        scanner = SseScanner(
            call.candidate.model,
            choices=prompts * (n if type(n) is int else 1),
            prompts=prompts,
            collector=None if call.usage_each else call.collector,
            usage_collector=call.usage_collector,
            hides_usage=call.collector is None
            and not (call.usage_each or body["stream_options"].get("continuous_usage_stats")),
            event_format=self._formats[call.api],
        )
        return StreamedCall(self.pool, head, value, body, scanner, sink).start()

    async def count_tokens(self, call: Call) -> int | None:
        if not self._tokenizes:
            return None
        model = call.candidate.upstream_model
        if call.api == "chat":
            fields = {name: call.body[name] for name in COUNTED_FIELDS if name in call.body}
            return await self._tokenize(call.request_id, {"model": model, **fields})
        prompt = call.body.get("input" if call.api == "embeddings" else "prompt")
        if isinstance(prompt, str):
            return await self._tokenize(call.request_id, {"model": model, "prompt": prompt})
        if not isinstance(prompt, list):
            return None
        total = 0
        for part in prompt:  # texts, token ids, or lists of token ids
            if isinstance(part, str):
                count = await self._tokenize(call.request_id, {"model": model, "prompt": part})
                if count is None:
                    return None
                total += count
            else:
                total += len(part) if isinstance(part, list) else 1
        return total

    async def load(self) -> LoadReport:
        if self._skip_scrapes > 0:
            self._skip_scrapes -= 1
            return LoadReport()
        status, text = await self._control.get("/metrics")
        if status != 200:
            self._skip_scrapes = _SCRAPES_SKIPPED
            return LoadReport()
        return load_report(text)

    async def mismatches(self) -> list[str]:
        entries = await self._listed("/v1/models", "data")
        contexts = {name: _context(each) for each in entries if isinstance(name := each.get("id"), str)}
        return list(mismatches(self._candidates, contexts))

    async def _tokenize(self, request_id: str, body: dict[str, Any]) -> int | None:
        try:
            answer = await json_answer(self.pool, self._heads["tokenize"], request_id, body)
        except UpstreamError as error:
            if error.status in {404, 405, 501}:  # also a router or proxy before the engine
                self._tokenizes = False
                return None
            raise
        return token_count(answer.get("count"))


def _context(entry: Mapping[str, Any]) -> Any:
    """The context of a listed model in tokens: vLLM's and SGLang's `max_model_len`, llama-server's `n_ctx` (of one slot)."""
    meta = entry.get("meta")
    return entry.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)


def _renamed(call: Call, answer: dict[str, Any]) -> dict[str, Any]:
    """A sound answer under the fleet's name of its model."""
    answer["model"] = call.candidate.model
    choices = answer.get("choices")
    if "timings" in answer and isinstance(choices, list) and len(choices) > 1:
        answer.pop("usage", None)  # llama-server's is of one choice
    return sound_answer(answer, call)


OPENAI = EngineKind(
    name="openai",
    adapter=OpenAIBackend,
    health_path="/v1/models",
    emulator="vllm",
    chat_bound="max_completion_tokens",
    takes_base_url=True,  # providers have it at /v1beta/openai, /api/v3, /inference
    uuid_ids=True,  # llama-cpp-python refuses any other `x-request-id`
)
