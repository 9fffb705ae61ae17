"""The emulated vLLM server: its routes over one continuous-batching engine model.

Beside the formats it copies this behaviour of vLLM 0.32: the key is needed on /v1 only, and a wrong key gets `{"error":
"Unauthorized"}`; unknown paths get FastAPI's `{"detail": ...}`; load shedding is a 503 without Retry-After (or a 200
whose stream has the error); a client's `X-Request-Id` is part of the answer's id; the status line of a stream is sent
before its first token.
"""

from __future__ import annotations

import base64
import hmac
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, PositiveInt, Strict

from backends.emulator import openai_fields as fields
from backends.emulator.driver import Driver
from backends.emulator.faults import Fault, FaultBoard, FaultKind
from backends.emulator.generation import Choice, Generation, new_sequence_id
from backends.emulator.http import Exchange
from backends.emulator.openai_fields import Rejected
from backends.emulator.schemas import schema_answer
from backends.emulator.text import (
    Answer,
    chat_text,
    count_tokens,
    drawn_output_tokens,
    embedding,
    json_answer,
    model_names,
    prefix_hashes,
    seed_of,
    stopped_answer,
)
from backends.emulator.vllm_metrics import VllmMetrics
from backends.emulator.vllm_request import (
    Job,
    Prompt,
    check_context,
    parse_chat,
    parse_completion,
    prompts_of,
)
from backends.emulator.vllm_wire import VllmWire, error_json, error_kind, token_ids
from backends.engine import engine_of
from backends.engine.sequence import Finish, Sequence
from router.core.profile import EngineProfile

