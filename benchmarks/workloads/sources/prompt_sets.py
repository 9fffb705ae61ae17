"""What prompt sets with answers of many models have in common: ids, lengths from characters, model choice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, Field

from backends.emulator.text import count_tokens
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.published import Record, json_records, table
from benchmarks.workloads.sources.source import Choices, ModelNames, Source

Value = TypeVar("Value", int, float)
_SPACES = re.compile(r"\s+")


def prompt_id(prompt: str) -> str:
    """The id of a prompt: the first 16 hex digits of the SHA-256 of it in lower case, white space collapsed."""
    return sha256(_SPACES.sub(" ", prompt.lower()).strip().encode()).hexdigest()[:16]


def tokens_of_characters(characters: int, characters_per_token: float) -> int:
    """An answer's tokens from its characters, at least 1."""
    return max(1, round(characters / characters_per_token))


@dataclass(slots=True)
class Answers:
    """One prompt and what is known of its answers, by the set's own model names."""

    prompt: str
    tokens: dict[str, int] = field(default_factory=dict)
    quality: dict[str, float] = field(default_factory=dict)
    task: str = ""


class PromptRow(Record):
    """A line of a prepared folder's prompts."""

    prompt_id: str
    prompt: str
    task: str = Field("", validation_alias=AliasChoices("task", "source"))


class AnswerRow(Record):
    """A row of a prepared folder's answers; the sets add columns."""

    prompt_id: str
    model: str


Row = TypeVar("Row", bound=AnswerRow)


def prompt_set(
    *,
    folder: str,
    models: ModelNames,
    row: type[Row],
    take: Callable[[Answers, Row, Choices], None],
    read: Callable[[Sequence[Path], Choices], Mapping[str, Answers]],
    **about: Any,
) -> Source:
    """A set of prompts with answers of many models; `models` is its default choice. Its prepared `folder` has prompts and
    answers; `take` notes a `row` of an answer. `read` gives the answers of the original files by the prompts' ids.
    `about` are further fields of `Source`."""

    def read_folder(name: str, paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
        prompts, responses = paths
        sets = {
            each.prompt_id: Answers(each.prompt, task=each.task) for each in json_records(prompts, PromptRow)
        }
        for answer in table(responses, row):
            if answer.prompt_id in sets:
                take(sets[answer.prompt_id], answer, choices)
        return _requests(name, sets, models, choices)

    def read_original(name: str, paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
        return _requests(name, read(paths, choices), models, choices)

    return Source(
        texts=True,
        folder_files=(f"{folder}/prompts.jsonl.gz", f"{folder}/responses.csv.gz"),
        read_folder=read_folder,
        read_original=read_original,
        models=models,
        **about,
    )


def _requests(
    source: str, sets: Mapping[str, Answers], default: ModelNames, choices: Choices
) -> list[WorkloadRequest]:
    """One request for each prompt, in the order of ids, with lengths under our model names; with quality and
    without incomplete prompts as `choices` says."""
    names = _names_for(choices.models, default, sets.values())
    has_lengths = any(answers.tokens for answers in sets.values())
    requests = []
    for identity in sorted(sets):
        answers = sets[identity]
        quality = answers.quality if choices.quality else {}
        found = {ours: _source_of(theirs, answers.tokens, quality) for ours, theirs in names.items()}
        tokens = _renamed(answers.tokens, found)
        qualities = _renamed(quality, found)
        if choices.complete and (
            (has_lengths and len(tokens) < len(names)) or (choices.quality and len(qualities) < len(names))
        ):
            continue
        requests.append(
            WorkloadRequest(
                id=f"{source}-{identity}",
                arrival_s=0.0,
                prompt=answers.prompt,
                prompt_tokens=count_tokens(answers.prompt),
                output_tokens=tokens or None,
                quality=qualities or None,
                source=source,
            )
        )
    if not requests and sets:
        raise WorkloadError(f"{source}: --complete leaves no prompt, not all of {', '.join(names)} are known")
    return requests


def _source_of(
    theirs: tuple[str, ...], tokens: Mapping[str, int], quality: Mapping[str, float]
) -> str | None:
    """Which of several names in the set stands for a model: the one of which most is known, else the first.
    Length and quality are so of one and the same answer."""
    known = {name: (name in tokens) + (name in quality) for name in theirs}
    best = max(theirs, key=lambda name: known[name])
    return best if known[best] else None


def _renamed(values: Mapping[str, Value], found: Mapping[str, str | None]) -> dict[str, Value]:
    """The values of the wanted models under our names."""
    return {ours: values[name] for ours, name in found.items() if name is not None and name in values}


def _names_for(chosen: ModelNames | None, default: ModelNames, sets: Iterable[Answers]) -> ModelNames:
    """The choice of models, checked against those that the files have."""
    known = {model for answers in sets for model in (*answers.tokens, *answers.quality)}
    names = chosen or default
    if chosen:
        for ours, theirs in chosen.items():
            if not known.intersection(theirs):
                raise WorkloadError(f"--models: no answers of {theirs[0]!r} ({ours}) in this set")
    elif not any(known.intersection(theirs) for theirs in names.values()):
        return {name: (name,) for name in sorted(known)}
    return names
