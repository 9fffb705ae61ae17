"""The prompts to collect answers to: a file in any of three forms."""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from benchmarks.checks import json_object
from benchmarks.workloads import format as workloads
from benchmarks.workloads.format import VERSION_KEY, OutputTokens, Text, Tokens, WorkloadError, reading
from benchmarks.workloads.text import prompt_text

_JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, as an object of a JSON-lines file has it (further members are left alone). `max_tokens` bounds its answer
    (None: the common bound). `output_tokens` is the length that an emulated engine is to make. `task` is the file's label."""

    prompt: Annotated[Text, Field(pattern=r"\S")]
    max_tokens: Tokens | None = None
    output_tokens: OutputTokens | None = None
    session: Text | None = None
    task: Text | None = None

    @property
    def id(self) -> str:
        """A hash of the text."""
        return sha256(self.prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_questions(path: Path) -> tuple[list[Question], str | None]:
    """All prompts of a file, equal texts once, and the licence of a workload that names one. It is a workload file (its arrival
    times are not used), JSON lines with "prompt" (and "max_tokens", "output_tokens", "session", "task" if given), or plain text,
    one prompt a line. It is JSON if its name ends so or any line is an object. Raises WorkloadError."""
    with reading(path):
        lines = path.read_bytes().removeprefix(BOM_UTF8).splitlines()
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    first = json_object(filled[0][1]) if filled else None
    if first is not None and VERSION_KEY in first:
        header = workloads.read_header(path)
        licence = header.licence
        found = [
            Question(prompt_text(each, header.seed), each.max_tokens, each.output_tokens, each.session)
            for each in workloads.read(path)
        ]
    else:
        licence = None
        is_json = path.suffix in _JSON_LINES or any(json_object(line) is not None for _, line in filled)
        read = _json if is_json else _plain
        found = [read(path, number, line) for number, line in filled]
    if not found:
        raise WorkloadError(f"{path}: there is no prompt in it")
    unique: dict[str, Question] = {}
    for each in found:
        unique.setdefault(each.id, each)
    return list(unique.values()), licence


def _plain(path: Path, number: int, line: bytes) -> Question:
    try:
        return Question(line.decode().strip())
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}, line {number}: not UTF-8 text") from error


def _json(path: Path, number: int, line: bytes) -> Question:
    return workloads.checked(_QUESTIONS.validate_json, line, f"{path}, line {number}")


_QUESTIONS = TypeAdapter(Question)
