"""The fleet file as frozen values, with defaults and bounds.

Unknown keys and values of the wrong type are errors (YAML's `"8080"` is no port, `true` is no number). Times have the
unit in their name and may be fractions. The file never contains secrets: a key that ends in `_env` names the
environment variable that holds one, which is read when the gateway is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from backends import KINDS
from router.config.crosscheck import crosscheck
from router.config.fields import (
    Count,
    EnvironmentName,
    FileName,
    InstanceName,
    Int,
    ModelName,
    NotNegative,
    Positive,
    PriceConfig,
    Section,
    Share,
    SloConfig,
    Text,
)
from router.config.marks import Mark, named
from router.config.sections import (
    AuthConfig,
    DefaultsConfig,
    LimitsConfig,
    ObservabilityConfig,
    PredictorsConfig,
    ProbesConfig,
    SchedulingConfig,
    ServerConfig,
    StateConfig,
    StoreConfig,
    UiConfig,
)
from router.core.types import Candidate, Price

#: The kind of an instance that the gateway starts itself.
EMULATED = "emulated"
if TYPE_CHECKING:
    KindName: TypeAlias = str
    InstanceKind: TypeAlias = str
else:
    KindName = Literal[tuple(KINDS)]
    InstanceKind = Literal[(*KINDS, EMULATED)]

HeaderName = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]


class ModelConfig(Section):
    """A model that clients request by name. `quality` in [0, 1] is a prior. `fallbacks` are tried in order if no
    instance can take the model itself."""

    name: ModelName
    family: Text | None = None
    aliases: tuple[ModelName, ...] = ()
    fallbacks: tuple[ModelName, ...] = ()
    context_tokens: Count | None = None
    price: PriceConfig | None = None
    quality: Share | None = None
    slo: SloConfig | None = None


class ServedConfig(Section):
    """A model as one instance serves it. A plain string is short for `{name: ...}`; omitted values are the model's.
    `profile` (emulated instances only) names the engine profile if the instance's does not fit."""

    name: Text
    context_tokens: Count | None = None
    quantization: Text | None = None
    price: PriceConfig | None = None
    quality: Share | None = None
    profile: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_string(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core)]}


def _profile_name(value: str) -> str:
    model, _, hardware = value.partition("@")
    if not model or not hardware or "@" in hardware:
        raise PydanticCustomError(
            "profile", "must be MODEL@HARDWARE, such as llama-3.1-8b@a100-80g or qwen2.5-72b@4xh100-80g"
        )
    return value


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise PydanticCustomError("url", "is not a URL") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise PydanticCustomError("url", "must be http://HOST[:PORT] or https://HOST[:PORT]")
    if parts.username is not None:
        raise PydanticCustomError("secret_in_url", "holds a login: use api_key_env or headers_env")
    if parts.query or parts.fragment:
        raise PydanticCustomError("url", "must have no query and no fragment")
    return value.rstrip("/")


