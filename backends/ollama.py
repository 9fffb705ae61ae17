"""Kind `ollama`: the native API, since Ollama's OpenAI endpoint hides errors and cannot set the context.

Facts: github.com/ollama/ollama, `server/routes.go`, `api/types.go`, `docs/api.md`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from backends import bounded_json
from backends.control import Control
from backends.http1 import Origin, request_head, tls_context
from backends.json_calls import engine_headers, json_object, post_json, sound_answer
from backends.ndjson import NdjsonScanner
from backends.ollama_bodies import chat_body, embed_body, embeddings_answer, generate_body, whole_answer
from backends.pool import Pool
from backends.stream import EngineStream
from router.core.errors import UpstreamError
from router.core.interfaces import Call
from router.core.types import Candidate, Capability, LoadReport

PATHS = {"chat": "/api/chat", "completions": "/api/generate", "embeddings": "/api/embed"}

#: What its API has no place for; `backends.ollama_bodies` refuses it too.
UNSUPPORTED = frozenset(
    {
        Capability.SEVERAL_ANSWERS,
        Capability.SEVERAL_PROMPTS,
        Capability.PROMPTS_AS_IDS,
        Capability.ECHO,
        Capability.IMAGES_BY_URL,
        Capability.OTHER_MEDIA,
    }
)


def local_name(name: str) -> str:
    """A model's name as Ollama compares it: any case, with its tag."""
    name = name.lower()
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


class OllamaBackend:
    """One Ollama server; `router.core.interfaces.Backend`."""

    kind = "ollama"

    def __init__(
        self,
        *,
        url: str,
        candidates: Sequence[Candidate] = (),
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ca_file: str | None = None,
        connect_timeout_s: float = 5.0,
        idle_timeout_s: float = 60.0,
        control_timeout_s: float = 5.0,
        session: aiohttp.ClientSession | None = None,
        keep_alive: str | int | None = None,
    ) -> None:
        """The `context_tokens` of `candidates` are sent as `num_ctx` with every request for their model
        (the greatest where candidates share one); a model without it keeps Ollama's own. `keep_alive` is
        sent only if given.

        Raises ValueError for a bad url or header, OSError if `ca_file` cannot be read.
        """
        origin = Origin.parse(url)
        tls = tls_context(ca_file) if origin.tls else None
        own_headers = engine_headers(api_key, headers)
        self.pool = Pool(origin, tls=tls, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s)
        self._heads = {api: request_head(origin, path, own_headers) for api, path in PATHS.items()}
        self._control = Control(
            origin, headers=own_headers, tls=tls, session=session, timeout_s=control_timeout_s
        )
        self._keep_alive = keep_alive
        self._candidates = tuple(candidates)
        self._num_ctx: dict[str, int] = {}
        for candidate in candidates:
            if candidate.context_tokens is not None:
                name = local_name(candidate.upstream_model)
                self._num_ctx[name] = max(self._num_ctx.get(name, 0), candidate.context_tokens)

    @property
    def busy(self) -> int:
        return self.pool.busy_connections

    async def stream(self, call: Call) -> EngineStream:
        body = self._body(call, stream=True)
        connection = await post_json(self.pool, self._heads[call.api], call.told, body, call.sent)
        return EngineStream(connection, NdjsonScanner(call, int(time.time())))

    async def complete(self, call: Call) -> dict[str, Any]:
        body = self._body(call, stream=False)
        connection = await post_json(self.pool, self._heads[call.api], call.told, body, call.sent)
        answer = await json_object(connection, vectors=call.api == "embeddings")
        if call.api == "embeddings":
            return sound_answer(embeddings_answer(answer, call))
        if answer.get("done") is not True:
            raise UpstreamError("the engine's answer ended without its end mark")
        return sound_answer(whole_answer(answer, call, int(time.time())))

    async def count_tokens(self, call: Call) -> int | None:
        """Ollama has no tokenizer endpoint."""
        del call
        return None

    async def probe(self) -> bool:
        return await self._control.ok("/api/version")

    async def load(self) -> LoadReport:
        """Which of the candidates' models are in memory; Ollama tells nothing else of its load."""
        status, body = await self._control.get("/api/ps")
        if status != 200:
            raise UpstreamError(f"the engine answered {status}", status)
        try:
            listed = bounded_json.loads(body)
        except ValueError as error:
            raise UpstreamError("the engine's answer is not JSON") from error
        models = listed.get("models") if isinstance(listed, dict) else None
        loaded = {
            local_name(name)
            for model in (models if isinstance(models, list) else [])
            if isinstance(model, dict) and isinstance(name := model.get("model") or model.get("name"), str)
        }
        return LoadReport(
            loaded_models=frozenset(
                candidate.upstream_model
                for candidate in self._candidates
                if local_name(candidate.upstream_model) in loaded
            )
        )

    async def aclose(self) -> None:
        await self.pool.aclose()
        await self._control.aclose()

    def _body(self, call: Call, *, stream: bool) -> dict[str, Any]:
        num_ctx = self._num_ctx.get(local_name(call.candidate.upstream_model))
        if call.api == "embeddings":
            return embed_body(call, num_ctx, self._keep_alive)
        if call.api == "chat":
            return chat_body(call, num_ctx, self._keep_alive, stream=stream)
        return generate_body(call, num_ctx, self._keep_alive, stream=stream)
