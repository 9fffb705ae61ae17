"""Answers to judge, with stored grades where there are any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from pathlib import Path

from benchmarks.datasets.prompt_sets import PROMPT_SETS, read_prompt_sets
from benchmarks.workloads.format import WorkloadError, checked
from benchmarks.workloads.published import Record, Share, grouped, json_lines, json_records
from benchmarks.workloads.sources.arena import read_published
from benchmarks.workloads.sources.prompt_sets import prompt_id

#: (prompt id, model).
AnswerKey = tuple[str, str]
#: (prompt id, first model, second model).
PairKey = tuple[str, str, str]
_TEXTS = "response_text.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Answered:
    """One model's answer to a prompt. `grade` in [0, 1] is another judge's (None: unknown)."""

    prompt_id: str
    prompt: str
    model: str
    answer: str
    grade: float | None = None

    @property
    def key(self) -> AnswerKey:
        return self.prompt_id, self.model


#: An answer, and where it was found.
_Found = tuple[str, Answered]


class _Line(Record):
    prompt: str
    answer: str
    model: str = ""
    quality: Share | None = None


class _Text(Record):
    prompt_id: str
    model: str
    response: str


def read_answers(path: Path, models: Sequence[str] = (), limit: int | None = None) -> list[Answered]:
    """The answers of some models (none named: all) to the first `limit` prompts. `path` is

    - a file of JSON lines with "prompt" and "answer", and "model" and "quality" if known;
    - a folder as FastChat's judge writes it (`benchmarks.workloads.sources.arena`);
    - a folder of a published set with texts of answers.

    Raises WorkloadError."""
    if path.is_dir():
        found = _fastchat(path) if (path / "question.jsonl").is_file() else _published(path)
    else:
        found = _lines(path)
    answers: dict[AnswerKey, Answered] = {}
    prompts: set[str] = set()
    for where, each in found:
        if models and each.model not in models:
            continue
        if each.prompt_id not in prompts and len(prompts) == limit:
            continue
        prompts.add(each.prompt_id)
        if answers.setdefault(each.key, each) is not each:
            raise WorkloadError(f"{where}: a second answer of model {each.model!r} to its prompt")
    if not answers:
        raise WorkloadError(f"{path}: there is no answer in it" + (" of these models" if models else ""))
    return list(answers.values())


def pairs(answers: Iterable[Answered]) -> dict[PairKey, tuple[Answered, Answered]]:
    """Every two answers to one prompt."""
    return {
        (prompt, first.model, second.model): (first, second)
        for prompt, found in grouped(answers, attrgetter("prompt_id")).items()
        for first, second in combinations(found, 2)
    }


def _lines(path: Path) -> Iterator[_Found]:
    for number, data in json_lines(path):
        where = f"{path}, line {number}"
        line = checked(_Line.model_validate, data, where)
        yield where, Answered(prompt_id(line.prompt), line.prompt, line.model, line.answer, line.quality)


def _fastchat(folder: Path) -> Iterator[_Found]:
    found = read_published(sorted(folder.rglob("*.jsonl")))
    for (identity, model), answer in found.answers.items():
        if identity in found.questions:
            grade = found.grades.get((identity, model))
            yield str(folder), Answered(identity, found.questions[identity], model, answer, grade)


def _published(folder: Path) -> Iterator[_Found]:
    name = folder.name
    if name not in PROMPT_SETS:
        raise WorkloadError(
            f"{folder}: neither question.jsonl nor a published set ({', '.join(PROMPT_SETS)}) is there"
        )
    if not (folder / _TEXTS).is_file():
        raise WorkloadError(f"{folder}: has no texts of answers ({_TEXTS})")
    data = read_prompt_sets({name: folder})
    texts = {each.id: each.text or "" for each in data.prompts}
    grades = {(each.prompt, each.model): each.quality for each in data.answers}
    for row in json_records(folder / _TEXTS, _Text):
        identity = f"{name}/{row.prompt_id}"
        if identity in texts:
            grade = grades.get((identity, row.model))
            yield str(folder), Answered(identity, texts[identity], row.model, row.response, grade)
