"""The uniform workload file: JSON lines, a header line first, one request a line after it.

A request: {"id", "arrival_s", "prompt", "prompt_tokens", "max_tokens", "output_tokens", "quality",
"prefix_hashes", "session", "routing", "source"}. A `prompt` of null is made up when it is sent (see `text`).
Where a prompt's own length differs from `prompt_tokens`, `prompt_tokens` wins and the text is lengthened
or cut to it. The header (`"headway_workload": 1`) says source, licence, seed, cuts and which length wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from router.core.quoting import quoted

VERSION = 1
VERSION_KEY = "headway_workload"
PREFIX_BLOCK_TOKENS = 512
MOST_TOKENS = 2**31 - 1  # of a prompt or an answer

_REQUEST_KEYS = frozenset(
    [
        "id",
        "arrival_s",
        "prompt",
        "prompt_tokens",
        "max_tokens",
        "output_tokens",
        "quality",
        "prefix_hashes",
        "session",
        "routing",
        "source",
    ]
)
_ROUTING_KEYS = frozenset(
    ["policy", "slo", "on_miss", "max_cost_usd", "min_quality", "models", "priority", "seed"],
)
_SLO_KEYS = frozenset(("ttft_ms", "tpot_ms", "e2e_ms"))


class WorkloadError(ValueError):
    """Something is wrong with a workload, its source or the options to build it; one line for a person."""


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload. Times in seconds from the workload's start; None is unknown.

    `output_tokens` is the true length of the answer: one number, or {model: tokens}. `quality` is
    {model: 0..1}. `prefix_hashes` are ids of the prompt's leading blocks (512 tokens each): equal ids, equal
    text. `routing` is the request's wish as the gateway's body field of that name takes it.
    """

    id: str
    arrival_s: float
    prompt_tokens: int
    max_tokens: int | None = None
    prompt: str | None = None
    output_tokens: int | Mapping[str, int] | None = None
    quality: Mapping[str, float] | None = None
    prefix_hashes: tuple[int, ...] | None = None
    session: str | None = None
    routing: Mapping[str, Any] | None = None
    source: str = ""

    def longest_output_tokens(self) -> int | None:
        """The true output length; the largest one where models differ; None if unknown."""
        if isinstance(self.output_tokens, Mapping):
            return max(self.output_tokens.values(), default=None)
        return self.output_tokens

    def with_routing(self, **wishes: Any) -> WorkloadRequest:
        """A copy whose routing wish has `wishes` added."""
        return replace(self, routing={**(self.routing or {}), **wishes})


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: where the workload comes from and what was done to it."""

    source: str
    licence: str | None = None
    seed: int | None = None
    requests: int | None = None
    cuts: Mapping[str, Any] = field(default_factory=dict)
    #: which length wins where prompts and lengths come from different sets; None if they are of one set
    length_wins: str | None = None
    #: whatever else a builder tells: files, checksums, mixes, generator settings
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            VERSION_KEY: VERSION,
            "source": self.source,
            "licence": self.licence,
            "seed": self.seed,
            "requests": self.requests,
            "cuts": dict(self.cuts),
            "length_wins": self.length_wins,
            "prefix_block_tokens": PREFIX_BLOCK_TOKENS,
            "details": dict(self.details),
        }


def write(path: Path, header: Header, requests: Iterable[WorkloadRequest]) -> int:
    """Write a workload, request by request; returns how many. A failed write leaves no file behind."""
    part = path.with_name(path.name + ".part")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as out:
            try:
                out.write(orjson.dumps(header.as_dict()) + b"\n")
                for request in requests:
                    out.write(orjson.dumps(_as_dict(request)) + b"\n")
                    count += 1
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        part.replace(path)
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror or error}") from error
    return count


def _as_dict(request: WorkloadRequest) -> dict[str, Any]:
    return {
        "id": request.id,
        "arrival_s": round(request.arrival_s, 6),
        "prompt": request.prompt,
        "prompt_tokens": request.prompt_tokens,
        "max_tokens": request.max_tokens,
        "output_tokens": request.output_tokens,
        "quality": request.quality,
        "prefix_hashes": request.prefix_hashes,
        "session": request.session,
        "routing": request.routing,
        "source": request.source,
    }


def read_header(path: Path) -> Header:
    """The header of a workload file."""
    try:
        with path.open("rb") as lines:
            return _header(path, lines.readline())
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from error


def read(path: Path, *, check_ids: bool = True) -> Iterator[WorkloadRequest]:
    """The requests of a workload file, one at a time, each checked. A WorkloadError names line and reason.

    To find an id that occurs twice all ids are remembered. A second pass over a checked file has no need to:
    with `check_ids` false nothing is kept, however long the file.
    """
    try:
        with path.open("rb") as lines:
            _header(path, lines.readline())
            seen: set[str] = set()
            earlier_s = 0.0
            for number, line in enumerate(lines, start=2):
                if not line.strip():
                    continue
                try:
                    request = parse_request(line)
                    if check_ids and request.id in seen:
                        raise WorkloadError(f"id {request.id!r} occurs twice")
                    if request.arrival_s < earlier_s:
                        raise WorkloadError("arrival_s is earlier than the line before (must be sorted)")
                except WorkloadError as error:
                    raise WorkloadError(f"{path}, line {number}: {error}") from None
                if check_ids:
                    seen.add(request.id)
                earlier_s = request.arrival_s
                yield request
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from error


def _header(path: Path, line: bytes) -> Header:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError:
        data = None
    if not isinstance(data, dict) or VERSION_KEY not in data:
        raise WorkloadError(
            f'{path}, line 1: not a workload (the header line with "{VERSION_KEY}" is missing)'
        )
    if data[VERSION_KEY] != VERSION:
        raise WorkloadError(
            f"{path}, line 1: workload version {data[VERSION_KEY]!r}, this program reads {VERSION}"
        )
    source = data.get("source")
    if not isinstance(source, str) or not source:
        raise WorkloadError(f"{path}, line 1: source must be a non-empty text")
    return Header(
        source=source,
        licence=data.get("licence"),
        seed=data.get("seed"),
        requests=data.get("requests"),
        cuts=data.get("cuts") or {},
        length_wins=data.get("length_wins"),
        details=data.get("details") or {},
    )


def parse_request(line: bytes) -> WorkloadRequest:
    """One line as a request; a WorkloadError says which field is wrong and how."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise WorkloadError(f"not valid JSON ({error.msg})") from None
    if not isinstance(data, dict):
        raise WorkloadError(f"must be a JSON object (given: {quoted(data)})")
    unknown = sorted(set(data) - _REQUEST_KEYS)
    if unknown:
        raise WorkloadError(f"unknown field {unknown[0]!r}")
    identity = data.get("id")
    if not isinstance(identity, str) or not identity:
        raise WorkloadError(f"id must be a non-empty text (given: {quoted(identity)})")
    arrival_s: Any = data.get("arrival_s")
    if not _is_number(arrival_s) or arrival_s < 0:
        raise WorkloadError(f"arrival_s must be a number of at least 0 (given: {quoted(arrival_s)})")
    return WorkloadRequest(
        id=identity,
        arrival_s=float(arrival_s),
        prompt=_text_or_none(data, "prompt"),
        prompt_tokens=_count(data.get("prompt_tokens"), "prompt_tokens"),
        max_tokens=None if data.get("max_tokens") is None else _count(data["max_tokens"], "max_tokens"),
        output_tokens=_output_tokens(data.get("output_tokens")),
        quality=_quality(data.get("quality")),
        prefix_hashes=_prefix_hashes(data.get("prefix_hashes")),
        session=_text_or_none(data, "session"),
        routing=_routing(data.get("routing")),
        source=_text_or_none(data, "source") or "",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
        raise WorkloadError(f"{name} must be a whole number from 1 to {MOST_TOKENS} (given: {quoted(value)})")
    return value


def _text_or_none(data: Mapping[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise WorkloadError(f"{name} must be a text or null (given: {quoted(value)})")
    return value


def _output_tokens(value: Any) -> int | dict[str, int] | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return {model: _count(tokens, f"output_tokens.{model}") for model, tokens in value.items()}
    return _count(value, "output_tokens")


def _quality(value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WorkloadError(f"quality must be an object {{model: number}} or null (given: {quoted(value)})")
    for model, quality in value.items():
        if not _is_number(quality) or not 0 <= quality <= 1:
            raise WorkloadError(f"quality.{model} must be a number in [0, 1] (given: {quoted(quality)})")
    return value


def _prefix_hashes(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, int) and item is not True for item in value):
        raise WorkloadError(f"prefix_hashes must be a list of whole numbers or null (given: {quoted(value)})")
    return tuple(value)


def _routing(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WorkloadError(f"routing must be an object or null (given: {quoted(value)})")
    unknown = sorted(set(value) - _ROUTING_KEYS)
    if unknown:
        raise WorkloadError(f"unknown field 'routing.{unknown[0]}'")
    slo = value.get("slo")
    if slo is not None:
        if not isinstance(slo, dict) or not slo:
            raise WorkloadError(
                f"routing.slo must be an object with ttft_ms, tpot_ms or e2e_ms (given: {quoted(slo)})"
            )
        for name, target in slo.items():
            if name not in _SLO_KEYS:
                raise WorkloadError(f"unknown field 'routing.slo.{name}'")
            if not _is_number(target) or target <= 0:
                raise WorkloadError(f"routing.slo.{name} must be a number above 0 (given: {quoted(target)})")
    if value.get("on_miss") not in (None, "reject", "best_effort"):
        raise WorkloadError(
            f"routing.on_miss must be 'reject' or 'best_effort' (given: {quoted(value['on_miss'])})"
        )
    cost = value.get("max_cost_usd")
    if cost is not None and (not _is_number(cost) or cost <= 0):
        raise WorkloadError(f"routing.max_cost_usd must be a number above 0 (given: {quoted(cost)})")
    return value