VERSION = "0.32.0+headway.emulator"
EMBEDDING_DIMENSIONS = 256
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
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
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
        engine = self.engine
        return {
            "running": engine.running,
            "waiting": engine.waiting,
            "kv_usage": engine.kv_usage,
            "preemptions_total": engine.preemptions_total,
            "prefix_queries_total": engine.prefix_queries_total,
            "prefix_hits_total": engine.prefix_hits_total,
            "prompt_tokens_total": engine.prompt_tokens_total,
            "generation_tokens_total": engine.generation_tokens_total,
        }

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
            data = chat_text(fields.messages_of(body)).encode("utf-8", "surrogatepass")
        elif isinstance(body.get("prompt"), str):
            data = body["prompt"].encode("utf-8", "surrogatepass")
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
    def _chat(self, exchange: Exchange) -> None:
        body = fields.json_object(exchange)
        name = self._check_model(body)
        self._generate(exchange, parse_chat(body, self._names[self._model_of(name)]), name)

    def _completion(self, exchange: Exchange) -> None:
        body = fields.json_object(exchange)
        name = self._check_model(body)
        self._generate(exchange, parse_completion(body, self._names[self._model_of(name)]), name)

    def _generate(self, exchange: Exchange, job: Job, name: str) -> None:
        check_context(job, self.max_model_len)
        prefix = "chatcmpl" if job.chat else "cmpl"
        wire = VllmWire(job, name, f"{prefix}-{exchange.headers.get('x-request-id') or uuid.uuid4().hex}")
        fault = self.faults.take()
        if fault is not None and fault.kind is FaultKind.STATUS:
            exchange.respond(
                fault.status, error_json(fault.status, "emulated fault", error_kind(fault.status))
            )
            return
        choices = [
            self._choice(prompt, job, self._model_of(name), number * job.n + index, index)
            for number, prompt in enumerate(job.prompts)
            for index in range(job.n)
        ]
        if self._sheds(len(choices)):
            self._shed(exchange, job, wire)
            return
        self.metrics.request(job.n, job.max_tokens)
        self._run(exchange, wire, choices, job.stream, fault)

    def _run(
        self, exchange: Exchange, wire: VllmWire, choices: list[Choice], streaming: bool, fault: Fault | None
    ) -> None:
        generation = Generation(
            exchange,
            self.driver,
            wire,
            choices,
            streaming=streaming,
            fault=fault,
            observer=self.metrics,
            on_end=self.live.discard,
        )
        self.live.add(generation)
        generation.begin()

    def _sheds(self, more: int) -> bool:
        limit = self.options.max_num_queued_reqs
        return limit is not None and self.driver.active() + more > limit

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
        arguments = fields.tool_arguments(job.tool) if job.tool is not None else None
        if arguments is not None:
            wanted = count_tokens(arguments)
        elif job.ignore_eos:
            wanted = limit
        else:
            wanted = max(
                job.requested_tokens or drawn_output_tokens(prompt.data, model, salt), job.min_tokens
            )
        shaped = None
        if job.as_json and job.tool is None:
            shaped = (
                json_answer(seed, max(wanted, 2))  # the shortest JSON object
                if job.schema is None
                else schema_answer(seed, wanted, job.schema)
            )
            wanted = shaped.tokens
        tokens = min(wanted, limit)
        finish: Finish = "stop" if wanted <= limit and not job.ignore_eos else "length"
        stop_reason: str | None = None
        if arguments is not None:
            answer = Answer(seed, tokens, [arguments[at : at + 4] for at in range(0, len(arguments), 4)])
        elif shaped is not None:
            answer = shaped
            answer.tokens = tokens
        elif job.stops:
            answer, stop_reason = stopped_answer(seed, tokens, job.stops)
            if stop_reason is not None:
                tokens, finish = answer.tokens, "stop"
        else:
            answer = Answer(seed, tokens)
        sequence = Sequence(
            id=new_sequence_id(),
            prompt_tokens=prompt.tokens,
            output_tokens=tokens,
            prefix=prefix_hashes(prompt.data),
            model=served,
            finish=finish,
        )
        reason: str = finish
        if job.tool is not None and finish == "stop" and not job.tool_named:
            reason = "tool_calls"
        return Choice(
            index,
            sequence,
            lambda now: self.engine.submit(sequence, now),
            answer,
            prompt.tokens,
            reason,
            stop_reason,
        )

    # --- embeddings ---
    def _embeddings(self, exchange: Exchange) -> None:
        body = fields.json_object(exchange)
        name = self._check_model(body)
        prompts = prompts_of(body.get("input"), "input")
        dimensions = fields.integer(body, "dimensions")
        if dimensions is None:
            dimensions = EMBEDDING_DIMENSIONS
        if not 1 <= dimensions <= 8192:
            raise Rejected(
                400, f"dimensions must be between 1 and 8192, got {dimensions}.", param="dimensions"
            )
        form = body.get("encoding_format", "float")
        if form not in {"float", "base64"}:
            raise fields.validation("encoding_format", "Input should be float or base64")
        for prompt in prompts:
            if prompt.tokens > self.max_model_len - 1:
                raise Rejected(
                    400,
                    f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
                    f"{prompt.tokens} tokens in the input for embedding generation. Please reduce the length of "
                    "the input.",
                    param="input",
                )
        fault = self.faults.take()
        if fault is not None and fault.kind is FaultKind.STATUS:
            exchange.respond(
                fault.status, error_json(fault.status, "emulated fault", error_kind(fault.status))
            )
            return
        if self._sheds(len(prompts)):
            self.metrics.rejections_total += 1
            exchange.respond(503, error_json(503, _SHED_MESSAGE, error_kind(503)))
            return
        wire = _EmbeddingWire(prompts, name, dimensions, form)
        choices = [
            self._embedding_choice(prompt, self._model_of(name), index)
            for index, prompt in enumerate(prompts)
        ]
        self._run(exchange, wire, choices, False, fault)

    def _embedding_choice(self, prompt: Prompt, served: str, index: int) -> Choice:
        sequence = Sequence(
            id=new_sequence_id(),
            prompt_tokens=prompt.tokens,
            output_tokens=0,
            prefix=prefix_hashes(prompt.data),
            model=served,
        )
        return Choice(
            index,
            sequence,
            lambda now: self.engine.submit(sequence, now),
            Answer(0, 0),
            prompt.tokens,
            "stop",
        )


class _EmbeddingWire(VllmWire):
    """The answer of /v1/embeddings; never streamed."""

    def __init__(self, prompts: list[Prompt], model: str, dimensions: int, form: str) -> None:
        super().__init__(Job(chat=False, prompts=prompts), model, f"embd-{uuid.uuid4().hex}")
        self._prompts = prompts
        self._dimensions = dimensions
        self._form = form
        self._name = model

    def whole(self, generation: Generation) -> bytes:
        data = []
        for index, prompt in enumerate(self._prompts):
            vector: list[float] | str = embedding(prompt.data, self._dimensions, self._name)
            if self._form == "base64":
                vector = base64.b64encode(struct.pack(f"<{self._dimensions}f", *vector)).decode()
            data.append({"index": index, "object": "embedding", "embedding": vector})
        tokens = sum(prompt.tokens for prompt in self._prompts)
        return orjson.dumps(
            {
                "id": self._id,
                "object": "list",
                "created": self._created,
                "model": self._model,
                "data": data,
                "usage": {
                    "prompt_tokens": tokens,
                    "total_tokens": tokens,
                    "completion_tokens": 0,
                    "prompt_tokens_details": None,
                },
            }
        )
