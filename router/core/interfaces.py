"""Interfaces between the core and its plug-ins: policies, predictors and backends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol, runtime_checkable

from router.compiled import compiled_init
from router.core.options import Option, Options, PredictionColumns
from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction, PromptFeatures, Request

#: Parts of these interfaces that are not defined here.
__all__ = ["Option", "Options", "PredictionColumns"]


@compiled_init
@dataclass(slots=True)
class Choice:
    """What a policy decided.

    `index` is the chosen option. `scores` has one score for each option: lower is better, None if not scored. `reasons`
    says why each other option was not chosen; it is None for the chosen one. `propensity` is the probability of this
    draw. `alternatives` are options that the policy rates as equally good; exploration may take one of them. `defer`
    means that the request's SLO is given up, and that it would delay other requests at any option: the scheduler may queue
    it and decide again, or refuse it if the SLO is hard. `memo` carries what `choose` computed to `placed`; only the policy
    reads it. `check`: the answer is to be checked before the client gets it (`Policy.reconsider`); only for a request that has a
    `check`.
    """

    index: int
    scores: Sequence[float | None]
    reasons: Sequence[str | None]
    propensity: float = 1.0
    alternatives: Sequence[int] = ()
    defer: bool = False
    memo: Any = None
    check: bool = False


class CheckedAnswer(NamedTuple):
    """A complete answer that the client has not got yet. `prediction` is that of its dispatch, `cost_usd` what the request
    has cost so far, `score` what the check says of it, from 0 to 1."""

    candidate: Candidate
    prediction: Prediction
    cost_usd: float
    score: float


class Policy(Protocol):
    """Picks one of the options. It does no I/O, reads no clock, and takes random numbers only from the given generator.

    A subclass needs only `choose`. The other methods tell it what came of its choices."""

    name: str
    predicts: bool

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        """Pick one of `options` (at least one). This changes no state, because dry runs and deferred requests call it too.
        The same state, request, options and generator give an equal Choice."""

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """The request is dispatched to `options[choice.index]`: advance counters here. `options` are those of `choose`, with
        the same predictions. The chosen instance already counts the request. `choice` is what `choose`
        returned or, with exploration, one of its alternatives with the same memo."""
        return  # with a body it is not abstract

    def refused(self, request: Request, options: Sequence[Option]) -> None:
        """The request is refused, because none of `options` (at least one, with predictions) meets its hard SLO."""
        return

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """A request that this policy placed ended at `candidate`. `met`: whether its SLO was met; None if it had no SLO,
        or if the reason of its end says nothing about the SLO."""
        return

    def reconsider(
        self, request: Request, answer: CheckedAnswer, options: Sequence[Option], rng: Random
    ) -> Choice | None:
        """An answer was checked, because the choice had `check`: where the request goes now; None if the answer is good
        enough. Learns from the score. `options` may be empty. Called once for each checked answer; `placed` follows a
        choice."""
        return None


class SharedCursor(Protocol):
    """A round-robin position for each group of options, shared by all router replicas."""

    def drain_outgoing(self) -> Mapping[str, tuple[str, str]]:
        """The last chosen (instance, model) of each group that advanced here since the previous call."""

    def receive(self, positions: Mapping[str, tuple[str, str]]) -> None:
        """Continue from the positions that other replicas sent."""


@runtime_checkable
class HasSharedCursor(Protocol):
    """A policy that takes options in turn, at a shared position."""

    cursor: SharedCursor


@dataclass(slots=True, eq=False)
class SentAttempt:
    """What a predictor sees of an attempt: `prediction` was made at its dispatch. One object stands for the attempt in all its
    events."""

    request: Request
    candidate: Candidate
    instance: Instance
    prediction: Prediction


class Predictor(Protocol):
    """Predicts how a candidate would serve a request, and learns from the outcome.

    The `observe_` methods are called when the event happens, after the instance's counters include it.
    """

    @property
    def name(self) -> str:
        """The predictor's name in records."""

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        """The prediction for a dispatch of the request to `candidate` at `now`."""

    def predict_all(
        self, request: Request, options: Sequence[Option], now: float
    ) -> PredictionColumns | None:
        """Set `Option.prediction` of every option; cheaper than one call each. Returns the same values by column, if the
        predictor has them."""

    def qualities(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """The expected quality of each candidate's answer, equal to that of `predict_all`; None if unknown."""

    def observe_dispatch(self, attempt: SentAttempt, now: float) -> None:
        """The attempt is dispatched."""

    def observe_ttft(self, attempt: SentAttempt, engine_ttft_s: float, now: float) -> None:
        """The first token came `engine_ttft_s` after the dispatch."""

    def observe_end(
        self,
        attempt: SentAttempt,
        output_tokens: int,
        max_tokens: int | None,
        prompt_tokens: int | None,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """The attempt ended normally, with the engine's token counts and its mean time per output token. At `max_tokens` each
        choice was or would have been cut (None: at no length)."""

    def observe_loss(
        self,
        attempt: SentAttempt,
        waited_s: float,
        decoding: bool,
        output_tokens: int,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """The attempt was cancelled, expired or failed `waited_s` after its dispatch. `decoding`: after its first token.
        If not, its first token would have come later than `waited_s`. The answer would have been longer than the
        `output_tokens` so far, which took `tpot_s` each (None: unknown)."""

    def observe_report(self, instance: Instance, now: float) -> None:
        """A load report of the engine arrived (`instance.report`)."""

    def observe_quality(
        self, model: str, features: PromptFeatures, quality: float, *, recorded: bool = False
    ) -> None:
        """An answer of `model` to such a prompt was judged `quality`, 0 to 1. `recorded`: it comes from the records,
        where every replica finds it."""

    def receive(self, message: bytes, instances: Mapping[str, Instance], now: float) -> None:
        """Learn from what another replica observed."""

    def use(self, models: Any) -> None:
        """Predict with these trained models from now on."""

    def forget(self, instances: Collection[str]) -> None:
        """Instances have left the fleet."""

    def ttft_floor_s(self, request: Request, candidate: Candidate, instance: Instance) -> float:
        """The least time to a first token on an idle instance. A hard TTFT below it can never be met."""


# --- estimates from the prompt alone ------------------------------------------------------------------
class TextEstimates(NamedTuple):
    """Estimates for each given model from the prompt alone: quality in [0, 1] and output tokens; None for an unknown
    model."""

    quality: Sequence[float | None]
    output_tokens: Sequence[float | None]


#: Estimates quality and output length from the prompt's features, for these models.
TextEstimator = Callable[[PromptFeatures, Sequence[str]], TextEstimates]


# --- backends -----------------------------------------------------------------------------------------
class Collector(Protocol):
    """Puts an answer together from the events of its stream as the adapter parsed them, so that none is parsed twice."""

    def take_event(self, chunk: dict[str, Any], size: int) -> None:
        """Take one event of OpenAI's, which the collector may change. `size`: its bytes."""

    def take_texts(self, field: str, escaped: bytes) -> None:
        """Take further events that differ from the last one in one string only, the choice's or its delta's `field`:
        their strings in JSON's escapes, one after the other."""


@compiled_init
class Call(NamedTuple):
    """One attempt for a backend to send.

    `api` is "chat", "completions" or "embeddings". `body` is the client's OpenAI-shaped body without `routing`; attempts
    share it, so it must not be changed. The backend sets model, stream, stream_options and the output limit itself.
    `streams`: the answer is to come as a stream, not in one piece. `traceparent` is the attempt's trace context.
    `collector` takes the events of the stream, if the adapter parses any; its batches then have no data.
    `usage_each` requests the usage so far in every event, if the engine is known to support that. The events are then in the
    batches, to be counted first. `usage_collector` takes the usage-only event, which is in no batch. `cache_salt` separates the
    prompt from other keys' prompts in the engine's prefix cache.
    """

    api: str
    body: Mapping[str, Any]
    candidate: Candidate
    request_id: str
    max_output_tokens: int | None = None
    streams: bool = True
    usage_each: bool = False
    traceparent: str | None = None
    cache_salt: str | None = None
    collector: Collector | None = None
    usage_collector: Collector | None = None

    @property
    def request_id_value(self) -> str:
        """The value of the `x-request-id` header sent to the engine, with the `traceparent` line if there is one."""
        if self.traceparent is None:
            return self.request_id
        return f"{self.request_id}\r\ntraceparent: {self.traceparent}"


@compiled_init
class Batch(NamedTuple):
    """The result of one read of a stream.

    `data` are complete SSE events in OpenAI's shape, ready to pass on: with the fleet's model name, without the
    usage-only event that the router requested, and without `[DONE]`. `tokens` counts the events that carry content,
    reasoning, a refusal or tool calls; an engine may put several tokens in one event, so only `usage` is exact. `usage`
    and `finish_reason` are set by the read that contains them. If one of several choices was cut at its limit, the
    reason is `length` for all.
    """

    data: bytes
    tokens: int = 0
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None


class Sink(Protocol):
    """Whoever follows a call. Its methods are called inside the transport's callbacks, without waiting for the next
    iteration of the event loop (which would be a fifth of the cost of relaying a chunk). The last call is `ended` or
    `failed`; none comes after `OpenCall.abort`."""

    def sent(self) -> None:
        """The request has been written to the engine. (Again, if it had to be sent on another connection.)"""

    def take(self, batch: Batch) -> bool:
        """A batch has arrived. Returns True to pause the stream until `OpenCall.resume`."""

    def ended(self, answer: dict[str, Any] | None) -> None:
        """A clean end: `[DONE]` or the engine's own end mark (None), or the whole answer, as an OpenAI object."""

    def failed(self, error: Exception) -> None:
        """An UpstreamError if the engine refuses the request or reports an error, closes the connection early, or is
        silent after its first byte for longer than the idle limit. Any other exception is a fault of the router, such as
        one of the sink."""


class OpenCall(Protocol):
    """A call under way."""

    def resume(self) -> None:
        """Continue after `Sink.take` paused the stream. The idle limit does not count the pause."""

    def abort(self) -> None:
        """Close the connection, so that the engine stops generating. Safe at any time, also after the end."""


#: The body fields that `Backend.count_tokens` sends: all that an engine's tokenizer endpoint accepts.
COUNTED_FIELDS = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "prompt",
    "input",
)


class Backend(Protocol):
    """The adapter for one instance of an engine kind. Raises only UpstreamError and its subclasses."""

    @property
    def busy(self) -> int:
        """The number of open calls."""

    def start(self, call: Call, sink: Sink) -> OpenCall:
        """Send a request: a generation as a stream, or anything in one piece (embeddings, `prompt_logprobs`, beam search).
        Calls no method of `sink` but `sent` before it returns. Raises UpstreamError for a request that cannot be sent."""

    async def count_tokens(self, call: Call) -> int | None:
        """The number of tokens in the body's COUNTED_FIELDS by the engine's own tokenizer; None if it has no endpoint for
        that."""

    async def probe(self) -> bool:
        """True if the engine passes its health check. Raises UpstreamError with the reason if it does not; False says none."""

    async def load(self) -> LoadReport:
        """The engine's load report; empty if the engine reports nothing."""

    async def mismatches(self) -> list[str]:
        """Differences between the engine's models and the fleet file, one sentence each."""

    async def aclose(self) -> None:
        """Close pooled connections."""
