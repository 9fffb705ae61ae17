"""Kind `ollama`: the native API, since Ollama's OpenAI endpoint hides errors and cannot set the context.

Facts: github.com/ollama/ollama, `server/routes.go`, `api/types.go`, `docs/api.md`.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from backends import bounded_json
from backends.endpoint import Endpoint, EngineAdapter, mismatches
from backends.json_calls import JsonCall, sound_answer
from backends.kind import EngineKind, KindSettings
from backends.ndjson import NdjsonScanner
from backends.ollama_bodies import embeddings_answer, native_body, non_streaming_answer
from backends.scanning import StreamedCall
from router.core.errors import UpstreamError
from router.core.interfaces import Call, OpenCall, Sink
from router.core.types import Capability, LoadReport

PATHS = {"chat": "/api/chat", "completions": "/api/generate", "embeddings": "/api/embed"}
#: A duration as Go reads it.
_DURATION = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?(?:ns|us|ms|s|m|h))+")


def tagged(name: str) -> str:
    """A model's name as Ollama shows it, with a tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def local_name(name: str) -> str:
    """A model's name as Ollama compares it: any case, with its tag."""
    return tagged(name.lower())


def _keep_alive(value: object) -> object:
    if type(value) is int or (isinstance(value, str) and _DURATION.fullmatch(value)):
        return value
    raise PydanticCustomError("keep_alive", "must be whole seconds, or a duration such as 30m or 1h30m")


class OllamaSettings(KindSettings):
    """`keep_alive` is how long a model stays in memory after a request: seconds or a duration ("30m"); below 0
    it stays for good. Without it Ollama's own setting holds."""

    keep_alive: Annotated[int | str, BeforeValidator(_keep_alive)] | None = None


class OllamaBackend(EngineAdapter):
    """One Ollama server; `router.core.interfaces.Backend`."""

    def __init__(self, kind: EngineKind, endpoint: Endpoint, keep_alive: str | int | None = None) -> None:
        """The `context_tokens` of the endpoint's candidates are sent as `num_ctx` with every request for their
        model (the greatest where candidates share one); a model without it keeps Ollama's own. `keep_alive` is
        sent only if given.

        Raises as `EngineAdapter`.
        """
        super().__init__(kind, endpoint, PATHS)
        self._keep_alive = keep_alive
        self._num_ctx: dict[str, int] = {}
        for candidate in endpoint.candidates:
            if candidate.context_tokens is not None:
                name = local_name(candidate.upstream_model)
                self._num_ctx[name] = max(self._num_ctx.get(name, 0), candidate.context_tokens)

    def start(self, call: Call, sink: Sink) -> OpenCall:
        streams = call.streams and call.api != "embeddings"
        num_ctx = self._num_ctx.get(local_name(call.candidate.upstream_model))
        body = native_body(call, num_ctx, self._keep_alive, stream=streams)
        head, value = self._heads[call.api], call.request_id_value
        if streams:
            scanner = NdjsonScanner(call, int(time.time()))
            return StreamedCall(self.pool, head, value, body, scanner, sink).start()
        read, vectors = partial(_openai_answer, call), call.api == "embeddings"
        return JsonCall(self.pool, head, value, body, sink, read, vectors=vectors).start()

    async def count_tokens(self, call: Call) -> int | None:
        """Ollama has no tokenizer endpoint."""
        del call
        return None

    async def load(self) -> LoadReport:
        """Which of the candidates' models are in memory; Ollama reports nothing else of its load."""
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

    async def mismatches(self) -> list[str]:
        entries = await self._listed("/api/tags", "models")
        # Its context is what a request asks for (`num_ctx`).
        contexts = {name: None for each in entries if isinstance(name := each.get("name"), str)}
        known = {local_name(name) for name in contexts}
        absent = [each for each in self._candidates if local_name(each.upstream_model) not in known]
        return list(mismatches(absent, contexts))


def _openai_answer(call: Call, answer: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's form of a whole answer. Raises UpstreamError."""
    if call.api == "embeddings":
        return sound_answer(embeddings_answer(answer, call), call)
    if answer.get("done") is not True:
        raise UpstreamError("the engine's answer ended without its end mark")
    return sound_answer(non_streaming_answer(answer, call, int(time.time())), call)


OLLAMA = EngineKind(
    name="ollama",
    adapter=OllamaBackend,
    health_path="/api/version",
    emulator="ollama",
    # What its API has no field for; `backends.ollama_bodies` refuses it too.
    unsupported=frozenset(
        {
            Capability.SEVERAL_ANSWERS,
            Capability.SEVERAL_PROMPTS,
            Capability.PROMPTS_AS_IDS,
            Capability.ECHO,
            Capability.IMAGES_BY_URL,
            Capability.OTHER_MEDIA,
            Capability.TRUNCATION,
            Capability.PROMPT_LOGPROBS,
            Capability.BEAM_SEARCH,
        }
    ),
    fixed_slots=True,
    default_weights="q4",  # what Ollama's library serves under a tag that names no weights
    settings=OllamaSettings,
)
