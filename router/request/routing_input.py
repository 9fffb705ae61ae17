"""Reads a request's routing parameters: the body's `routing` object and headers, with one set of rules for both."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from router.core.errors import Refusal, invalid_request
from router.core.quoting import cut
from router.core.types import Slo
from router.request.validation import Check, says, wrong

OnMiss = Literal["best_effort", "reject"]

_MAX_MODELS = 256
_CONFIG = ConfigDict(extra="forbid")
#: Stricter than float() and int(): no "nan", no "1_000", no digits of other scripts.
_DECIMAL = re.compile(r"[+-]?([0-9]{1,64}(\.[0-9]{0,64})?|\.[0-9]{1,64})([eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class RoutingInput:
    """The parameters given in one place, the body or the headers; None where nothing is given. `slo` is in seconds."""

    policy: str | None = None
    slo: Slo | None = None
    on_miss: OnMiss | None = None
    max_cost_usd: float | None = None
    min_quality: float | None = None
    models: tuple[str, ...] | None = None
    priority: int | None = None
    seed: int | None = None


# --- values ------------------------------------------------------------------------------------------
def _seconds(ms: float) -> float:
    seconds = ms / 1000
    if not 0 < seconds < math.inf:
        raise wrong("must be a finite number greater than 0")
    return seconds


_Policy = Annotated[str, Field(min_length=1)]
_Seconds = Annotated[float, AfterValidator(_seconds)]
_CostUsd = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # at 0 only free candidates serve
_Quality = Annotated[float, Field(ge=0, le=1)]
_Integer = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_Models = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=_MAX_MODELS, fail_fast=True),
    says(f"must be a list of 1 to {_MAX_MODELS} model names"),
    AfterValidator(tuple),
]


# --- body --------------------------------------------------------------------------------------------
@with_config(_CONFIG)
class SloMs(TypedDict, total=False):
    ttft_ms: _Seconds | None
    tpot_ms: _Seconds | None
    e2e_ms: _Seconds | None


def _slo(given: SloMs) -> Slo:
    return Slo(given.get("ttft_ms"), given.get("tpot_ms"), given.get("e2e_ms"))


@with_config(_CONFIG)
class Routing(TypedDict, total=False):
    policy: _Policy | None
    slo: Annotated[SloMs, AfterValidator(_slo)] | None
    on_miss: OnMiss | None
    max_cost_usd: _CostUsd | None
    min_quality: _Quality | None
    models: _Models | None
    priority: _Integer | None
    seed: _Integer | None


_BODY = Check(Routing, known={"routing": Routing.__annotations__, "routing.slo": SloMs.__annotations__})


def from_body(routing: object) -> RoutingInput:
    """Read the body's `routing` object. Null is not given.

    Raises a 400 Refusal whose `param` names the field (`routing.slo.ttft_ms`) for an unknown key, a wrong type (a
    boolean is no number) or a value out of range.
    """
    return RoutingInput(**_BODY(routing, "routing"))


# --- headers -----------------------------------------------------------------------------------------
def _decimal(text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise wrong("must be a number")
    return float(text)


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise wrong("must be an integer")
    return int(text)


def _listed(text: str) -> list[str]:
    return [part for item in text.split(",") if (part := item.strip())]


_SecondsText = Annotated[_Seconds, BeforeValidator(_decimal)]
_Headers = with_config(_CONFIG)(
    TypedDict(  # type: ignore[operator]  # a decorator of classes; this is one
        "_Headers",
        {
            "x-headway-policy": _Policy,
            "x-headway-ttft-ms": _SecondsText,
            "x-headway-tpot-ms": _SecondsText,
            "x-headway-e2e-ms": _SecondsText,
            "x-headway-on-miss": OnMiss,
            "x-headway-max-cost-usd": Annotated[_CostUsd, BeforeValidator(_decimal)],
            "x-headway-min-quality": Annotated[_Quality, BeforeValidator(_decimal)],
            "x-headway-models": Annotated[_Models, BeforeValidator(_listed)],
            "x-headway-priority": Annotated[_Integer, BeforeValidator(_integer)],
            "x-llm-d-slo-ttft-ms": _SecondsText,
            "x-llm-d-slo-tpot-ms": _SecondsText,
        },
        total=False,
    )
)
_HEADERS = Check(_Headers)
#: The names of headers that carry routing parameters, lower case.
ROUTING_HEADERS = tuple(name.encode() for name in _Headers.__annotations__)
_NAMES = frozenset(ROUTING_HEADERS)
_OURS = b"x-headway-"


def from_headers(headers: Mapping[bytes, bytes]) -> RoutingInput | None:
    """Read routing parameters from headers with lower-case names; None without any. Raises a 400 Refusal for an unknown
    header that begins with `x-headway-`.

    `x-headway-ttft-ms` wins over llm-d's `x-llm-d-slo-ttft-ms`, tpot likewise. A bad number is refused even if another
    header wins over it. Raises a 400 Refusal whose `param` is the header's name.
    """
    for name in headers:
        if name.startswith(_OURS) and name not in _NAMES:
            raise _unknown(name.decode("latin-1"))
    if _NAMES.isdisjoint(headers):
        return None
    given = _HEADERS(
        {name.decode(): _text(name, headers[name]) for name in ROUTING_HEADERS if name in headers}
    )
    llm_d = given.pop("x-llm-d-slo-ttft-ms", None), given.pop("x-llm-d-slo-tpot-ms", None)
    ours = {name.removeprefix(_OURS.decode()).replace("-", "_"): value for name, value in given.items()}
    slo = Slo(ours.pop("ttft_ms", llm_d[0]), ours.pop("tpot_ms", llm_d[1]), ours.pop("e2e_ms", None))
    return RoutingInput(slo=None if slo == Slo() else slo, **ours)


def _unknown(name: str) -> Refusal:
    known = [header[len(_OURS) :].decode() for header in ROUTING_HEADERS if header.startswith(_OURS)]
    near = [_OURS.decode() + word for word in get_close_matches(name[len(_OURS) :][:100], known, n=3)]
    said = f"did you mean {' or '.join(near)}?" if near else f"known: {_OURS.decode()}({'|'.join(known)})."
    return invalid_request(f"{cut(name)} is not a known header; {said}", cut(name))


def _text(header: bytes, value: bytes) -> str:
    name = header.decode()
    try:
        text = value.decode().strip(" \t")
    except UnicodeDecodeError:
        raise invalid_request(f"{name} must be UTF-8.", name) from None
    if not text:
        raise invalid_request(f"{name} must not be empty.", name)
    return text
