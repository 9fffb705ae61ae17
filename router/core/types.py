"""The shared types. Names carry units (`_s`, `_tokens`, `_usd`). An unknown value is None, never -1 or 0."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from router.compiled import compiled_init


class Outcome(StrEnum):
    """How a request ended. Each request that reached the router has exactly one."""

    OK = "ok"
    LATE = "late"
    REJECTED_INVALID = "rejected_invalid"
    REJECTED_AUTH = "rejected_auth"
    REJECTED_RATE = "rejected_rate"
    REJECTED_BUDGET = "rejected_budget"
    REJECTED_SLO = "rejected_slo"
    REJECTED_OVERLOAD = "rejected_overload"
    REJECTED_NO_INSTANCE = "rejected_no_instance"
    EXPIRED_IN_QUEUE = "expired_in_queue"
    EXPIRED_BEFORE_FIRST_TOKEN = "expired_before_first_token"  # noqa: S105 (no password)
    EXPIRED_MID_DECODE = "expired_mid_decode"
    BUDGET_EXHAUSTED_MID_DECODE = "budget_exhausted_mid_decode"
    BACKEND_ERROR = "backend_error"
    CLIENT_CANCELLED = "client_cancelled"


#: Outcomes of requests whose client got an answer.
ANSWERED = frozenset({Outcome.OK, Outcome.LATE, Outcome.BUDGET_EXHAUSTED_MID_DECODE})
#: Outcomes that attainment does not count as offered.
OUTSIDE_ATTAINMENT = frozenset({Outcome.REJECTED_INVALID, Outcome.REJECTED_AUTH, Outcome.CLIENT_CANCELLED})


class EndedHow(StrEnum):
    """How one attempt ended."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HEDGE_LOST = "hedge_lost"


#: The share of an amount of money that rounding may add or take.
ROUNDING = 1e-13
_NO_BOUND_TOKENS = 1e12  # a larger limit has no effect in practice, and JSON cannot carry it exactly


@dataclass(frozen=True, slots=True)
class Price:
    """The tariff of one attempt, with separate prices for input and output tokens (USD per million tokens)."""

    input_usd_per_mtok: float = 0.0
    output_usd_per_mtok: float = 0.0

    def cost_usd(self, prompt_tokens: float, output_tokens: float) -> float:
        return (prompt_tokens * self.input_usd_per_mtok + output_tokens * self.output_usd_per_mtok) * 1e-6

    def affordable_output_tokens(self, prompt_tokens: int, budget_usd: float) -> int | None:
        """The most output tokens that `budget_usd` pays for after the prompt. Negative if it cannot pay for the prompt,
        None if it pays for any answer."""
        left_usd = budget_usd * 1e6 * (1 + ROUNDING) - prompt_tokens * self.input_usd_per_mtok
        if left_usd < 0:
            return -1
        if self.output_usd_per_mtok == 0:
            return None
        tokens = left_usd / self.output_usd_per_mtok
        return int(tokens) if tokens < _NO_BOUND_TOKENS else None


@dataclass(frozen=True, slots=True)
class Slo:
    """The targets of one request in seconds; None for a target that is not set."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def met(self, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> bool:
        """True if the measured times meet every target that is set. An unknown time misses its target, except TPOT,
        which an answer of fewer than two tokens does not have."""
        return not (
            (self.ttft_s is not None and (ttft_s is None or ttft_s > self.ttft_s))
            or (self.tpot_s is not None and tpot_s is not None and tpot_s > self.tpot_s)
            or (self.e2e_s is not None and (e2e_s is None or e2e_s > self.e2e_s))
        )


class Capability(StrEnum):
    """What a request may need and not every engine kind supports. Messages put the values after "can" and "cannot"."""

    SEVERAL_ANSWERS = "give several answers"
    SEVERAL_PROMPTS = "take several prompts"
    PROMPTS_AS_IDS = "take token ids"
    ECHO = "echo a prompt"
    IMAGES_BY_URL = "fetch an image by its URL"
    OTHER_MEDIA = "take parts other than text and images"
    TRUNCATION = "truncate a prompt"
    PROMPT_LOGPROBS = "give log probabilities of a prompt"
    BEAM_SEARCH = "search by beams"


class Need(NamedTuple):
    """A capability that a request needs, and the body field that requires it."""

    capability: Capability
    param: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One (instance, model) pair, with its price, context length, quantisation and quality.

    `model` is the model's name in the fleet, `upstream_model` its name at the engine, and `quality` a prior in [0, 1].
    """

    instance: str
    model: str
    upstream_model: str
    price: Price = Price()
    context_tokens: int | None = None
    quality: float | None = None
    quantization: str | None = None
    family: str | None = None


@compiled_init
class PromptFeatures(NamedTuple):
    """The prompt's features for predictors: hashed words of its beginning and end, and counts; never its text.

    `head` and `tail` are word ids in [0, 65536) in order (`predictors.learned.text`); the tail excludes the words of the
    head. `counts` are integers in the order of `predictors.learned.text.COUNTS`, over the whole prompt or, for a long
    one, over the parts that were read.
    """

    head: tuple[int, ...]
    tail: tuple[int, ...]
    counts: tuple[int, ...]


class AnswerCheck(NamedTuple):
    """How an answer may be checked before its client gets it.

    `dprime`: how well the check tells good answers from poor ones: the distance of the means of its ratings of both, in
    standard deviations. A check reads `form_tokens`, the prompt and the answer, and writes `verdict_tokens`, at `price`. It
    takes at most `limit_s`.
    """

    dprime: float
    price: Price
    form_tokens: int
    verdict_tokens: int
    limit_s: float

    def cost_usd(self, prompt_tokens: float, output_tokens: float) -> float:
        """The price in USD of checking an answer of so many tokens to such a prompt."""
        return self.price.cost_usd(self.form_tokens + prompt_tokens + output_tokens, self.verdict_tokens)


