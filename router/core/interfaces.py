"""Contracts between the core and what is plugged into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol, runtime_checkable

from router.core.state import Instance
from router.core.types import Candidate, LoadReport, Prediction, PromptFeatures, Request, Targets


@dataclass(slots=True)
class Option:
    """One candidate that can take the request now. `prediction` is None unless the policy uses predictions
    (`Policy.predicts`)."""

    candidate: Candidate
    instance: Instance
    prediction: Prediction | None = None


@dataclass(slots=True)
class Choice:
    """What a policy decided.

    `index` is the option taken. `scores` has one score for each option: lower is better, None where not scored.
    `reasons` says why each other option was passed over; it is None for the option taken. `propensity` is the
    probability of this draw. Exploration may take one of `alternatives`, options as good by the policy's own terms.
    With `defer` the request misses its SLO wherever it is sent now, and costs other requests theirs: the scheduler
    may queue it and decide again. `memo` is for the policy alone: what `choose` computed and `placed` needs.
    """

    index: int
    scores: Sequence[float | None]
    reasons: Sequence[str | None]
    propensity: float = 1.0
    alternatives: Sequence[int] = ()
    defer: bool = False
    memo: Any = None


class Policy(Protocol):
    """Picks one of the options. A plain object: no I/O, no clock, no randomness but the generator given."""

    name: str
    predicts: bool

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        """Pick one of `options` (at least one). Changes nothing: dry runs and deferred requests call it too. The
        same state, request, options and generator give an equal Choice."""
        ...

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """The request is dispatched to `options[choice.index]`: advance counters here. `options` are those that
        `choose` saw, with the same predictions; the instance taken already counts the request. `choice` is what
        `choose` returned, or with exploration one of its alternatives, which keeps its memo."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A policy that learns from the outcomes of its choices."""

    def ended(self, request: Request, candidate: Candidate, met: bool | None, now: float) -> None:
        """A request that this policy placed ended at `candidate`, in whatever way. `met` says whether its SLO was met:
        None if it had none, or ended for a reason that says nothing about the SLO."""
        ...


class SharedCursor(Protocol):
    """A round-robin position for each group of options, which all replicas of the router advance together."""

    def drain_outgoing(self) -> Mapping[str, tuple[str, str]]:
        """The (instance, model) taken last, by group, for all groups that advanced here since the last call."""
        ...

    def receive(self, positions: Mapping[str, tuple[str, str]]) -> None:
        """Continue from the positions of other replicas."""
        ...


@runtime_checkable
class HasSharedCursor(Protocol):
    """A policy that takes options in turn."""

    cursor: SharedCursor


class TargetHolder(Protocol):
    """The targets that policies hold."""

    def use(self, targets: Mapping[str | None, Targets]) -> None:
        """Hold these from now on: by key, and None for the fleet."""
        ...


class Predictor(Protocol):
    """Expects what a candidate would do with a request, and learns from what it did.

    Whatever happens to an attempt is told when it happens, after the instance's own counters include it.
    """

    @property
    def name(self) -> str:
        """What predicts, as records name it."""
        ...

    def predict(self, request: Request, candidate: Candidate, instance: Instance, now: float) -> Prediction:
        """Expectation if the request were dispatched to `candidate` at `now`."""
        ...

    def predict_all(self, request: Request, options: Sequence[Option], now: float) -> None:
        """Give every option its prediction (`Option.prediction`): cheaper than one by one."""
        ...

    def qualities(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float | None]:
        """Expected quality of each candidate's answer, what `predict_all` would say; None where nothing is known."""
        ...

    def observe_dispatch(
        self, request: Request, candidate: Candidate, instance: Instance, prediction: Prediction, now: float
    ) -> None:
        """An attempt is on its way to the instance; `prediction` is the one made for it at `now`."""
        ...

    def observe_ttft(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        engine_ttft_s: float,
        now: float,
    ) -> None:
        """The first token came `engine_ttft_s` after the dispatch for which `prediction` was made."""
        ...

    def observe_end(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        output_tokens: int,
        prompt_tokens: int | None,
        tpot_s: float | None,
        now: float,
    ) -> None:
        """The attempt ended on its own: the engine's token counts and its mean time per output token."""
        ...

    def observe_loss(
        self,
        request: Request,
        candidate: Candidate,
        instance: Instance,
        prediction: Prediction,
        waited_s: float,
        decoding: bool,
        now: float,
    ) -> None:
        """The attempt was cancelled, expired or failed `waited_s` after its dispatch, `decoding` or before its
        first token: that would have come later than this."""
        ...

    def observe_report(self, instance: Instance, now: float) -> None:
        """The engine's own view of its load has come (`instance.report`)."""
        ...

    def observe_quality(
        self, model: str, features: PromptFeatures, quality: float, *, recorded: bool = False
    ) -> None:
        """An answer of `model` to such a prompt was judged `quality`, 0 to 1. `recorded`: it comes from the records,
        where every replica finds it."""
        ...

    def receive(self, message: bytes, instances: Mapping[str, Instance], now: float) -> None:
        """Learn from what another replica observed."""
        ...

    def use(self, models: Any) -> None:
        """Predict with these trained models from now on."""
        ...

    def forget(self, instance: str) -> None:
        """An instance has left the fleet."""
        ...

    def ttft_floor_s(self, request: Request, candidate: Candidate, instance: Instance) -> float:
        """Least time to a first token on an idle instance; a hard TTFT below it can never be met."""
        ...


