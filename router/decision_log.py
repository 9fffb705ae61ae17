"""A log of all events and instructions of a scheduler, as JSON lines. `headway replay-decisions` replays it.

The first line is the header: how the scheduler was built. Each further line is one event: its name, its time, its
values, and the scheduler's instructions. A named tuple is written as a list, a dataclass as an object.

The log contains no prompt and no key, only hashes and features of a prompt, as in the records. An engine's message
about a refused request may quote the request, so it is left out, on both sides of a comparison.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TextIO, get_args

from pydantic import TypeAdapter, ValidationError

from router.core import events
from router.core.errors import Refusal
from router.core.events import (
    Dispatch,
    Event,
    Failure,
    Finish,
    FleetChanged,
    Instruction,
    PeerObserved,
    PredictorsChanged,
)
from router.core.request_state import AttemptState
from router.core.settings import SchedulerSettings
from router.core.state import Instance
from router.core.types import Candidate, Request, Targets

logger = logging.getLogger("headway")

FORMAT = 1
#: Fields of a request that are left out: they change no decision.
_NOT_LOGGED = frozenset({"cache_salt", "forecast", "outlook"})
#: The fields of an instance that a fleet file sets.
_SETTINGS = (
    *("name", "kind", "candidates", "max_concurrency", "hardware", "speed", "profiles", "usd_per_hour"),
    *("unsupported", "tokenizes", "fixed_slots", "starting"),
)
_EVENTS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(Event)}


class LogError(Exception):
    """A file is not a decision log, or it cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Header:
    """How a scheduler was built. `seed` is the seed of its draws, `predictors` the name of the trained artifacts,
    `directory` their directory (None: the shipped artifacts)."""

    version: str
    seed: int
    predictors: str
    directory: str | None
    confidence: float
    ttft_weight: float
    targets: Mapping[str | None, Targets]


class DecisionLog:
    """Writes a log, up to `max_bytes` or to an error such as a full disk; then it stops with a warning."""

    def __init__(self, path: Path, header: Header, max_bytes: float) -> None:
        """Raises OSError."""
        self._path = path
        self._left = max_bytes
        # Not for other users: hashes of words tell much about a prompt.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._file: TextIO | None = os.fdopen(fd, "w", encoding="utf-8")
        self._write({"headway_decisions": FORMAT, **_plain(header)})

    def write(self, event: Event, now: float, instructions: Sequence[Instruction]) -> None:
        """One event has been handled (`Runner.on_event`)."""
        if self._file is None:
            return
        try:
            self._write([type(event).__name__, now, _event(event), *map(_instruction, instructions)])
        except OSError as error:  # the requests go on
            logger.warning("the decision log %s cannot be written: it ends here (%s)", self._path, error)
            self.close()
        else:
            if self._left <= 0:
                logger.warning("the decision log %s has reached its maximum size: it ends here", self._path)
                self.close()

    def close(self) -> None:
        """Flush and close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # a line that did not fit is tried again
                file.close()

    def _write(self, value: Any) -> None:
        assert self._file is not None  # noqa: S101 (both callers look)
        line = _line(value)
        self._left -= len(line)
        self._file.write(line)
        self._file.flush()


@dataclass(frozen=True, slots=True)
class Logged:
    """One line: an event, its time, and the logged instructions."""

    event: Event
    now: float
    instructions: str


def read(path: Path, file: TextIO, instances: Mapping[str, Instance]) -> tuple[Header, Iterator[Logged]]:
    """A log's header and lines. `instances` are the scheduler's current instances by name; a changed fleet keeps them.
    Raises LogError."""
    first = _parsed(path, 1, file.readline())
    if not isinstance(first, dict) or first.pop("headway_decisions", None) != FORMAT:
        raise LogError(f"{path} is not a decision log of this version")
    targets = _targets(path, 1, first.get("targets") or [])
    header: Header = _decoded(path, 1, Header, {**first, "targets": targets})
    return header, _lines(path, file, instances)


def compared(instructions: Sequence[Instruction]) -> str:
    """Instructions as JSON, as the log has them."""
    return _line(list(map(_instruction, instructions)))


# --- reading ----------------------------------------------------------------------------------------
def _lines(path: Path, file: TextIO, instances: Mapping[str, Instance]) -> Iterator[Logged]:
    for number, line in enumerate(file, start=2):
        if not line.endswith("\n"):
            return  # the process was killed while it wrote
        try:
            name, now, values, *instructions = _parsed(path, number, line)
            kind = _EVENTS[name]
        except (TypeError, ValueError, LookupError):
            raise LogError(f"{path}:{number} is not an event") from None
        yield Logged(_read_event(path, number, kind, values, instances), now, _line(instructions))


def _read_event(path: Path, number: int, kind: Any, values: Any, instances: Mapping[str, Instance]) -> Event:
    if kind is FleetChanged:
        specs, settings = values
        return FleetChanged(
            tuple(_instance(path, number, spec, instances) for spec in specs),
            _decoded(path, number, SchedulerSettings, settings),
        )
    if kind is PeerObserved:
        return PeerObserved(base64.b64decode(values[0]))
    if kind is events.TargetsChanged:
        return events.TargetsChanged(_targets(path, number, values[0]))
    if kind is PredictorsChanged:
        raise LogError(
            f"{path}:{number}: other predictors were loaded here ({values[0]}): it cannot be replayed further"
        )
    event: Event = _decoded(path, number, kind, values)
    return event


def _instance(path: Path, number: int, spec: Any, instances: Mapping[str, Instance]) -> Instance:
    """An instance with the settings of the fleet file. An existing one is changed and keeps its counters."""
    given: Instance = _decoded(path, number, Instance, spec)
    given.healthy = not given.starting
    instance = instances.get(given.name, given)
    for name in _SETTINGS:
        value = getattr(given, name)
        # An equal object is not replaced: what was learned from the old one stays with it.
        if value != getattr(instance, name):
            setattr(instance, name, value)
    return instance


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise LogError(f"{path}:{number} is not JSON") from None


def _targets(path: Path, number: int, values: Any) -> dict[str | None, Targets]:
    """Targets by scope. JSON has them as pairs, because the fleet's scope is None."""
    return dict(_decoded(path, number, list[tuple[str | None, Targets]], values))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _decoded(path: Path, number: int, kind: Any, values: Any) -> Any:
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LogError(f"{path}:{number}: {where}: {first['msg']}") from None


