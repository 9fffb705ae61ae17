"""The field types of the fleet file's sections: exact types, names, prices and targets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from socket import inet_aton
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    Strict,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from router.config.marks import LocalFile, Variable
from router.core.types import Price, Slo

# Exact types: YAML and JSON have numbers and booleans, so a quoted one is a mistake and is reported.
Bool = Annotated[bool, Strict()]
#: The largest whole number that databases, floats and Redis scripts can all hold.
LARGEST_NUMBER = (1 << 53) - 1
Int = Annotated[int, Strict(), Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Float = Annotated[float, Strict(), Field(allow_inf_nan=False)]
#: The largest of all other numbers: what is computed from two of them stays finite, and bytes from MB fit a database.
LARGEST_FLOAT = 1e12
Positive = Annotated[Float, Field(gt=0, le=LARGEST_FLOAT)]
NotNegative = Annotated[Float, Field(ge=0, le=LARGEST_FLOAT)]
Share = Annotated[Float, Field(ge=0, le=1)]
Count = Annotated[Int, Field(ge=1)]

# Response headers and metric labels contain both kinds of names, URL paths contain instance names.
ModelName = Annotated[str, StringConstraints(pattern=r"^[!-~]+$", max_length=200)]
InstanceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
#: Without a port.
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]+$", max_length=253)]
Text = Annotated[str, StringConstraints(min_length=1)]
#: Of a file's name on Linux and macOS.
_MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Pattern:
    """Annotates a text that must match `pattern`, also for editors; `sentence` says what is wrong with one that does not."""

    pattern: str
    sentence: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(pattern=self.pattern)
        matching = core_schema.custom_error_schema(text, "pattern", custom_error_message=self.sentence)
        return core_schema.chain_schema([handler(source), matching])

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return {"type": "string", "pattern": self.pattern}


def _listen_host(value: str) -> str:
    try:
        if re.fullmatch(r"[0-9.]+", value):
            inet_aton(value)  # no host has such a name
        elif re.fullmatch(r"[A-Za-z0-9._-]+", value):
            value.encode("idna")  # as it is looked up: an empty or long label is an error
        else:
            ip_address(value)
    except (ValueError, OSError):
        raise PydanticCustomError("host", "must be a name or an address, without scheme and port") from None
    return value


ListenHost = Annotated[Text, AfterValidator(_listen_host)]
PolicyName = Text
OnMiss = Literal["best_effort", "reject"]


EnvironmentName = Annotated[
    str,
    Pattern(
        "^[A-Za-z_][A-Za-z0-9_]*$",
        "must be the name of an environment variable (the file must not contain the secret itself)",
    ),
    AfterValidator(Variable),
]


def path_name(value: str) -> str:
    """The name of a file or directory, as it is. Raises PydanticCustomError for one that no file system takes."""
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in value.split("/")):
        raise PydanticCustomError(
            "path", "has a name of more than {most} bytes between two slashes", {"most": _MAX_NAME_BYTES}
        )
    return value


PathName = Annotated[Text, AfterValidator(path_name)]
FileName = Annotated[PathName, AfterValidator(LocalFile)]


def _no_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise PydanticCustomError("url", "is not a URL") from error
    login = parts.netloc.rpartition("@")[0]
    if parts.netloc and not login:
        # A password with a / or ? that is not quoted ends the host's part before the @.
        login = url.partition("://")[2].rpartition("@")[0]
    if ":" in login or "password" in parse_qs(parts.query):
        raise PydanticCustomError(
            "secret_in_url", "holds a password: name the environment variable that has it in password_env"
        )
    return url


PasswordlessUrl = Annotated[str, AfterValidator(_no_password)]


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # as it is looked up: an empty or long label is an error
    except ValueError as error:
        raise PydanticCustomError("url", "is not a URL") from error
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise PydanticCustomError("url", "must be http://HOST[:PORT] or https://HOST[:PORT]")
    if not re.fullmatch(r"[!-~]+", value):  # it stands in the heads of requests
        raise PydanticCustomError("url", "must be ASCII without spaces")
    if not re.fullmatch(r"[A-Za-z0-9.:%_-]+", host):  # `${HOST}` is not replaced by a variable's value
        raise PydanticCustomError("url", "has a host that is neither a name nor an address")
    return value


HttpUrl = Annotated[
    str,
    AfterValidator(_http_url),
    WithJsonSchema({"type": "string", "pattern": "^[hH][tT][tT][pP][sS]?://[!-~]+$"}),
]


class Section(BaseModel):
    """The base of all parts of the file: immutable; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PriceConfig(Section):
    """Prices in USD per million tokens, separate for input and output."""

    input_usd_per_mtok: NotNegative
    output_usd_per_mtok: NotNegative

    def price(self) -> Price:
        return Price(self.input_usd_per_mtok, self.output_usd_per_mtok)


class SloConfig(Section):
    """Targets in milliseconds; at least one is set."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2e_ms: Positive | None = None

    @model_validator(mode="after")
    def _has_a_target(self) -> Self:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise PydanticCustomError("slo", "sets no target: give ttft_ms, tpot_ms or e2e_ms")
        return self

    def slo(self) -> Slo:
        """The targets in seconds."""
        return Slo(*(None if ms is None else ms / 1000.0 for ms in (self.ttft_ms, self.tpot_ms, self.e2e_ms)))