#: `Request.prefix` covers at most this many leading tokens of a prompt.
PREFIX_TOKENS = 16_384


@compiled_init
@dataclass(slots=True)
class Request:
    """One request as the scheduler sees it (no text).

    `arrived_at` and `expires_at` are on the runner's clock in seconds. `models` are the names that may serve it;
    `fallbacks` are tried in order if none of `models` can. `prompt_tokens` is the best estimate over all prompts of the
    request, `prompt_tokens_bound` an upper bound for money caps, `longest_prompt_tokens` the longest of several prompts
    (None: one prompt). `max_cost_usd` is the client's cap over all attempts. `hard`: a missed SLO refuses or ends the
    request. `prefix` are hashes of the prompt's leading blocks, shortest first, over at most its first PREFIX_TOKENS
    tokens. `owner` is the operator's key above `key`, or `key` itself. `cache_salt` separates its prompts from those of
    other keys in engines' caches (None: they are not separated).
    """

    id: str
    arrived_at: float
    policy: str
    models: tuple[str, ...]
    fallbacks: tuple[str, ...] = ()
    prompt_tokens: int = 0
    prompt_tokens_bound: int = 0
    counted: tuple[str, int] | None = None  # a model, and the prompt's tokens by that model's tokenizer
    longest_prompt_tokens: int | None = None
    prompt_field: str = "messages"  # the field of its body that has the prompt, named in a refusal
    max_tokens: int | None = None
    slo: Slo | None = None
    hard: bool = False
    max_cost_usd: float | None = None
    min_quality: float | None = None
    priority: int = 0
    seed: int | None = None
    key: str | None = None
    owner: str | None = None
    cache_salt: str | None = None
    session: str | None = None
    expires_at: float = float("inf")
    decodes: bool = True  # False for embeddings
    #: Answers that the engine makes and bills: `n` for each prompt, or `best_of` if that is more. Output is capped and
    #: priced for each. A non-streaming answer may contain fewer than were made.
    choices: int = 1
    needs: tuple[Need, ...] = ()  # capabilities that not every engine has; usually none
    #: The client gets tokens at once, so an attempt cannot be replaced after its first token.
    client_streams: bool = True
    engine_streams: bool = True  # False if an engine cannot stream this answer
    hedges: bool = True  # False if two parallel attempts cannot be compared by their first token
    check: AnswerCheck | None = None  # None: its answer is not checked
    prefix: tuple[int, ...] = ()
    features: PromptFeatures | None = None  # None: the text is not known
    forecast: Any = None  # computed from `features` once per request; only the predictor reads it

    def bound_tokens(self, model: str) -> int:
        """An upper bound of the prompt's tokens for one model."""
        if self.counted is not None and self.counted[0] == model:
            return self.counted[1]
        return self.prompt_tokens_bound


@compiled_init
@dataclass(frozen=True, slots=True)
class LoadReport:
    """An engine's report of its load at one moment; None means unknown, not zero."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None  # share of KV blocks in use, 0 to 1
    kv_capacity_tokens: int | None = None
    loaded_models: frozenset[str] | None = None  # Ollama: the models in memory now


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one request at one candidate.

    Times count from the request's arrival at the router, queue included. `p_miss` is the calibrated probability that any
    target of its SLO is missed (None without an SLO). `cost_usd` is the expected price of the attempt. `engine_ttft_s`
    and `tpot_s` are medians that count from the dispatch. `quality_sd` is the standard deviation of `quality` (None for
    a prior). `memory_ratio` is the mean share of the instance's KV memory that is in use while the request runs.
    """

    output_tokens_p50: float | None = None
    output_tokens_p90: float | None = None
    output_tokens_mean: float | None = None
    ttft_s_p50: float | None = None
    ttft_s_p95: float | None = None
    tpot_s: float | None = None
    e2e_s_mean: float | None = None
    e2e_s_p50: float | None = None
    e2e_s_p95: float | None = None
    quality: float | None = None
    cost_usd: float | None = None
    p_miss: float | None = None
    engine_ttft_s: float | None = None
    quality_sd: float | None = None
    memory_ratio: float | None = None


@compiled_init
class Considered(NamedTuple):
    """One candidate of a decision: its prediction, its score (lower is better, None if not scored), and why it was not
    chosen (None for the chosen one)."""

    candidate: Candidate
    prediction: Prediction | None
    score: float | None
    reason: str | None


@compiled_init
class Decision(NamedTuple):
    """One decision. `chosen` is None if no candidate could take the request. `propensity` is the probability with which
    the policy chose this candidate. `loads` are the engines' load features at the decision, one row for each considered
    candidate, with the columns of `router.core.state.LOAD_FEATURES`."""

    policy: str
    at_s: float
    chosen: int | None
    considered: tuple[Considered, ...]
    propensity: float | None
    loads: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Targets:
    """The means that `cost` and the text-only policies hold for a scope (a key, or the fleet).

    `quality` is the target mean quality in [0, 1]. None means the best mean that is reachable while attainment is kept
    (`cost`), or that of the best single model on the scope's own requests (the text-only policies), less `quality_slack`.
    `attainment` is the target share of requests that meet their SLO. Prices adapt over about `window_requests` requests.
    """

    quality: float | None = None
    quality_slack: float = 0.01
    attainment: float = 0.95
    window_requests: int = 500
