"""The emulated vLLM server: its routes over one continuous-batching engine model.

Beside the formats it copies this behaviour of vLLM 0.32: the key is needed on /v1 only, and a wrong key gets `{"error":
"Unauthorized"}`; unknown paths get FastAPI's `{"detail": ...}`; load shedding is a 503 without Retry-After (or a 200
whose stream has the error); a client's `X-Request-Id` is part of the answer's id; the status line of a stream is sent
before its first token.
"""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, PositiveInt, Strict

from backends.emulator import openai_fields as fields
from backends.emulator.answers import ended_answer, given_answer, shaped_answer
from backends.emulator.driver import Driver
from backends.emulator.faults import FaultBoard, FaultKind
from backends.emulator.generation import Choice, Generation, new_sequence
from backends.emulator.http import Exchange
from backends.emulator.openai_fields import Rejected
from backends.emulator.text import Answer, chat_text, drawn_output_tokens, encoded, model_names, seed_of
from backends.emulator.vllm_metrics import VllmMetrics
from backends.emulator.vllm_request import (
    Job,
    Prompt,
    check_context,
    parse_chat,
    parse_completion,
    prompts_of,
    truncate,
    truncation_of,
)
from backends.emulator.vllm_wire import VllmEmbeddingWire, VllmWire, error_json, token_ids
from backends.engine import engine_of
from router.core.profile import EngineProfile

VERSION = "0.32.0+headway.emulator"
EMBEDDING_DIMENSIONS = 256
#: Figures of the engine that `state` shows.
_STATE = (
    *("running", "waiting", "kv_usage", "preemptions_total", "prefix_queries_total", "prefix_hits_total"),
    *("prompt_tokens_total", "generation_tokens_total"),
)
_SHED_MESSAGE = "The server is overloaded: too many requests are in flight. Please retry later."