# --- what the prompt alone says -----------------------------------------------------------------------
class TextEstimates(NamedTuple):
    """What a text-only estimator expects of each model asked about: quality in [0, 1] and output tokens; None
    where it knows nothing of the model."""

    quality: Sequence[float | None]
    output_tokens: Sequence[float | None]


class TextEstimator(Protocol):
    """Looks at the prompt alone, not at any instance."""

    def __call__(self, features: PromptFeatures, models: Sequence[str]) -> TextEstimates: ...


# --- backends -----------------------------------------------------------------------------------------
class Call(NamedTuple):
    """One attempt as a backend sends it.

    `api` is "chat", "completions" or "embeddings"; `body` is the client's OpenAI-shaped body without
    `routing` (shared between attempts: never change it). The backend sets model, stream, stream_options
    and the output bound itself. `traceparent` is where the attempt stands in a trace. `usage_each` wishes for the usage
    so far in every event, where the engine is known to give it. `sent` is called when the request is on its way to the
    engine. `cache_salt` keeps the prompt in the engine's prefix cache apart from those of other keys.
    """

    api: str
    body: Mapping[str, Any]
    candidate: Candidate
    request_id: str
    max_output_tokens: int | None = None
    usage_each: bool = False
    traceparent: str | None = None
    sent: Callable[[], None] | None = None
    cache_salt: str | None = None

    @property
    def told(self) -> str:
        """What an engine is told of the request in its head: the value of `x-request-id`, and further lines."""
        if self.traceparent is None:
            return self.request_id
        return f"{self.request_id}\r\ntraceparent: {self.traceparent}"


class Batch(NamedTuple):
    """What arrived in one read of a stream.

    `data` are whole SSE events in OpenAI's shape, as to be passed on: the fleet's model name in them,
    without the usage-only event that the router asked for and without `[DONE]`. `tokens` counts events
    that carry content, reasoning, refusal or tool calls (an engine may put several tokens in one; `usage`
    is the truth). `usage` and `finish_reason` are set by the read that saw them; once one of several choices was cut at
    its bound the reason is `length`, however others end.
    """

    data: bytes
    tokens: int = 0
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None


#: Takes each batch of a stream; True asks for a pause until `Stream.resume`.
Sink = Callable[[Batch], bool]


class Stream(Protocol):
    """A streaming answer whose 2xx head has arrived. Use either `pump` or `read`."""

    async def pump(self, sink: Sink) -> None:
        """Hand every batch to `sink` in the moment it arrives, without a turn of the event loop in between
        (a fifth of the cost of relaying a chunk); returns at a clean end. Raises what `read` would, and
        whatever `sink` raises."""
        ...

    def resume(self) -> None:
        """Go on after `sink` asked for a pause. While paused the engine's silence is not counted."""
        ...

    async def read(self) -> Batch | None:
        """Whatever has arrived, at least one event; None at a clean end (`[DONE]` or the engine's own end
        mark). Raises UpstreamError when the engine reports an error, breaks off, or is silent for longer
        than the idle limit after its first byte."""
        ...

    def abort(self) -> None:
        """Give up: the connection is closed, so the engine stops working. Safe at any time, also while
        another task is inside `read` (which then raises UpstreamError) and after the end."""
        ...


#: The members of a body that `Backend.count_tokens` counts: all that an engine's tokenizer endpoint takes.
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
    """The adapter for one instance of an engine kind. Raises UpstreamError and its subclasses only."""

    kind: str

    @property
    def busy(self) -> int:
        """Calls under way."""
        ...

    async def stream(self, call: Call) -> Stream:
        """Send a generation request, streamed upstream; returns once the 2xx head is here."""
        ...

    async def complete(self, call: Call) -> dict[str, Any]:
        """Send what is not streamed (embeddings, `prompt_logprobs`, beam search); the parsed JSON answer."""
        ...

    async def count_tokens(self, call: Call) -> int | None:
        """Tokens of a body's members in COUNTED_FIELDS by the engine's own tokenizer; None if it has no such endpoint."""
        ...

    async def probe(self) -> bool:
        """Whether the engine answers its health check."""
        ...

    async def load(self) -> LoadReport:
        """The engine's own view of its load (an empty report if it tells nothing)."""
        ...

    async def aclose(self) -> None:
        """Close pooled connections."""
        ...
