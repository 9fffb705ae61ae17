"""How a client writes its wish: the body's `routing` object and headers. One schema, read strictly."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from router.core.errors import invalid_request
from router.core.quoting import cut
from router.core.types import Slo

OnMiss = Literal["best_effort", "reject"]

_INT64 = 1 << 63
_MAX_MODELS = 256  # in one wish


@dataclass(frozen=True, slots=True)
class RoutingWish:
    """What one spelling asked for; None where it is silent. `slo` is in seconds."""

    policy: str | None = None
    slo: Slo | None = None
    on_miss: OnMiss | None = None
    max_cost_usd: float | None = None
    min_quality: float | None = None
    models: tuple[str, ...] | None = None
    priority: int | None = None
    seed: int | None = None


# --- values ------------------------------------------------------------------------------------------
def _number(value: object, param: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_request(f"{param} must be a number", param)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise invalid_request(f"{param} must be a finite number", param)
    return number


def _seconds(value_ms: object, param: str) -> float:
    seconds = _number(value_ms, param) / 1000
    if seconds <= 0:
        raise invalid_request(f"{param} must be greater than 0", param)
    return seconds


def _cost_usd(value: object, param: str) -> float:
    # 0 is a wish like any other: only a free candidate can keep it.
    cost_usd = _number(value, param)
    if cost_usd < 0:
        raise invalid_request(f"{param} must not be negative", param)
    return cost_usd


def _quality(value: object, param: str) -> float:
    quality = _number(value, param)
    if not 0 <= quality <= 1:
        raise invalid_request(f"{param} must be between 0 and 1", param)
    return quality


def _integer(value: object, param: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_request(f"{param} must be an integer", param)
    if not -_INT64 <= value < _INT64:
        raise invalid_request(f"{param} must fit in 64 bits", param)
    return value


def _name(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid_request(f"{param} must be a non-empty string", param)
    return value


def _on_miss(value: object, param: str) -> OnMiss:
    if value == "best_effort":
        return "best_effort"
    if value == "reject":
        return "reject"
    raise invalid_request(f"{param} must be 'best_effort' or 'reject'", param)


# --- body --------------------------------------------------------------------------------------------
_BODY_KEYS = frozenset(RoutingWish.__dataclass_fields__)
_SLO_KEYS = ("ttft_ms", "tpot_ms", "e2e_ms")


def _known_keys(given: object, known: Collection[str], param: str) -> dict[str, object]:
    """The members of an object that are not null."""
    if not isinstance(given, dict):
        raise invalid_request(f"{param} must be an object", param)
    for key in given:
        if key not in known:
            at = f"{param}.{cut(key)}"
            raise invalid_request(f"unknown key {at}; known: {', '.join(sorted(known))}", at)
    return {key: value for key, value in given.items() if value is not None}


def _body_slo(given: object) -> Slo:
    slo = _known_keys(given, _SLO_KEYS, "routing.slo")
    return Slo(*[_seconds(slo[key], f"routing.slo.{key}") if key in slo else None for key in _SLO_KEYS])


def _body_models(given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or not given:
        raise invalid_request("routing.models must be a non-empty list of model names", "routing.models")
    return _names([_name(name, "routing.models") for name in given], "routing.models")


def _names(models: Sequence[str], param: str) -> tuple[str, ...]:
    if len(models) > _MAX_MODELS:
        raise invalid_request(f"{param} must have at most {_MAX_MODELS} entries", param)
    return tuple(models)


def from_body(routing: object) -> RoutingWish:
    """Read the body's `routing` object.

    Raises a 400 Refusal whose `param` names the field (`routing.slo.ttft_ms`) for an unknown key, a wrong
    type (a bool is no number) or a value out of range.
    """
    given = _known_keys(routing, _BODY_KEYS, "routing")
    get = given.get
    policy, slo, on_miss, models = get("policy"), get("slo"), get("on_miss"), get("models")
    max_cost_usd, min_quality = get("max_cost_usd"), get("min_quality")
    priority, seed = get("priority"), get("seed")
    return RoutingWish(
        policy=None if policy is None else _name(policy, "routing.policy"),
        slo=None if slo is None else _body_slo(slo),
        on_miss=None if on_miss is None else _on_miss(on_miss, "routing.on_miss"),
        max_cost_usd=None if max_cost_usd is None else _cost_usd(max_cost_usd, "routing.max_cost_usd"),
        min_quality=None if min_quality is None else _quality(min_quality, "routing.min_quality"),
        models=None if models is None else _body_models(models),
        priority=None if priority is None else _integer(priority, "routing.priority"),
        seed=None if seed is None else _integer(seed, "routing.seed"),
    )


# --- headers -----------------------------------------------------------------------------------------
#: Header names that carry a wish, lower case.
WISH_HEADERS = (
    b"x-headway-policy",
    b"x-headway-ttft-ms",
    b"x-headway-tpot-ms",
    b"x-headway-e2e-ms",
    b"x-headway-on-miss",
    b"x-headway-max-cost-usd",
    b"x-headway-min-quality",
    b"x-headway-models",
    b"x-headway-priority",
    b"x-llm-d-slo-ttft-ms",
    b"x-llm-d-slo-tpot-ms",
)

# Stricter than float() and int(): no "nan", no "1_000", no digits of other scripts.
_DECIMAL = re.compile(r"[+-]?([0-9]{1,64}(\.[0-9]{0,64})?|\.[0-9]{1,64})([eE][+-]?[0-9]{1,4})?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


def _header_number(text: str, name: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise invalid_request(f"{name} must be a number", name)
    return float(text)


def _header_integer(text: str, name: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise invalid_request(f"{name} must be an integer", name)
    return int(text)


def _header_models(text: str, name: str) -> tuple[str, ...]:
    models = tuple(part for item in text.split(",") if (part := item.strip()))
    if not models:
        raise invalid_request(f"{name} must be a comma-separated list of model names", name)
    return _names(models, name)


def from_headers(get: Callable[[bytes], bytes | None]) -> RoutingWish | None:
    """Read the wish from headers; `get` looks up a lower-case name. None when no such header is there.

    `x-headway-ttft-ms` stands above llm-d's `x-llm-d-slo-ttft-ms`, tpot likewise. Raises a 400 Refusal whose
    `param` is the header's name.
    """
    for header in WISH_HEADERS:
        if get(header) is not None:
            return _read_headers(get)
    return None


def _read_headers(get: Callable[[bytes], bytes | None]) -> RoutingWish:
    texts: dict[str, str] = {}
    for header in WISH_HEADERS:
        value = get(header)
        if value is None:
            continue
        name = header.decode()
        try:
            text = value.decode().strip(" \t")
        except UnicodeDecodeError:
            raise invalid_request(f"{name} must be UTF-8", name) from None
        if not text:
            raise invalid_request(f"{name} must not be empty", name)
        texts[name] = text

    def target(name: str) -> float | None:
        text = texts.get(name)
        return None if text is None else _seconds(_header_number(text, name), name)

    # All are read, so that a bad number is told even where another header stands above it.
    ttft_s, tpot_s, e2e_s = [target(f"x-headway-{key}") for key in ("ttft-ms", "tpot-ms", "e2e-ms")]
    llm_d_ttft_s, llm_d_tpot_s = target("x-llm-d-slo-ttft-ms"), target("x-llm-d-slo-tpot-ms")
    slo = Slo(
        ttft_s=llm_d_ttft_s if ttft_s is None else ttft_s,
        tpot_s=llm_d_tpot_s if tpot_s is None else tpot_s,
        e2e_s=e2e_s,
    )
    on_miss = texts.get("x-headway-on-miss")
    cost = texts.get(cost_name := "x-headway-max-cost-usd")
    quality = texts.get(quality_name := "x-headway-min-quality")
    models = texts.get(models_name := "x-headway-models")
    priority = texts.get(priority_name := "x-headway-priority")
    return RoutingWish(
        policy=texts.get("x-headway-policy"),
        slo=None if slo == Slo() else slo,
        on_miss=None if on_miss is None else _on_miss(on_miss, "x-headway-on-miss"),
        max_cost_usd=None if cost is None else _cost_usd(_header_number(cost, cost_name), cost_name),
        min_quality=None
        if quality is None
        else _quality(_header_number(quality, quality_name), quality_name),
        models=None if models is None else _header_models(models, models_name),
        priority=None
        if priority is None
        else _integer(_header_integer(priority, priority_name), priority_name),
    )