# --- writing ----------------------------------------------------------------------------------------
def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _event(event: Event) -> Any:
    if isinstance(event, FleetChanged):
        specs = [{name: _plain(getattr(each, name)) for name in _SETTINGS} for each in event.instances]
        return [specs, _plain(event.settings)]
    if isinstance(event, PeerObserved):
        return [base64.b64encode(event.message).decode()]
    if isinstance(event, PredictorsChanged):
        return [event.models.name]
    return _plain(event)


def _instruction(instruction: Instruction) -> Any:
    name = type(instruction).__name__
    if isinstance(instruction, Finish):
        return [name, instruction.request_id, list(map(_result, instruction.settlement))]
    written: Sequence[Any] = instruction
    if isinstance(instruction, Dispatch):
        request_id, attempt, candidate, bound, state, *rest = instruction
        written = [request_id, attempt, candidate, bound, state.prediction, state.decision, *rest]
        if instruction.streams:  # the usual case is not written, so that older logs can be compared too
            written.pop()
    return [name, *map(_result, written)]


def _result(value: Any) -> Any:
    """A value of an instruction. A candidate is written by its name, because the events contain the fleet."""
    if isinstance(value, Candidate):
        return [value.instance, value.model]
    if isinstance(value, AttemptState):
        return [
            value.number,
            value.candidate.instance,
            value.candidate.model,
            value.dispatched_at,
            value.first_token_at,
            value.ended_at,
            value.ended_how,
            value.output_tokens,
            value.prompt_tokens,
            value.cost_usd,
        ]
    if isinstance(value, Refusal):
        return [value.outcome, value.status, value.retry_after_s]
    if isinstance(value, tuple | list):
        return [_result(each) for each in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    """A value in the form of JSON."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Failure):
        return [value.kind.value, "", value.status, None, None, value.retry_after_s]
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(_plain(each) for each in value)
    if isinstance(value, Mapping):
        if None in value:  # JSON has no such number
            return [[key, _plain(each)] for key, each in value.items()]
        return {key: _plain(each) for key, each in value.items()}
    if is_dataclass(value):
        skipped = _NOT_LOGGED if isinstance(value, Request) else frozenset()
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields(value)
            if field.name not in skipped
        }
    raise TypeError(f"a decision log holds no {type(value).__name__}")
