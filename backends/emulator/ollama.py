"""The emulated Ollama server: its routes over one slot engine model.

A model loads at its first use and unloads when its keep-alive is over. Another `num_ctx` (or another load-time option)
forces a reload, which waits for the running requests of the loaded variant; later requests wait behind it, as in
Ollama's own queue. A prompt longer than the context is cut without a message.
"""

from __future__ import annotations

import base64
import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveInt, Strict

from backends.emulator.driver import Driver
from backends.emulator.faults import FaultBoard, FaultKind
from backends.emulator.generation import Choice, Generation, Wire, new_sequence_id
from backends.emulator.http import Exchange
from backends.emulator.ollama_catalog import Entry
from backends.emulator.ollama_request import (
    Options,
    Refused,
    allowed_host,
    fit_context,
    full_name,
    json_object,
    keep_alive_s,
    parse_options,
    typed_field,
)
from backends.emulator.ollama_wire import Answering, EmbeddingWire, NativeWire, OpenAiWire, openai_error
from backends.emulator.openai_fields import wanted_schema, wants_json
from backends.emulator.schemas import schema_answer
from backends.emulator.text import (
    Answer,
    chat_text,
    count_tokens,
    drawn_output_tokens,
    embedding,
    json_answer,
    prefix_hashes,
    seed_of,
    stopped_answer,
)
from backends.engine.profiles import memory_bytes, names, quantization_of, weights_bytes
from backends.engine.sequence import Finish, Sequence
from backends.engine.slots import SlotEngine
from router.core.profile import EngineProfile

VERSION = "0.17.0-headway-emulator"
EMBEDDING_DIMENSIONS = 256
_BUSY = "server busy, please try again.  maximum pending requests exceeded"
_UNBOUNDED_TOKENS = 1 << 40


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


@dataclass(slots=True)
class _Model:
    entry: Entry
    profile: EngineProfile
    names: list[str]
    slots: int
    num_ctx: int  # the default context of a slot
    current: str | None = None  # the variant that was requested last


