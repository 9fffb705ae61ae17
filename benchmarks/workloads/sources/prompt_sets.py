"""What prompt sets with answers of many models have in common: ids, lengths from characters, model choice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.sources.source import ModelNames
from benchmarks.workloads.text import text_tokens

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
    session: str | None = None


def to_requests(source: str, sets: Mapping[str, Answers], names: ModelNames) -> list[WorkloadRequest]:
    """One request for each prompt, in the order of ids, with lengths (and quality) under our model names."""
    requests = []
    for identity in sorted(sets):
        answers = sets[identity]
        requests.append(
            WorkloadRequest(
                id=f"{source}-{identity}",
                arrival_s=0.0,
                prompt=answers.prompt,
                prompt_tokens=text_tokens(answers.prompt),
                output_tokens=renamed(answers.tokens, names) or None,
                quality=renamed(answers.quality, names) or None,
                session=answers.session,
                source=source,
            )
        )
    return requests


def renamed(values: Mapping[str, Value], names: ModelNames) -> dict[str, Value]:
    """The values of the wanted models under our names; of several names in the set the first one found."""
    return {
        ours: values[found]
        for ours, theirs in names.items()
        if (found := next((name for name in theirs if name in values), None)) is not None
    }


def wanted(names: ModelNames) -> frozenset[str]:
    """All names in the set that may be read."""
    return frozenset(name for theirs in names.values() for name in theirs)


def names_for(chosen: ModelNames | None, default: ModelNames, known: Iterable[str]) -> ModelNames:
    """The choice of models, checked against those that the files have."""
    known = frozenset(known)
    names = chosen or default
    if chosen:
        for ours, theirs in chosen.items():
            if not known.intersection(theirs):
                raise WorkloadError(f"--models: no answers of {theirs[0]!r} ({ours}) in this set")
    elif not any(known.intersection(theirs) for theirs in names.values()):
        return {name: (name,) for name in sorted(known)}
    return names
