"""What is asked: a file of prompts in any of three forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from benchmarks.workloads import format as workloads
from benchmarks.workloads.format import VERSION_KEY, WorkloadError
from benchmarks.workloads.text import prompt_text


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt. `id` is a hash of its text. `max_tokens` bounds its answer (None: as all others);
    `output_tokens`, by model or one for all, is what an emulated engine may be told; `task` the file's label."""

    id: str
    text: str
    max_tokens: int | None = None
    output_tokens: int | Mapping[str, int] | None = None
    session: str | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Questions:
    """All of a file, equal texts once, and the licence of a workload that names one."""

    every: tuple[Question, ...]
    licence: str | None = None


def read_questions(path: Path) -> Questions:
    """Read a workload file (its arrival times are not used), JSON lines with "prompt" (and "max_tokens",
    "output_tokens", "session", "task" if given), or plain text, one prompt a line. Raises WorkloadError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from error
    told = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    first = _object(told[0][1]) if told else None
    if first is not None and VERSION_KEY in first:
        header = workloads.read_header(path)
        found = [
            _question(prompt_text(each, header.seed), each.max_tokens, each.output_tokens, each.session)
            for each in workloads.read(path)
        ]
        licence = header.licence
    else:
        read = _plain if first is None else _json
        found = [read(path, number, line) for number, line in told]
        licence = None
    if not found:
        raise WorkloadError(f"{path}: there is no prompt in it")
    unique: dict[str, Question] = {}
    for each in found:
        unique.setdefault(each.id, each)
    return Questions(tuple(unique.values()), licence)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _plain(path: Path, number: int, line: bytes) -> Question:
    try:
        return _question(line.decode().strip())
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}, line {number}: not UTF-8 text") from error


def _json(path: Path, number: int, line: bytes) -> Question:
    value = _object(line)
    text = None if value is None else value.get("prompt")
    if value is None or not isinstance(text, str) or not text.strip():
        raise WorkloadError(f'{path}, line {number}: expected an object with a text "prompt"')
    output = value.get("output_tokens")
    by_model = output if isinstance(output, dict) else {"": output}
    for name, count in [("max_tokens", value.get("max_tokens")), *by_model.items()]:
        if count is not None and (type(count) is not int or count < 1):
            raise WorkloadError(
                f"{path}, line {number}: {name or 'output_tokens'} must be a positive integer"
                f" (given: {count!r})"
            )
    for name in ("session", "task"):
        if not isinstance(value.get(name), str | None):
            raise WorkloadError(f"{path}, line {number}: {name} must be a text")
    return _question(text, value.get("max_tokens"), output, value.get("session"), value.get("task"))


def _question(
    text: str,
    max_tokens: int | None = None,
    output_tokens: int | Mapping[str, int] | None = None,
    session: str | None = None,
    task: str | None = None,
) -> Question:
    identity = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Question(identity, text, max_tokens, output_tokens, session, task)