@dataclass(slots=True)
class _Held:
    """A request that waits until another variant of its model is out of memory."""

    generation: Generation
    model: _Model
    variant: str
    launched: bool = False


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
            memory_bytes=_memory_bytes(profiles),
        )
        self.driver = Driver(self.engine, speed, clock)
        self.driver.on_progress = self._release_held
        self._models = {full_name(name): self._model(name, profile) for name, profile in profiles.items()}
        self._held: deque[_Held] = deque()
        self._in_flight: Counter[str] = Counter()
        self._releasing = False
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

    def _model(self, name: str, profile: EngineProfile) -> _Model:
        slots = self.options.num_parallel or profile.slots
        most = profile.kv_capacity_tokens // slots
        known = profile.name in names()
        return _Model(
            Entry(
                name,
                min(131_072, profile.kv_capacity_tokens),
                datetime.now(UTC),
                weights_bytes(profile.name) if known else None,
                quantization_of(profile.name) if known else None,
            ),
            profile,
            [
                name,
                full_name(name),
                name.removesuffix(":latest"),
                profile.name,
                profile.name.partition("@")[0],
            ],
            slots,
            min(most, self.options.num_ctx or 32_768),
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
        except Refused as error:
            body = openai_error(error.status, error.message) if v1 else orjson.dumps({"error": error.message})
            exchange.respond(error.status, body)

    def state(self) -> dict[str, Any]:
        """The state that tests read (a real Ollama does not report it)."""
        engine = self.engine
        return {
            "running": engine.running,
            "waiting": engine.waiting + len(self._held),
            "loads_total": engine.loads_total,
            "unloads_total": engine.unloads_total,
            "prefix_queries_total": engine.prefix_queries_total,
            "prefix_hits_total": engine.prefix_hits_total,
            "prompt_tokens_total": engine.prompt_tokens_total,
            "generation_tokens_total": engine.generation_tokens_total,
        }

    def close(self) -> None:
        self.driver.close()
        self._held.clear()

    # --- read-only routes ---
    def _root(self, exchange: Exchange) -> None:
        if self.healthy:
            exchange.respond(200, b"Ollama is running", "text/plain; charset=utf-8")
        else:
            exchange.respond(503)

    def _tags(self, exchange: Exchange) -> None:
        exchange.respond_json(200, {"models": [model.entry.tag() for model in self._models.values()]})

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
            found.append(model.entry.running((expires - now) / self.speed, loaded.context_tokens))
        exchange.respond_json(200, {"models": found})

    def _show(self, exchange: Exchange) -> None:
        body = json_object(exchange)
        name = body.get("model") or body.get("name")
        if not name:
            raise Refused(400, "model is required")
        exchange.respond_json(200, self._find(str(name)).entry.show())

    def _v1_models(self, exchange: Exchange) -> None:
        data = [_card(model.entry) for model in self._models.values()]
        exchange.respond_json(200, {"object": "list", "data": data or None})

    def _v1_model(self, exchange: Exchange, name: str) -> None:
        exchange.respond_json(200, _card(self._find(name).entry))

    def _find(self, name: Any) -> _Model:
        model = self._models.get(full_name(name)) if isinstance(name, str) else None
        if model is None:
            raise Refused(404, f"model '{name}' not found")
        return model

    # --- generation ---
    def _native(self, exchange: Exchange, *, chat: bool) -> None:
        body = json_object(exchange)
        name = typed_field(body, "model", str, "") or ""
        if not name:
            raise Refused(400, "model is required") if chat else Refused(404, "model '' not found")
        model = self._find(name)
        top = body.get("top_logprobs")
        if isinstance(top, int) and not 0 <= top <= 20:
            raise Refused(400, "top_logprobs must be between 0 and 20")
        options = parse_options(body.get("options"), model.names)
        keep = keep_alive_s(body.get("keep_alive"))
        raw = bool(typed_field(body, "raw", bool, False))
        if chat:
            messages = typed_field(body, "messages", list, None) or []
            if not all(isinstance(item, dict) for item in messages):
                raise Refused(400, "json: cannot unmarshal messages into Go struct field of type api.Message")
            text, empty = chat_text(messages), not messages
        else:
            if raw and any(body.get(key) for key in ("template", "system", "context")):
                raise Refused(400, "raw mode does not support template, system, or context")
            prompt = typed_field(body, "prompt", str, "") or ""
            text, empty = (typed_field(body, "system", str, "") or "") + prompt, not prompt
        answering = Answering(name, self.speed, raw=raw)
        wire = NativeWire(chat, answering)
        if empty:
            self._load(exchange, model, options, keep, wire, answering)
            return
        stream = body.get("stream") is not False
        form = body.get("format")
        shape = form if isinstance(form, Mapping) and form else "json" if form else None
        cuts = body.get("truncate") is not False
        self._generate(exchange, model, options, keep, wire, answering, text, stream, shape, cuts)

    def _openai(self, exchange: Exchange, *, chat: bool) -> None:
        body = json_object(exchange)
        name = typed_field(body, "model", str, "") or ""
        if chat:
            messages = body.get("messages")
            if (
                not isinstance(messages, list)
                or not all(isinstance(item, dict) for item in messages)
                or not messages
            ):
                raise Refused(400, "[] is too short - 'messages'")
            text = chat_text(messages)
        else:
            text = typed_field(body, "prompt", str, "") or ""
        model = self._find(name)
        extra = body.get("options")
        native: dict[str, Any] = {"num_predict": body.get("max_tokens"), "stop": body.get("stop")}
        if isinstance(extra, Mapping):  # the emulator's own field; a real Ollama reads no options here
            native["emulate_output_tokens"] = extra.get("emulate_output_tokens")
        options = parse_options(native, model.names)
        stream_options = body.get("stream_options")
        answering = Answering(
            name,
            self.speed,
            include_usage=isinstance(stream_options, Mapping) and bool(stream_options.get("include_usage")),
        )
        shape = wanted_schema(body) or ("json" if wants_json(body) else None)
        stream = bool(typed_field(body, "stream", bool, False))
        wire = OpenAiWire(chat, answering)
        self._generate(exchange, model, options, None, wire, answering, text, stream, shape, True)

    def _generate(
        self,
        exchange: Exchange,
        model: _Model,
        options: Options,
        keep: float | None,
        wire: Wire,
        answering: Answering,
        text: str,
        stream: bool,
        shape: Mapping[str, Any] | str | None,
        cuts: bool,
    ) -> None:
        data = text.encode("utf-8", "surrogatepass")
        variant, context = self._variant(model, options)
        label = model.names[-1]
        seed = seed_of(data, label)
        wanted = options.requested_tokens or drawn_output_tokens(data, label)
        shaped = None
        if shape is not None:
            shaped = (
                json_answer(seed, max(wanted, 2))
                if isinstance(shape, str)
                else schema_answer(seed, wanted, shape)
            )
            wanted = shaped.tokens
        limit = options.num_predict if options.num_predict is not None and options.num_predict > 0 else wanted
        tokens = min(wanted, limit)
        finish: Finish = "stop" if wanted <= limit else "length"
        answer = Answer(seed, tokens) if shaped is None else shaped
        if options.stops and shaped is None:
            answer, stopped = stopped_answer(seed, tokens, options.stops)
            if stopped is not None:
                tokens, finish = answer.tokens, "stop"
        data, tokens, fits = fit_context(data, tokens, context, cuts)
        if not fits:
            finish = "length"
        answer.tokens = tokens
        answering.prompt = data
        choice = self._choice(0, variant, data, tokens, answer, finish, keep)
        self._admit(exchange, wire, [choice], model, variant, stream)

    def _load(
        self,
        exchange: Exchange,
        model: _Model,
        options: Options,
        keep: float | None,
        wire: Wire,
        answering: Answering,
    ) -> None:
        """A request without a prompt: load the model, or unload it if keep_alive is 0."""
        variant, _ = self._variant(model, options)
        if keep == 0:
            answering.load_reason = "unload"
            if model.current is not None:
                self.driver.touch()
                self.engine.unload(model.current, self.driver.reached)
                self.driver.touch()
            exchange.respond(200, wire.whole(Generation(exchange, self.driver, wire, [], streaming=False)))
            return
        answering.load_reason = "load"
        choice = self._choice(0, variant, b"", 0, Answer(0, 0), "stop", keep)
        self._admit(exchange, wire, [choice], model, variant, False)

    def _choice(
        self,
        index: int,
        variant: str,
        data: bytes,
        tokens: int,
        answer: Answer,
        finish: Finish,
        keep: float | None,
    ) -> Choice:
        sequence = Sequence(
            id=new_sequence_id(),
            prompt_tokens=count_tokens(data) if data or tokens else 0,
            output_tokens=tokens,
            prefix=prefix_hashes(data),
            model=variant,
            finish=finish,
        )
        kept = None if keep is None else keep * self.speed
        return Choice(
            index,
            sequence,
            lambda now: self.engine.submit(sequence, now, kept),
            answer,
            sequence.prompt_tokens,
            finish,
        )

    # --- embeddings ---
    def _embed(self, exchange: Exchange, api: str) -> None:
        body = json_object(exchange)
        name = typed_field(body, "model", str, "") or ""
        if not name and api == "legacy":
            raise Refused(400, "model is required")
        model = self._find(name)
        given = body.get("prompt" if api == "legacy" else "input")
        inputs = [given] if isinstance(given, str) else given or []
        if not isinstance(inputs, list) or not all(isinstance(item, str) for item in inputs):
            raise Refused(400, "invalid input type")
        inputs = [item for item in inputs if item]
        options = parse_options(body.get("options"), model.names)
        keep = keep_alive_s(body.get("keep_alive"))
        variant, context = self._variant(model, options)
        dimensions = body.get("dimensions") or EMBEDDING_DIMENSIONS
        if not isinstance(dimensions, int) or not 1 <= dimensions <= 8192:
            raise Refused(400, "invalid dimensions")
        datas = [item.encode("utf-8", "surrogatepass") for item in inputs]
        if body.get("truncate") is False and any(count_tokens(data) > context for data in datas):
            raise Refused(400, "the input length exceeds the context length")
        datas = [data[: context * 4] for data in datas]
        vectors: list[Any] = [embedding(data, dimensions, model.names[-1]) for data in datas]
        if api == "openai" and body.get("encoding_format") == "base64":
            vectors = [
                base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode() for vector in vectors
            ]
        wire = EmbeddingWire(api, Answering(name, self.speed), vectors)
        choices = [
            self._choice(index, variant, data, 0, Answer(0, 0), "stop", keep)
            for index, data in enumerate(datas or [b""])
        ]
        self._admit(exchange, wire, choices, model, variant, False)

    # --- loading ---
    def _variant(self, model: _Model, options: Options) -> tuple[str, int]:
        """The engine's name for the model with these load-time options, and the context of its slots."""
        most = model.profile.kv_capacity_tokens // model.slots
        context = min(options.num_ctx or model.num_ctx, most)
        variant = f"{full_name(model.entry.name)}\n{context}\n{options.load!r}"
        if variant not in self.engine.profiles:
            self.engine.profiles[variant] = replace(model.profile, kv_capacity_tokens=context * model.slots)
            self.engine.model_bytes[variant] = model.entry.size_bytes
        return variant, context

    def _admit(
        self,
        exchange: Exchange,
        wire: Wire,
        choices: list[Choice],
        model: _Model,
        variant: str,
        streaming: bool,
    ) -> None:
        fault = self.faults.take()
        if fault is not None and fault.kind is FaultKind.STATUS:
            exchange.respond(fault.status, wire.error_body(fault.status, "emulated fault"))
            return
        if len(self._held) + self.engine.pending >= self.options.max_queue:
            exchange.respond(503, wire.error_body(503, _BUSY))
            return

        def ended(generation: Generation) -> None:
            self.live.discard(generation)
            if held.launched:
                self._in_flight[variant] -= 1

        generation = Generation(
            exchange, self.driver, wire, choices, streaming=streaming, fault=fault, on_end=ended
        )
        held = _Held(generation, model, variant)
        self.live.add(generation)
        generation.attach()
        self._held.append(held)
        self.driver.touch()  # launches it, unless it has to wait

    def _release_held(self) -> None:
        """Launch, in order of arrival, the requests whose model is not in memory as another variant."""
        if self._releasing:
            return
        self._releasing = True
        try:
            while self._held:
                held = self._held[0]
                if not held.generation.ended and self._must_wait(held):
                    return
                self._held.popleft()
                if not held.generation.ended:
                    held.model.current = held.variant
                    held.launched = True
                    self._in_flight[held.variant] += 1
                    held.generation.launch()
        finally:
            self._releasing = False

    def _must_wait(self, held: _Held) -> bool:
        current = held.model.current
        if current is None or current == held.variant:
            return False
        now = self.driver.reached
        self.engine.unload(current, now)
        if self.engine.loading == current or self._in_flight[current] > 0:
            return True
        return any(loaded.model == current for loaded in self.engine.loaded(now))


def _memory_bytes(profiles: Mapping[str, EngineProfile]) -> int | None:
    """The memory of the hardware in the profiles' names; None (no bound) if one is unknown."""
    found = [memory_bytes(profile.name) for profile in profiles.values() if profile.name in names()]
    return max(found) if len(found) == len(profiles) else None


def _card(entry: Entry) -> dict[str, Any]:
    tag = entry.tag()
    return {
        "id": tag["name"],
        "object": "model",
        "created": int(entry.modified_at.timestamp()),
        "owned_by": "library",
    }
