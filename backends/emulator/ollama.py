"""The emulated Ollama server: its routes over one slot engine model.

A model loads at its first use and unloads when its keep-alive is over. Another `num_ctx` (or another load-time option)
forces a reload (`ollama_loading`). A prompt longer than the context is cut without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveInt, Strict

from backends.emulator.answers import ended_answer, shaped_answer
from backends.emulator.driver import Driver
from backends.emulator.faults import FaultBoard, FaultKind
from backends.emulator.generation import Choice, Generation, Wire, new_sequence
from backends.emulator.http import Exchange
from backends.emulator.ollama_catalog import Model
from backends.emulator.ollama_loading import LoadQueue
from backends.emulator.ollama_request import (
    Job,
    allowed_host,
    fit_context,
    json_object,
    keep_alive_s,
    native_job,
    openai_job,
    openai_text,
    parse_options,
    typed_field,
)
from backends.emulator.ollama_wire import EmbeddingWire, NativeWire, OpenAiWire, openai_error
from backends.emulator.openai_fields import Rejected
from backends.emulator.text import (
    Answer,
    base64_floats,
    count_tokens,
    drawn_output_tokens,
    embedding,
    encoded,
    model_names,
    seed_of,
)
from backends.engine.profiles import find, known_memory_bytes, quantization_of, weights_bytes
from backends.engine.sequence import Finish
from backends.engine.slots import SlotEngine
from backends.ollama import local_name
from router.core.profile import EngineProfile

VERSION = "0.17.0-headway-emulator"
EMBEDDING_DIMENSIONS = 256
_BUSY = "server busy, please try again.  maximum pending requests exceeded"
_UNBOUNDED_TOKENS = 1 << 40
#: Figures of the engine that `state` shows.
_STATE = (
    *("loads_total", "unloads_total", "prefix_queries_total", "prefix_hits_total"),
    *("prompt_tokens_total", "generation_tokens_total"),
)


class OllamaOptions(BaseModel):
    """The options of one emulated Ollama. `num_parallel` (None: the profile's slots), `num_ctx` (None: what the
    profile's memory gives each slot, at most 32768), `model_keep_alive_s` (OLLAMA_KEEP_ALIVE in wall seconds),
    `max_queue` (OLLAMA_MAX_QUEUE, requests that wait for a load)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    num_parallel: PositiveInt | None = None
    num_ctx: PositiveInt | None = None
    max_loaded_models: PositiveInt = 3
    max_queue: PositiveInt = 512
    model_keep_alive_s: Annotated[NonNegativeFloat, Strict(False)] = 300.0


class OllamaServer:
    """One emulated Ollama; `handle` answers one HTTP request (`servers.EngineServer`)."""

    OPTIONS: ClassVar[type[BaseModel]] = OllamaOptions
    PORT: ClassVar = 11434
    KEEP_ALIVE_S: ClassVar[float | None] = None
    CONTEXT_OPTION: ClassVar[str | None] = None

    def __init__(
        self,
        profiles: Mapping[str, EngineProfile],
        options: OllamaOptions,
        speed: float,
        faults: FaultBoard,
        clock: Callable[[], float],
    ) -> None:
        self.options = options
        self.speed = speed
        self.faults = faults
        self.live: set[Generation] = set()
        self.healthy = True
        self.engine = SlotEngine(
            {},
            slots=options.num_parallel,
            max_loaded_models=options.max_loaded_models,
            context_tokens=_UNBOUNDED_TOKENS,
            max_pending=_UNBOUNDED_TOKENS,
            keep_alive_s=options.model_keep_alive_s * speed,
            memory_bytes=known_memory_bytes(profiles.values()),
        )
        self.driver = Driver(self.engine, speed, clock)
        self._loading = LoadQueue(self.engine, self.driver)
        self._models = {local_name(name): self._model(name, profile) for name, profile in profiles.items()}
        get: dict[str, Callable[[Exchange], None]] = {
            "/": self._root,
            "/api/version": lambda exchange: exchange.respond_json(200, {"version": VERSION}),
            "/api/tags": self._tags,
            "/api/ps": self._ps,
            "/v1/models": self._v1_models,
        }
        post: dict[str, Callable[[Exchange], None]] = {
            "/api/chat": lambda exchange: self._native(exchange, chat=True),
            "/api/generate": lambda exchange: self._native(exchange, chat=False),
            "/api/embed": lambda exchange: self._embed(exchange, "native"),
            "/api/embeddings": lambda exchange: self._embed(exchange, "legacy"),
            "/api/show": self._show,
            "/v1/chat/completions": lambda exchange: self._openai(exchange, chat=True),
            "/v1/completions": lambda exchange: self._openai(exchange, chat=False),
            "/v1/embeddings": lambda exchange: self._embed(exchange, "openai"),
        }
        self._routes: dict[str, dict[str, Callable[[Exchange], None]]] = {
            "GET": get,
            "HEAD": get,
            "POST": post,
        }

    def _model(self, name: str, profile: EngineProfile) -> Model:
        slots = self.options.num_parallel or profile.slots
        num_ctx = min(profile.kv_capacity_tokens // slots, self.options.num_ctx or 32_768)
        known = find(profile.name) is not None
        return Model(
            name,
            profile,
            model_names(profile, name, local_name(name), name.removesuffix(":latest")),
            slots,
            num_ctx,
            weights_bytes(profile.name) if known else None,
            quantization_of(profile.name) if known else None,
        )

    # --- service ---
    @staticmethod
    def check(profiles: Mapping[str, EngineProfile], options: OllamaOptions) -> None:
        """Raises ValueError without a model."""
        del options
        if not profiles:
            raise ValueError("an ollama instance serves at least one model")

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, now or later."""
        if not allowed_host(exchange.headers.get("host", "")):
            exchange.respond(403)
            return
        path = exchange.path
        route = self._routes.get(exchange.method, {}).get(path)
        v1 = path.startswith("/v1/")
        try:
            if route is not None:
                route(exchange)
            elif exchange.method in {"GET", "HEAD"} and path.startswith("/v1/models/"):
                self._v1_model(exchange, path.removeprefix("/v1/models/"))
            elif any(path in routes for routes in self._routes.values()):
                exchange.respond(405, b"405 method not allowed", "text/plain")
            else:
                exchange.respond(404, b"404 page not found", "text/plain")
        except Rejected as error:
            body = openai_error(error.status, error.message) if v1 else orjson.dumps({"error": error.message})
            exchange.respond(error.status, body)

    def state(self) -> dict[str, Any]:
        """The state that tests read (a real Ollama does not report it)."""
        engine = self.engine
        waiting = engine.waiting + len(self._loading)
        figures = {name: getattr(engine, name) for name in _STATE}
        return {"running": engine.running, "waiting": waiting, **figures}

    def close(self) -> None:
        self.driver.close()
        self._loading.clear()

    # --- read-only routes ---
    def _root(self, exchange: Exchange) -> None:
        if self.healthy:
            exchange.respond(200, b"Ollama is running", "text/plain; charset=utf-8")
        else:
            exchange.respond(503)

    def _tags(self, exchange: Exchange) -> None:
        exchange.respond_json(200, {"models": [model.tag() for model in self._models.values()]})

    def _ps(self, exchange: Exchange) -> None:
        self.driver.touch()
        now = self.driver.reached
        found = []
        for loaded in self.engine.loaded(now):
            model = self._models[loaded.model.partition("\n")[0]]
            # The keep-alive of a model that serves requests starts when they end.
            expires = (
                loaded.expires_at_s if loaded.expires_at_s is not None else now + self.engine.keep_alive_s
            )
            found.append(model.running((expires - now) / self.speed, loaded.context_tokens))
        exchange.respond_json(200, {"models": found})

    def _show(self, exchange: Exchange) -> None:
        body = json_object(exchange)
        name = body.get("model") or body.get("name")
        if not name:
            raise Rejected(400, "model is required")
        exchange.respond_json(200, self._find(str(name)).show())

    def _v1_models(self, exchange: Exchange) -> None:
        data = [_card(model) for model in self._models.values()]
        exchange.respond_json(200, {"object": "list", "data": data or None})

    def _v1_model(self, exchange: Exchange, name: str) -> None:
        exchange.respond_json(200, _card(self._find(name)))

    def _find(self, name: Any) -> Model:
        model = self._models.get(local_name(name)) if isinstance(name, str) else None
        if model is None:
            raise Rejected(404, f"model '{name}' not found")
        return model

    # --- generation ---
    def _native(self, exchange: Exchange, *, chat: bool) -> None:
        body = json_object(exchange)
        name = typed_field(body, "model", str, "") or ""
        if not name:
            raise Rejected(400, "model is required") if chat else Rejected(404, "model '' not found")
        model = self._find(name)
        job = native_job(body, model.names, chat=chat)
        wire = NativeWire(chat, name, job)
        if job.empty:
            self._load(exchange, model, wire, job)
        else:
            self._generate(exchange, model, wire, job)

    def _openai(self, exchange: Exchange, *, chat: bool) -> None:
        body = json_object(exchange)
        name = typed_field(body, "model", str, "") or ""
        text = openai_text(body, chat=chat)
        model = self._find(name)
        job = openai_job(body, model.names, text)
        wire = OpenAiWire(chat, name, job)
        self._generate(exchange, model, wire, job)

    def _generate(self, exchange: Exchange, model: Model, wire: NativeWire | OpenAiWire, job: Job) -> None:
        data = encoded(job.text)
        options = job.options
        variant, context = self._loading.variant(model, options)
        label = model.names[-1]
        seed = seed_of(data, label)
        wanted = options.requested_tokens or drawn_output_tokens(data, label)
        answer = shaped_answer(seed, wanted, job.schema) if job.as_json else Answer(seed, wanted)
        limit = options.num_predict
        answer, finish, _ = ended_answer(
            answer,
            limit if limit is not None and limit > 0 else answer.tokens,
            () if job.as_json else options.stops,
        )
        data, answer.tokens, fits = fit_context(data, answer.tokens, context, job.cuts)
        if not fits:
            finish = "length"
        if isinstance(wire, NativeWire):
            wire.prompt = data
        choice = self._choice(0, variant, data, answer, finish, job.keep_s)
        self._admit(exchange, wire, [choice], model, variant, job.stream)

    def _load(self, exchange: Exchange, model: Model, wire: NativeWire, job: Job) -> None:
        """A request without a prompt: load the model, or unload it if keep_alive is 0."""
        variant, _ = self._loading.variant(model, job.options)
        if job.keep_s == 0:
            wire.load_reason = "unload"
            if model.requested is not None:
                self.driver.touch()
                self.engine.unload(model.requested, self.driver.reached)
                self.driver.touch()
            exchange.respond(200, wire.whole(Generation(exchange, self.driver, wire, [], streaming=False)))
            return
        wire.load_reason = "load"
        choice = self._choice(0, variant, b"", Answer(0, 0), "stop", job.keep_s)
        self._admit(exchange, wire, [choice], model, variant, False)

    def _choice(
        self, index: int, variant: str, data: bytes, answer: Answer, finish: Finish, keep: float | None
    ) -> Choice:
        prompt_tokens = count_tokens(data) if data or answer.tokens else 0
        sequence = new_sequence(data, prompt_tokens, answer.tokens, variant, finish)
        kept = None if keep is None else keep * self.speed
        return Choice(index, sequence, partial(self.engine.submit, keep_alive_s=kept), answer, finish)

    # --- embeddings ---
    def _embed(self, exchange: Exchange, api: str) -> None:
        body = json_object(exchange)
        name = typed_field(body, "model", str, "") or ""
        if not name and api == "legacy":
            raise Rejected(400, "model is required")
        model = self._find(name)
        given = body.get("prompt" if api == "legacy" else "input")
        inputs = [given] if isinstance(given, str) else given or []
        if not isinstance(inputs, list) or not all(isinstance(item, str) for item in inputs):
            raise Rejected(400, "invalid input type")
        inputs = [item for item in inputs if item]
        options = parse_options(body.get("options"), model.names)
        keep = keep_alive_s(body.get("keep_alive"))
        variant, context = self._loading.variant(model, options)
        dimensions = body.get("dimensions") or EMBEDDING_DIMENSIONS
        if not isinstance(dimensions, int) or not 1 <= dimensions <= 8192:
            raise Rejected(400, "invalid dimensions")
        datas = [encoded(item) for item in inputs]
        if body.get("truncate") is False and any(count_tokens(data) > context for data in datas):
            raise Rejected(400, "the input length exceeds the context length")
        datas = [data[: context * 4] for data in datas]
        vectors: list[Any] = [embedding(data, dimensions, model.names[-1]) for data in datas]
        if api == "openai" and body.get("encoding_format") == "base64":
            vectors = [base64_floats(vector) for vector in vectors]
        wire = EmbeddingWire(api, name, vectors)
        choices = [
            self._choice(index, variant, data, Answer(0, 0), "stop", keep)
            for index, data in enumerate(datas or [b""])
        ]
        self._admit(exchange, wire, choices, model, variant, False)

    def _admit(
        self,
        exchange: Exchange,
        wire: Wire,
        choices: list[Choice],
        model: Model,
        variant: str,
        streaming: bool,
    ) -> None:
        fault = self.faults.take()
        if fault is not None and fault.kind is FaultKind.STATUS:
            exchange.respond(fault.status, wire.error_body(fault.status, "emulated fault"))
            return
        if len(self._loading) + self.engine.pending >= self.options.max_queue:
            exchange.respond(503, wire.error_body(503, _BUSY))
            return

        generation = Generation(
            exchange, self.driver, wire, choices, streaming=streaming, fault=fault, on_end=self._ended
        )
        self.live.add(generation)
        generation.attach()
        self._loading.add(generation, model, variant)

    def _ended(self, generation: Generation) -> None:
        self.live.discard(generation)
        self._loading.ended(generation)


def _card(model: Model) -> dict[str, Any]:
    tag = model.tag()
    return {
        "id": tag["name"],
        "object": "model",
        "created": int(model.modified_at.timestamp()),
        "owned_by": "library",
    }