def _fits_kind(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    kind = info.data.get("kind")
    engine = KINDS.get(info.data.get("emulates", "") if kind == EMULATED else str(kind))
    return value if engine is None else engine.check_settings(value)


#: Settings of one kind of engine only, which the kind checks (`EngineKind.settings`). It follows `kind` and `emulates`.
OwnSettings = Annotated[dict[str, Any], AfterValidator(_fits_kind)]


class EngineConfig(Section):
    """Settings of an engine, independent of its place. `usd_per_hour` is the price of its machine, `ca_file` a PEM
    bundle that is trusted instead of the system's. `headers_env` maps header names to the environment variables that
    hold their values."""

    serves: Annotated[dict[ModelName, ServedConfig], Field(min_length=1)]
    hardware: Text | None = None
    max_concurrency: Count | None = None
    usd_per_hour: NotNegative | None = None
    tokenizer: FileName | None = None
    api_key_env: EnvironmentName | None = None
    ca_file: FileName | None = None
    headers_env: dict[HeaderName, EnvironmentName] = Field(default_factory=dict)

    def machine_names(self) -> set[tuple[str, str]]:
        """The variables, and by their keys the files, that it uses on the gateway's machine."""
        return {
            (each.mark.value if each.mark is Mark.VARIABLE else str(each.path[-1]), each.name)
            for each in named(self)
        }


class InstanceConfig(EngineConfig):
    """One running replica of an engine; also the JSON of `POST /admin/instances`.

    An instance of `kind: emulated` has no url: the gateway starts it. It names its engine profile (`MODEL@HARDWARE`),
    may run at a multiple of real `speed`, and uses the protocol of the engine that it `emulates`.
    """

    name: InstanceName
    kind: InstanceKind
    url: Annotated[str, AfterValidator(_http_url)] | None = None
    profile: Annotated[str, AfterValidator(_profile_name)] | None = None
    speed: Positive = 1.0
    emulates: KindName = "vllm"
    settings: OwnSettings = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.is_emulated:
            if self.url is not None:
                raise PydanticCustomError("url", "an emulated instance has no url: the gateway starts it")
            if self.profile is None:
                raise PydanticCustomError("profile", "an emulated instance needs a profile, MODEL@HARDWARE")
            return self
        if self.url is None:
            raise PydanticCustomError("url", "url is missing (only an emulated instance goes without)")
        stray = sorted(self.model_fields_set & {"profile", "speed", "emulates"})
        if stray:
            raise PydanticCustomError(
                "emulated_only", "{keys} is for kind: emulated", {"keys": ", ".join(stray)}
            )
        return self

    @property
    def is_emulated(self) -> bool:
        """Whether the gateway starts this instance."""
        return self.kind == EMULATED

    @property
    def protocol(self) -> str:
        """The engine kind whose wire protocol is used."""
        return self.emulates if self.is_emulated else self.kind

    @property
    def hardware_name(self) -> str | None:
        """The configured hardware, else that of an emulated instance's profile."""
        if self.hardware is None and self.profile is not None:
            return self.profile.partition("@")[2]
        return self.hardware

    def profile_name(self, model: str) -> str | None:
        """The engine profile (`MODEL@HARDWARE`) of one served model; None without known hardware.

        An emulated instance with one model has its own profile. For others the name consists of the model's name, `-q4`
        or `-q8` for GGUF weights (q4 for an Ollama tag without quantisation), and the hardware.
        """
        served = self.serves[model]
        if served.profile is not None:
            return served.profile
        if self.profile is not None and len(self.serves) == 1:
            return self.profile
        hardware = self.hardware_name
        if hardware is None:
            return None
        weights = (served.quantization or KINDS[self.protocol].default_weights).lower()[:2]
        return f"{model}-{weights}@{hardware}" if weights in {"q4", "q8"} else f"{model}@{hardware}"


class TemplateConfig(EngineConfig):
    """Settings that discovered instances share: an instance of the fleet file without name and url."""

    kind: KindName
    settings: OwnSettings = Field(default_factory=dict)


class KubernetesConfig(Section):
    """Pods that have the labels in `selector` (`app=vllm,tier!=test`) in a namespace (None: the gateway's own), with
    their engine at `port`. `server` is the API server's URL (None: that of the cluster in which the gateway runs)."""

    selector: Text
    namespace: Text | None = None
    port: Annotated[Int, Field(ge=1, le=65535)] = 8000
    scheme: Literal["http", "https"] = "http"
    server: Annotated[str, AfterValidator(_http_url)] | None = None


class DiscoveryConfig(Section):
    """Instances that are found while the gateway runs. Each ready pod becomes an instance with the pod's name and the
    settings in `instance`. The pod's annotation `headway/instance` (JSON) overrides single settings."""

    kubernetes: KubernetesConfig
    instance: TemplateConfig


class FleetConfig(Section):
    """The whole file. Creating one checks every part and the references between parts.

    `upstream_stream`: `always` has engines stream every answer that they can, so that its TTFT is known; `when_needed` asks
    for an answer in one piece where nothing needs the stream (`router.core.streaming`).
    """

    server: ServerConfig = ServerConfig()
    auth: AuthConfig = AuthConfig()
    store: StoreConfig = StoreConfig()
    state: StateConfig = StateConfig()
    defaults: DefaultsConfig = DefaultsConfig()
    limits: LimitsConfig = LimitsConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    upstream_stream: Literal["always", "when_needed"] = "always"
    probes: ProbesConfig = ProbesConfig()
    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1)]
    instances: tuple[InstanceConfig, ...] = ()
    discovery: Annotated[tuple[DiscoveryConfig, ...], Mark.AT_START] = ()
    predictors: PredictorsConfig = PredictorsConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    ui: UiConfig = UiConfig()

    @model_validator(mode="after")
    def _references_hold(self) -> Self:
        problems = crosscheck(self.model_dump())
        if problems:
            reasons = "; ".join(f"{'.'.join(map(str, path))}: {reason}" for path, reason in problems)
            raise PydanticCustomError("references", "{reasons}", {"reasons": reasons})
        return self

    def model(self, name: str) -> ModelConfig | None:
        """The model with this name or alias."""
        return next((each for each in self.models if name == each.name or name in each.aliases), None)

    def instance(self, name: str) -> InstanceConfig | None:
        return next((each for each in self.instances if each.name == name), None)

    def machine_names(self) -> set[tuple[str, str]]:
        """The variables and files that engines may use on the gateway's machine: those of the file's engines, and
        `auth.engine_env`."""
        engines: list[EngineConfig] = [*self.instances, *(each.instance for each in self.discovery)]
        found = {name for each in engines for name in each.machine_names()}
        return found | {(Mark.VARIABLE.value, name) for name in self.auth.engine_env}

    def candidates(self, instance: InstanceConfig) -> dict[str, Candidate]:
        """The candidates of an instance by the fleet's model name: the instance's own settings of a model, else the
        model's. A candidate's context is never larger than the model's."""
        models = {each.name: each for each in self.models}
        found = {}
        for name, served in instance.serves.items():
            model = models[name]
            price = served.price or model.price
            contexts = [tokens for tokens in (served.context_tokens, model.context_tokens) if tokens]
            found[name] = Candidate(
                instance=instance.name,
                model=name,
                upstream_model=served.name,
                price=price.price() if price else Price(),
                context_tokens=min(contexts, default=None),
                quality=model.quality if served.quality is None else served.quality,
                quantization=served.quantization,
                family=model.family,
            )
        return found
