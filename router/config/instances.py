"""The settings of instances in the fleet file: how each serves its models, and what kind of engine it is."""

from __future__ import annotations

from collections.abc import Callable
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
from backends.engine.weights import suffix_of, weights_named
from router.config.fields import (
    Count,
    EnvironmentName,
    FileName,
    HttpUrl,
    InstanceName,
    ModelName,
    NotNegative,
    Pattern,
    Positive,
    PriceConfig,
    Section,
    Share,
    Text,
)
from router.config.marks import Variable, named
from router.core.profile import EngineProfile

#: The kind of an instance that the gateway starts itself.
EMULATED = "emulated"
if TYPE_CHECKING:
    KindName: TypeAlias = str
    InstanceKind: TypeAlias = str
else:
    KindName = Literal[tuple(KINDS)]
    InstanceKind = Literal[(*KINDS, EMULATED)]


def _weights_name(value: str) -> str:
    weights_named(value)
    return value


#: The name of an engine profile, `MODEL@HARDWARE`.
ProfileName = Annotated[
    str,
    Pattern(
        "^[^@]+@[^@]+$", "must be MODEL@HARDWARE, such as llama-3.1-8b@a100-80g or qwen2.5-72b@4xh100-80g"
    ),
]
#: The usual name of a format of weights; it stays as it is written.
WeightsName = Annotated[Text, AfterValidator(_weights_name)]

#: Headers that differ between requests, and those that frame them.
_OF_EACH_REQUEST = frozenset({"content-length", "transfer-encoding", "x-request-id"})


def _header_name(value: str) -> str:
    if value.lower() in _OF_EACH_REQUEST:
        raise PydanticCustomError("header", "is written for each request and cannot be set")
    return value


HeaderName = Annotated[
    str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), AfterValidator(_header_name)
]


class ServedConfig(Section):
    """A model as one instance serves it. A plain string is short for `{name: ...}`; omitted values are the model's.
    `profile` (emulated instances only) names the engine profile if the instance's does not fit."""

    name: Text
    context_tokens: Count | None = None
    quantization: WeightsName | None = None
    price: PriceConfig | None = None
    quality: Share | None = None
    profile: ProfileName | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_string(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core)]}


def _engine_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.username is not None:
        raise PydanticCustomError("secret_in_url", "holds a login: use api_key_env or headers_env")
    if parts.query or parts.fragment:
        raise PydanticCustomError("url", "must have no query and no fragment")
    return value.rstrip("/")


def _fits_kind(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    kind = info.data.get("kind")
    engine = KINDS.get(info.data.get("emulates", "") if kind == EMULATED else str(kind))
    return value if engine is None else engine.check_settings(value)


#: An HTTP URL without login, query and fragment.
EngineUrl = Annotated[HttpUrl, AfterValidator(_engine_url)]
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
            ("environment variable" if isinstance(each.name, Variable) else str(each.path[-1]), each.name)
            for each in named(self)
        }


class InstanceConfig(EngineConfig):
    """One running replica of an engine; also the JSON of `POST /admin/instances`.

    An instance of `kind: emulated` has no url: the gateway starts it. It names its engine profile (`MODEL@HARDWARE`),
    may run at a multiple of real `speed`, and uses the protocol of the engine that it `emulates`.
    """

    name: InstanceName
    kind: InstanceKind
    url: EngineUrl | None = None
    profile: ProfileName | None = None
    speed: Positive = 1.0
    emulates: KindName = "vllm"
    settings: OwnSettings = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.is_emulated:
            if self.url is not None:
                raise PydanticCustomError("url", "an emulated instance has no url: the gateway starts it")
            if self.profile is None and any(each.profile is None for each in self.serves.values()):
                raise PydanticCustomError(
                    "profile",
                    "an emulated instance needs a profile, MODEL@HARDWARE, or one for each model in serves",
                )
            return self
        if self.url is None:
            raise PydanticCustomError("url", "url is missing (only an emulated instance has none)")
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
        """The configured hardware, else that of an emulated instance's profile, or of its first model's."""
        if self.hardware is None and self.is_emulated:
            profiles = [self.profile, *(each.profile for each in self.serves.values())]
            return next(each for each in profiles if each is not None).partition("@")[2]
        return self.hardware

    def profile_name(self, model: str) -> str | None:
        """The engine profile (`MODEL@HARDWARE`) of one served model; None without known hardware.

        An emulated instance with one model has its own profile. For others the name consists of the model's name, the
        suffix of its weights if these have not 16 bits (q4 for an Ollama tag without quantisation), and the hardware.
        """
        served = self.serves[model]
        if served.profile is not None:
            return served.profile
        if self.profile is not None and len(self.serves) == 1:
            return self.profile
        hardware = self.hardware_name
        if hardware is None:
            return None
        suffix = suffix_of(served.quantization or KINDS[self.protocol].default_weights)
        return f"{model}-{suffix}@{hardware}" if suffix else f"{model}@{hardware}"

    def engine_profiles(self, find: Callable[[str], EngineProfile | None]) -> dict[str, EngineProfile]:
        """The engine profiles of the served models that have one, by `find` from their names. A model without a profile of its
        own has that of the emulated instance. An engine that batches has one set of weights for all its models, so there one
        without a profile, such as an adapter, has that of the first model with one."""
        names = {model: self.profile_name(model) for model in self.serves}
        found = {model: profile for model, name in names.items() if name and (profile := find(name))}
        base = None if self.profile is None else find(self.profile)
        if base is None and not KINDS[self.protocol].fixed_slots:
            base = next(iter(found.values()), None)
        return found if base is None else {model: found.get(model, base) for model in self.serves}


class TemplateConfig(EngineConfig):
    """Settings that discovered instances share: an instance of the fleet file without name and url."""

    kind: KindName
    settings: OwnSettings = Field(default_factory=dict)

    def at(self, name: str, url: str) -> InstanceConfig:
        """An instance with these settings."""
        settings = self.model_dump(mode="json", exclude_unset=True)
        return InstanceConfig.model_validate({**settings, "name": name, "url": url})