class VllmOptions(BaseModel):
    """The options of one emulated vLLM. `max_num_queued_reqs` bounds requests in flight, running or waiting, like
    vLLM's flag of that name. With `shed_in_stream`, streams are shed with a 200 and an error event."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    aliases: Annotated[tuple[str, ...], Strict(False)] = ()
    api_key: str | None = None
    max_num_queued_reqs: PositiveInt | None = None
    shed_in_stream: bool = False
    max_model_len: PositiveInt | None = None
    prefix_caching: bool = True


class VllmServer:
    """One emulated vLLM; `handle` answers one HTTP request (`servers.EngineServer`). Several models share one engine
    (`backends.engine.shared`): the first one is the base, whose name the metrics have."""

    OPTIONS: ClassVar[type[BaseModel]] = VllmOptions
    PORT: ClassVar = 8000
    KEEP_ALIVE_S: ClassVar[float | None] = 5.0
    CONTEXT_OPTION: ClassVar[str | None] = "max_model_len"

    def __init__(
        self,
        profiles: Mapping[str, EngineProfile],
        options: VllmOptions,
        speed: float,
        faults: FaultBoard,
        clock: Callable[[], float],
    ) -> None:
        self.model = next(iter(profiles))
        self._names = {model: model_names(profile, model) for model, profile in profiles.items()}
        self._names[self.model] = model_names(profiles[self.model], self.model, *options.aliases)
        self.options = options
        self.faults = faults
        self.engine = engine_of(
            profiles, prefix_caching=options.prefix_caching, context_tokens=options.max_model_len
        )
        self.max_model_len = min(self.engine.limit_tokens, options.max_model_len or 131_072)
        self.driver = Driver(self.engine, speed, clock)
        self.metrics = VllmMetrics(self.engine, self.model, self.max_model_len, speed)
        self.driver.on_progress = self.metrics.step
        self.healthy = True
        self.live: set[Generation] = set()
        self._started = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[Exchange], None]] = {
            ("POST", "/v1/chat/completions"): partial(self._generate, parse_chat),
            ("POST", "/v1/completions"): partial(self._generate, parse_completion),
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/tokenize"): self._tokenize,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("POST", "/ping"): self._health,
            ("GET", "/version"): lambda exchange: exchange.respond_json(200, {"version": VERSION}),
            ("GET", "/metrics"): lambda exchange: exchange.respond(
                200, self.metrics.page(), "text/plain; version=0.0.4; charset=utf-8"
            ),
        }
        self._paths = {path for _, path in self._routes}

    @staticmethod
    def check(profiles: Mapping[str, EngineProfile], options: VllmOptions) -> None:
        """Raises ValueError without a model, and for models or a context that KV memory cannot hold."""
        if not profiles:
            raise ValueError("a vllm instance serves at least one model")
        longest, room_tokens = options.max_model_len, engine_of(profiles).profile.kv_capacity_tokens
        if longest is not None and longest > room_tokens:
            raise ValueError(f"max_model_len {longest} is more than KV memory holds ({room_tokens} tokens)")

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, now or later."""
        path = exchange.path
        if self.options.api_key is not None and path.startswith("/v1") and not self._has_key(exchange):
            exchange.respond_json(401, {"error": "Unauthorized"})
            return
        route = self._routes.get((exchange.method, path))
        if route is None:
            if path in self._paths:
                exchange.respond_json(405, {"detail": "Method Not Allowed"})
            else:
                exchange.respond_json(404, {"detail": "Not Found"})
            return
        try:
            route(exchange)
        except Rejected as error:
            exchange.respond(error.status, error_json(error.status, error.message, error.kind, error.param))

    def state(self) -> dict[str, Any]:
        """The state that tests read, without scraping."""
        return {name: getattr(self.engine, name) for name in _STATE}

    def close(self) -> None:
        self.driver.close()

    def _has_key(self, exchange: Exchange) -> bool:
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        wanted = (self.options.api_key or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(key.encode(), wanted)

    # --- small routes ---
    def _health(self, exchange: Exchange) -> None:
        exchange.respond(200 if self.healthy else 503)

    def _models(self, exchange: Exchange) -> None:
        cards: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "vllm",
                "root": name,
                "parent": None,
                "max_model_len": self.max_model_len,
                "permission": [],
            }
            for name in (*self._names, *self.options.aliases)
        ]
        exchange.respond_json(200, {"object": "list", "data": cards})

    def _tokenize(self, exchange: Exchange) -> None:
        body = fields.json_object(exchange)
        self._check_model(body)
        if "messages" in body:
            data = encoded(chat_text(fields.messages_of(body)))
        elif isinstance(body.get("prompt"), str):
            data = encoded(body["prompt"])
        else:
            raise fields.validation("prompt", "Field required")
        ids = token_ids(data)
        exchange.respond_json(
            200, {"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids, "token_strs": None}
        )

    def _check_model(self, body: dict[str, Any]) -> str:
        name = body.get("model")
        if name is None:
            return self.model
        if not isinstance(name, str):
            raise fields.validation("model", "Input should be a valid string")
        if name not in self._names and name not in self.options.aliases:
            raise Rejected(404, f"The model `{name}` does not exist.", "NotFoundError", "model")
        return name

    def _model_of(self, name: str) -> str:
        """The model of this name: an alias is the base's."""
        return name if name in self._names else self.model

    # --- generation ---
    def _generate(self, parse: Callable[[Mapping[str, Any], list[str]], Job], exchange: Exchange) -> None:
        body = fields.json_object(exchange)
        name = self._check_model(body)
        job = parse(body, self._names[self._model_of(name)])
        check_context(job, self.max_model_len)
        prefix = "chatcmpl" if job.chat else "cmpl"
        wire = VllmWire(job, name, f"{prefix}-{exchange.headers.get('x-request-id') or uuid.uuid4().hex}")
        choices = [
            self._choice(prompt, job, self._model_of(name), number * job.n + index, index)
            for number, prompt in enumerate(job.prompts)
            for index in range(job.n)
        ]
        if self._run(exchange, job, wire, choices):
            self.metrics.request(job.n, job.max_tokens)

    def _run(self, exchange: Exchange, job: Job, wire: VllmWire, choices: list[Choice]) -> bool:
        """Submit the choices, unless a fault or the load is in the way. Returns whether they were submitted."""
        fault = self.faults.take()
        if fault is not None and fault.kind is FaultKind.STATUS:
            exchange.respond(fault.status, wire.error_body(fault.status, "emulated fault"))
            return False
        limit = self.options.max_num_queued_reqs
        if limit is not None and self.driver.active() + len(choices) > limit:
            self._shed(exchange, job, wire)
            return False
        generation = Generation(
            exchange,
            self.driver,
            wire,
            choices,
            streaming=job.stream,
            fault=fault,
            observer=self.metrics,
            on_end=self.live.discard,
        )
        self.live.add(generation)
        generation.begin()
        return True

    def _shed(self, exchange: Exchange, job: Job, wire: VllmWire) -> None:
        self.metrics.rejections_total += 1
        if job.stream and self.options.shed_in_stream:
            exchange.start(200, wire.content_type)
            exchange.finish(wire.stream_error(503, _SHED_MESSAGE))
        else:
            exchange.respond(503, wire.error_body(503, _SHED_MESSAGE))

    def _choice(self, prompt: Prompt, job: Job, served: str, index: int, salt: int) -> Choice:
        model = self._names[served][-1]
        seed = seed_of(prompt.data, f"{model}/{salt}")
        room = self.max_model_len - prompt.tokens
        limit = min(room, job.max_tokens) if job.max_tokens is not None else room
        if job.ignore_eos:
            wanted = limit
        else:
            wanted = max(
                job.requested_tokens or drawn_output_tokens(prompt.data, model, salt), job.min_tokens
            )
        stops: Sequence[str] = ()
        if job.tool is not None:
            answer = given_answer(fields.tool_arguments(job.tool))
        elif job.as_json:
            answer = shaped_answer(seed, wanted, job.schema)
        else:
            answer, stops = Answer(seed, wanted), job.stops
        answer, finish, stop = ended_answer(answer, limit, stops)
        if job.ignore_eos and stop is None:
            finish = "length"
        sequence = new_sequence(prompt.data, prompt.tokens, answer.tokens, served, finish)
        forced = job.tool is not None and not job.tool_named and finish == "stop"
        return Choice(index, sequence, self.engine.submit, answer, "tool_calls" if forced else finish, stop)

    # --- embeddings ---
    def _embeddings(self, exchange: Exchange) -> None:
        body = fields.json_object(exchange)
        name = self._check_model(body)
        prompts = prompts_of(body.get("input"), "input")
        dimensions = fields.integer(body, "dimensions")
        if dimensions is None:
            dimensions = EMBEDDING_DIMENSIONS
        if not 1 <= dimensions <= 8192:
            raise fields.invalid(f"dimensions must be between 1 and 8192, got {dimensions}.", "dimensions")
        form = body.get("encoding_format", "float")
        if form not in {"float", "base64"}:
            raise fields.validation("encoding_format", "Input should be float or base64")
        truncate(prompts, truncation_of(body), self.max_model_len)
        for prompt in prompts:
            if prompt.tokens > self.max_model_len - 1:
                raise fields.invalid(
                    f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
                    f"{prompt.tokens} tokens in the input for embedding generation. Please reduce the length of "
                    "the input.",
                    "input",
                )
        job, served = Job(chat=False, prompts=prompts), self._model_of(name)
        sequences = (new_sequence(prompt.data, prompt.tokens, 0, served) for prompt in prompts)
        choices = [
            Choice(index, sequence, self.engine.submit, Answer(0, 0), "stop")
            for index, sequence in enumerate(sequences)
        ]
        self._run(exchange, job, VllmEmbeddingWire(job, name, dimensions, form), choices)
