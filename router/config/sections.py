"""The sections of the fleet file about the gateway itself, with their defaults and bounds."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from router.config.fields import (
    Bool,
    Count,
    EnvironmentName,
    Float,
    HostName,
    HttpUrl,
    InstanceName,
    Int,
    ListenHost,
    ModelName,
    NotNegative,
    OnMiss,
    PasswordlessUrl,
    PathName,
    Pattern,
    PolicyName,
    Positive,
    Section,
    Share,
    SloConfig,
    Text,
    path_name,
)
from router.config.marks import AT_START


class ServerConfig(Section):
    """The address of the gateway. Port 0 takes a free one. `workers` processes share the port; more than one need a
    shared `state`. Each accepts at most `max_connections` of clients. `allowed_hosts` are host names that a gateway
    without keys accepts, beside those of this machine."""

    host: Annotated[ListenHost, AT_START] = "127.0.0.1"
    port: Annotated[Int, Field(ge=0, le=65535), AT_START] = 8080
    workers: Annotated[Count, AT_START] = 1
    max_connections: Count = 10_000
    allowed_hosts: tuple[HostName, ...] = ()


class KeyConfig(Section):
    """A client's key with its default policy and caps. Only the SHA-256 of its text is stored.

    A client may tighten the caps, never loosen them; with `locked` it cannot choose another policy. `quality` and
    `attainment` are targets for the means over its requests, `min_quality` is the lower bound for each request.
    `models` are those that it may use (None: all). `max_concurrency` bounds its requests under way at once.
    `budget_usd_per_day` is for a day (UTC), `budget_usd` for the key's whole life. With `makes_keys` its holder may
    make further keys: none of them has looser caps, and all of them spend its budgets too.
    """

    name: InstanceName
    sha256: Annotated[
        str,
        Pattern(
            "^[0-9a-fA-F]{64}$",
            "must be 64 hexadecimal digits, the SHA-256 of the key (never the key itself)",
        ),
        AfterValidator(str.lower),
    ]
    policy: PolicyName | None = None
    locked: Bool = False
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] | None = None
    max_priority: Int = 0
    min_quality: Share | None = None
    quality: Share | None = None
    attainment: Share | None = None
    budget_usd_per_day: NotNegative | None = None
    budget_usd: NotNegative | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    max_concurrency: Count | None = None
    max_cost_usd: Positive | None = None
    makes_keys: Bool = False

    @model_validator(mode="after")
    def _lock_needs_a_policy(self) -> Self:
        if self.locked and self.policy is None:
            raise PydanticCustomError("lock", "locked needs a policy: the one that requests of this key get")
        return self


class AuthConfig(Section):
    """Who may use the gateway. Without keys it is open, unless keys are `required`: then it refuses all requests until a key
    is made, also if the database with the keys was lost. Without an admin key, /admin answers programs on this machine,
    and only while the gateway has no keys and listens on loopback.

    An instance that is added at run time may use the variables that instances of the file use, and those in
    `engine_env`. Predictions do not show to a key what other keys have sent, unless keys `share_prefixes`. With
    `cache_salt` the timing of vLLM's caches does not show it either.
    """

    admin_key_env: Annotated[EnvironmentName | None, AT_START] = None
    required: Bool = False
    share_prefixes: Bool = False
    cache_salt: Bool = False
    engine_env: tuple[EnvironmentName, ...] = ()
    keys: tuple[KeyConfig, ...] = ()


def _sqlite_path(url: str) -> str:
    if url.startswith("sqlite"):
        path_name(url.partition("?")[0])
    return url


class StoreConfig(Section):
    """Where finished requests are recorded, and for how long (`retain_days` or `max_mb`, the first that is reached).
    Prompts are kept only with `keep_prompts`.

    While the database does not answer, records wait on disk: in `spool_directory` (None: beside a SQLite file, else the
    working directory), `spool_mb` at most. When that is full, requests are served without a record (`serve`, counted)
    or get a 503 (`refuse`).
    """

    url: Annotated[
        PasswordlessUrl,
        Pattern(
            r"^(sqlite\+aiosqlite:///|postgresql\+asyncpg://)",
            "must begin with sqlite+aiosqlite:/// or postgresql+asyncpg://",
        ),
        AfterValidator(_sqlite_path),
        AT_START,
    ] = "sqlite+aiosqlite:///headway.db"
    password_env: Annotated[EnvironmentName | None, AT_START] = None
    retain_days: Annotated[Positive, AT_START] = 30.0
    max_mb: Annotated[Positive, AT_START] = 2048.0
    keep_prompts: Annotated[Bool, AT_START] = False
    spool_directory: Annotated[PathName | None, AT_START] = None
    spool_mb: Annotated[Positive, AT_START] = 1024.0
    when_full: Literal["serve", "refuse"] = "serve"


class StateConfig(Section):
    """The state that replicas of the gateway share: limits, budgets, load and observations. With `memory://` this
    process is alone. `name` distinguishes fleets that share one Redis. If an answer takes longer than `timeout_ms`,
    each replica decides from its own data until Redis answers again. Load is sent every `interval_ms`."""

    url: Annotated[
        PasswordlessUrl,
        Pattern("^(memory://$|rediss?://)", "must be memory:// or begin with redis:// or rediss://"),
        AT_START,
    ] = "memory://"
    password_env: Annotated[EnvironmentName | None, AT_START] = None
    name: Annotated[Text, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$"), AT_START] = "headway"
    timeout_ms: Annotated[Positive, AT_START] = 250.0
    interval_ms: Annotated[Positive, AT_START] = 25.0


class DefaultsConfig(Section):
    """Values for requests that have none of their own, of their key or of their model."""

    policy: PolicyName = "latency"
    slo: SloConfig | None = None
    on_miss: OnMiss = "best_effort"


#: Fields with which a client could use an engine's own rights, and that usual clients do not send.
_FORBIDDEN = (
    # templates and code
    "chat_template", "custom_logit_processor", "guided_decoding_backend", "logits_processors", "tokenize",
    # tensors, and arguments of media loaders
    "audio_embeds", "image_embeds", "media_io_kwargs", "mm_processor_kwargs", "prompt_embeds", "video_embeds",
    # other requests, their placement and their cached data
    "data_parallel_rank", "id_slot", "n_discard", "priority", "request_id", "rid", "session_params", "uuid",
    # other machines, models and accounts
    "api_base", "api_key", "base_url", "bootstrap_host", "bootstrap_port", "bootstrap_room", "ec_transfer_params",
    "kv_transfer_params", "lora", "lora_path",
)  # fmt: skip


def _may_be_forbidden(field: str) -> str:
    if field in {"model", "messages", "prompt", "input"}:
        raise PydanticCustomError("needed_field", "is part of every request and cannot be forbidden")
    return field


class LimitsConfig(Section):
    """Bounds on one request and on the queue. A client that reads nothing of its answer for `client_stall_s` is
    disconnected. A body with one of the `forbidden_fields` is refused. `media_urls`: whether engines may fetch media
    (`allow`) or the request must contain them (`data_only`)."""

    request_timeout_s: Positive = 600.0
    idle_timeout_s: Positive = 60.0
    client_stall_s: Positive = 30.0
    connect_timeout_s: Positive = 5.0
    max_body_mb: Positive = 32.0
    max_queue: Annotated[Int, Field(ge=0)] = 512
    max_attempts: Count = 3
    forbidden_fields: tuple[Annotated[Text, AfterValidator(_may_be_forbidden)], ...] = _FORBIDDEN
    media_urls: Literal["allow", "data_only"] = "allow"


class HedgeConfig(Section):
    """A second attempt for a request whose first token is late; at most `max_share` of the requests get one."""

    enabled: Bool = False
    max_share: Share = 0.03


class CostConfig(Section):
    """Targets of the policies that hold a mean, for keys without their own. `quality` is the target mean quality; the
    default is the policy's (`router.core.types.Targets`), less `quality_slack`. `attainment` is the target share of SLOs that are
    met. Prices adapt over a window of about `window_requests`."""

    quality: Share | None = None
    quality_slack: Share = 0.01
    attainment: Share = 0.95
    window_requests: Count = 500


class SchedulingConfig(Section):
    """`confidence` is 1 - epsilon of the SLO-aware policies. `explore` is the share of requests that try another
    candidate, which keeps predictions correct. `ttft_weight` is the weight of TTFT beside E2E in `latency` and `slo`.
    `streamed_share`: with `upstream_stream: when_needed`, the share of answers that is streamed though nothing needs it,
    from which predictors learn TTFT and TPOT."""

    confidence: Annotated[Float, Field(gt=0, lt=1), AT_START] = 0.9
    hedge: HedgeConfig = HedgeConfig()
    explore: Share = 0.01
    cost: CostConfig = CostConfig()
    ttft_weight: Annotated[Share, AT_START] = 0.8
    streamed_share: Share = 0.05


class ProbesConfig(Section):
    """Health checks: an instance is ejected after `eject_after` failures in a row, and returns after `return_after`
    successes in a row."""

    interval_s: Positive = 2.0
    timeout_s: Positive = 2.0
    eject_after: Count = 3
    return_after: Count = 2


class TracesConfig(Section):
    """OpenTelemetry traces (the extra `otel`), sent by OTLP over HTTP to `endpoint` (`http://HOST:4318/v1/traces`;
    None: the OTEL_EXPORTER_OTLP_* variables). `sample` is the share of requests that are traced if their caller has not
    decided it."""

    enabled: Bool = False
    endpoint: HttpUrl | None = None
    sample: Share = 1.0


class JudgeConfig(Section):
    """A served model (`model`) that judges a share of the answers in the background. Its requests are those of the key
    `key`, whose limits and budgets hold. The scores are feedback."""

    model: ModelName
    key: InstanceName
    share: Annotated[Float, Field(gt=0, le=1)] = 0.01


class SecondLookConfig(Section):
    """A served model (`model`) that checks answers before their clients get them, where the policy `cost` expects that to pay.
    Its requests are those of the key `key`, whose limits and budgets hold. `auc` is the probability that it rates a good
    answer above a poor one. After `timeout_s` without its verdict the client gets the answer."""

    model: ModelName
    key: InstanceName
    auc: Annotated[Float, Field(gt=0.5, lt=1)] = 0.7
    timeout_s: Positive = 10.0


class ObservabilityConfig(Section):
    """Logs for operators. `logs` are text, or one JSON object a line; `log_requests` writes a line for each request.
    `decision_log` is a file with all events and instructions of the scheduler, for `headway replay-decisions`; it stops
    at `decision_log_mb`. None of them contains a prompt."""

    logs: Annotated[Literal["text", "json"], AT_START] = "text"
    log_requests: Bool = False
    decision_log: Annotated[PathName | None, AT_START] = None
    decision_log_mb: Annotated[Positive, AT_START] = 256.0
    traces: Annotated[TracesConfig, AT_START] = TracesConfig()


class UiConfig(Section):
    """The page at /ui. `reports` is a directory of comparisons (`headway compare --out`) and plans (`headway plan
    --out`) that the page offers to open."""

    enabled: Bool = True
    reports: PathName | None = None


class PredictorsConfig(Section):
    """Where trained artifacts are; the shipped defaults serve if there are none."""

    directory: PathName | None = None
