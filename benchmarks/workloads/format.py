"""The uniform workload file: JSON lines, a header line first, one request a line after it ("The file" in docs/workloads.md).

Where a prompt's own length differs from `prompt_tokens`, `prompt_tokens` wins and the text is lengthened or cut to it (`text`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import orjson
from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    GetPydanticSchema,
    Strict,
    Tag,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from benchmarks.checks import json_object, problem
from router.config.fields import NotNegative, Positive, Share

VERSION = 1
VERSION_KEY = "headway_workload"
PREFIX_BLOCK_TOKENS = 512
MOST_TOKENS = 2**31 - 1  # of a prompt or an answer
Checked = TypeVar("Checked")


class WorkloadError(ValueError):
    """Something is wrong with a workload, its source or the options to build it; one line for a person."""


@contextmanager
def _doing(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkloadError(f"cannot {what} {path}: {error.strerror or error}") from error


#: Raise WorkloadError for a file or folder that cannot be read, or written.
reading, writing = partial(_doing, "read"), partial(_doing, "write")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write a file that is there whole or not at all: beside it, and moved to its place at the end. A pipe or a
    device is written directly."""
    if path.exists() and not path.is_file():
        yield path
        return
    part = path.with_name(path.name + ".part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


Text = Annotated[str, Strict()]
_Name = Annotated[Text, Field(min_length=1)]
Tokens = Annotated[int, Strict(), Field(ge=1, le=MOST_TOKENS)]


def _read_as(kind: Any) -> GetPydanticSchema:
    """A field that is read as a `kind`, whatever else it may hold when it is made here."""
    return GetPydanticSchema(lambda _, handler: handler(kind))


@with_config(extra="forbid")
class _SloTargets(TypedDict, total=False):
    ttft_ms: Positive
    tpot_ms: Positive
    e2e_ms: Positive


@with_config(extra="forbid")
class _Routing(TypedDict, total=False):
    """What is not checked here is read as a client's: by the gateway, or by the simulator."""

    policy: Any
    slo: Annotated[_SloTargets, Field(min_length=1)] | None
    on_miss: Literal["reject", "best_effort"] | None
    max_cost_usd: Positive | None
    min_quality: Any
    models: Any
    priority: Any
    seed: Any


#: The true length of an answer: one number, or {model: tokens}.
OutputTokens = Annotated[
    int | Mapping[str, int],
    _read_as(
        Annotated[
            Annotated[Tokens, Tag("[number]")] | Annotated[dict[Text, Tokens], Tag("[by model]")],
            Discriminator(lambda given: "[by model]" if isinstance(given, dict) else "[number]"),
        ]
    ),
]


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload. Times in seconds from the workload's start; None is unknown. `output_tokens` is the true
    length of the answer, `quality` is {model: 0..1}. `prefix_hashes` are ids of the prompt's leading blocks (512 tokens
    each): equal ids, equal text. `routing` are its routing parameters, as the gateway's body field of that name takes
    them."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: _Name
    arrival_s: NotNegative
    prompt_tokens: Tokens
    max_tokens: Tokens | None = None
    prompt: Text | None = None
    output_tokens: OutputTokens | None = None
    quality: Annotated[Mapping[str, float] | None, _read_as(dict[Text, Share] | None)] = None
    prefix_hashes: tuple[Annotated[int, Strict()], ...] | None = None
    session: Text | None = None
    routing: Annotated[Mapping[str, Any] | None, _read_as(_Routing | None)] = None
    source: Text = ""

    def longest_output_tokens(self) -> int | None:
        """The true output length; the largest one where models differ; None if unknown."""
        if isinstance(self.output_tokens, Mapping):
            return max(self.output_tokens.values(), default=None)
        return self.output_tokens

    def with_routing(self, **parameters: Any) -> WorkloadRequest:
        """A copy with routing parameters added."""
        return replace(self, routing={**(self.routing or {}), **parameters})


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: where the workload comes from and what was done to it."""

    source: _Name
    licence: Text | None = None
    seed: Annotated[int, Strict()] | None = None
    requests: Annotated[int, Strict()] | None = None
    cuts: Annotated[Mapping[str, Any], _read_as(dict[Text, Any])] = field(default_factory=dict)
    #: which length wins where prompts and lengths come from different sets; None if they are of one set
    length_wins: Text | None = None
    #: further facts from the builder: files, checksums, mixes, generator settings
    details: Annotated[Mapping[str, Any], _read_as(dict[Text, Any])] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        details = facts.pop("details")
        return {VERSION_KEY: VERSION, **facts, "prefix_block_tokens": PREFIX_BLOCK_TOKENS, "details": details}


#: Members of a request in the order of the file.
_MEMBERS = (
    *("id", "arrival_s", "prompt", "prompt_tokens", "max_tokens", "output_tokens"),
    *("quality", "prefix_hashes", "session", "routing", "source"),
)


def write(path: Path, header: Header, requests: Iterable[WorkloadRequest]) -> int:
    """Write a workload, request by request; returns how many. A failed write leaves no file behind."""
    count = 0
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as part, part.open("wb") as out:
            out.write(orjson.dumps(header.as_dict()) + b"\n")
            for request in requests:
                row = {name: getattr(request, name) for name in _MEMBERS}
                out.write(orjson.dumps({**row, "arrival_s": round(request.arrival_s, 6)}) + b"\n")
                count += 1
    return count


def read_header(path: Path) -> Header:
    with reading(path), path.open("rb") as lines:
        return _header(path, lines.readline())


def read(path: Path, *, check_ids: bool = True) -> Iterator[WorkloadRequest]:
    """The requests of a workload file, one at a time, each checked. A WorkloadError names line and reason. All ids are
    remembered, to find one that occurs twice; a second pass over a checked file need not do so (`check_ids` false)."""
    with reading(path), path.open("rb") as lines:
        _header(path, lines.readline())
        seen: set[str] = set()
        earlier_s = 0.0
        for number, line in enumerate(lines, start=2):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            request = checked(_REQUESTS.validate_json, line, where)
            if check_ids and request.id in seen:
                raise WorkloadError(f"{where}: id {request.id!r} occurs twice")
            if request.arrival_s < earlier_s:
                raise WorkloadError(f"{where}: arrival_s is earlier than the line before (must be sorted)")
            if check_ids:
                seen.add(request.id)
            earlier_s = request.arrival_s
            yield request


def _header(path: Path, line: bytes) -> Header:
    data = json_object(line)
    if data is None or VERSION_KEY not in data:
        raise WorkloadError(
            f'{path}, line 1: not a workload (no header such as {{"{VERSION_KEY}": {VERSION}, "source": "NAME"}})'
        )
    if data[VERSION_KEY] != VERSION:
        raise WorkloadError(
            f"{path}, line 1: workload version {data[VERSION_KEY]!r}, this program reads {VERSION}"
        )
    return checked(_HEADERS.validate_python, data, f"{path}, line 1")


def checked(validate: Callable[[Any], Checked], data: Any, where: str) -> Checked:
    """What pydantic's `validate` makes of `data`; a WorkloadError that begins with `where`."""
    try:
        return validate(data)
    except ValidationError as error:
        raise WorkloadError(f"{where}: {problem(error)}") from None


_HEADERS, _REQUESTS = TypeAdapter(Header), TypeAdapter(WorkloadRequest)
