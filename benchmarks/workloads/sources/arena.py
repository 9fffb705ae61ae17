"""Chatbot Arena prompts of 2023, hard ones, and the answers of many models, most of them graded by GPT-4.

Two collections that share prompts: lmarena/arena-hard-auto, data/arena-bench-v1 (graded), and lm-sys/FastChat,
llm_judge/data/arena_hard_1k (lengths only). Both are written as FastChat's judge writes: question.jsonl
{"question_id", "turns": [text]}, model_answer/MODEL.jsonl {"question_id", "model_id", "choices": [{"turns": [text]}]},
model_judgment/MODEL.jsonl {"question_id", "model", "score": 1..10}. Answers ended at 1024 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from benchmarks.workloads.format import WorkloadError, checked
from benchmarks.workloads.published import EMPTY, Count, Number, Record, json_lines
from benchmarks.workloads.sources.prompt_sets import (
    AnswerRow,
    Answers,
    prompt_id,
    prompt_set,
    tokens_of_characters,
)
from benchmarks.workloads.sources.source import Choices, ModelNames

#: Of GPT-4.
Grade = Annotated[Number, Field(ge=1, le=10)]
_URL = "https://raw.githubusercontent.com/lmarena/arena-hard-auto/{}/data/arena-bench-v1/{}.jsonl"
#: Characters of an answer for one of its tokens, over 8,460 answers of 22 models by their own tokenizers.
CHARACTERS_PER_TOKEN = 3.99
#: The runs' own bound: lengths pile up here, the true ones are longer.
MAX_OUTPUT_TOKENS = 1024
MODELS: ModelNames = {
    "llama-2-70b": ("Llama-2-70b-chat",),
    "mixtral-8x7b": ("Mixtral-8x7B-Instruct-v0.1",),
    "mistral-7b": ("Mistral-7B-Instruct-v0.1",),
    "vicuna-33b": ("vicuna-33b-v1.3",),
}
#: Commits that hold the files: the collection was moved away later and no one commit is known to have all.
_QUESTIONS_AT = "0c5cb3850225db2352cf09ac3c0f4c1060ece0d5"
_ANSWERS_AT = {
    "Llama-2-70b-chat": "9783beb04f83993357f0afda5bb338752d774134",
    "Mistral-7B-Instruct-v0.1": "37a9d217a442d6c7d0fb02a704de2e2b6e9f9a4c",
    "Mixtral-8x7B-Instruct-v0.1": "ac4ad9a93a452cb256e83fe6d89957676c64f19b",
    "vicuna-33b-v1.3": "ecbe8b63f4d50ec9e4f63e68b8ffed6c3e9910e5",
    "Starling-LM-7B-alpha": "2ed85b3a5dd59c0c2aa6c322b0dc83e210b2c645",
}
_JUDGMENTS_AT = _ANSWERS_AT | {
    "Mistral-7B-Instruct-v0.1": "328eb8ad0b0bcafd2cc62396b5dcfc3de3425eee",
    "vicuna-33b-v1.3": "9783beb04f83993357f0afda5bb338752d774134",
}


def _tokens(characters: int) -> int:
    return min(MAX_OUTPUT_TOKENS, tokens_of_characters(characters, CHARACTERS_PER_TOKEN))


def quality(score: float) -> float:
    """GPT-4's grade of 1 to 10 as 0 to 1."""
    return (score - 1) / 9


class _Row(AnswerRow):
    out_tokens: Count
    out_chars: Count
    gpt4_score_1_10: Annotated[Grade | None, EMPTY]


class _Said(Record):
    """A question, or one choice of an answer, in turns; the first one counts."""

    turns: Annotated[tuple[str, ...], Field(min_length=1)]


class _Question(_Said):
    question_id: str | int


class _Answer(Record):
    question_id: str | int
    model_id: str
    choices: Annotated[tuple[_Said, ...], Field(min_length=1)]


class _Judgment(Record):
    question_id: str | int
    model: str
    #: Published as -1 where it could not be read from the judge's words.
    score: Annotated[Grade | None, BeforeValidator(lambda score: None if score == -1 else score)]


def _take(answers: Answers, row: _Row, choices: Choices) -> None:
    model, grade = row.model, row.gpt4_score_1_10
    # One answer of a model to a prompt: a graded one if there is one, else the first.
    if model in answers.quality or (model in answers.tokens and grade is None):
        return
    answers.tokens[model] = max(1, row.out_tokens) if choices.native_lengths else _tokens(row.out_chars)
    if grade is not None:
        answers.quality[model] = quality(grade)


@dataclass(slots=True)
class Published:
    """The published files: texts of questions by id, texts of answers and grades in [0, 1] by (id, model)."""

    questions: dict[str, str] = field(default_factory=dict)
    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    grades: dict[tuple[str, str], float] = field(default_factory=dict)


def read_published(paths: Iterable[Path]) -> Published:
    """Read the files in any order. Raises WorkloadError."""
    found = Published()
    for path in paths:
        for line, data in json_lines(path):
            where = f"{path}, line {line}"
            if isinstance(data.get("choices"), list):
                answer = checked(_Answer.model_validate, data, where)
                key = (str(answer.question_id), answer.model_id)
                found.answers.setdefault(key, answer.choices[0].turns[0])
            elif "score" in data:
                judgment = checked(_Judgment.model_validate, data, where)
                if judgment.score is not None:
                    found.grades[str(judgment.question_id), judgment.model] = quality(judgment.score)
            else:
                question = checked(_Question.model_validate, data, where)
                found.questions.setdefault(str(question.question_id), question.turns[0])
    return found


def _read(paths: Sequence[Path], choices: Choices) -> dict[str, Answers]:
    found = read_published(paths)
    questions = {identity: Answers(text) for identity, text in found.questions.items()}
    sets: dict[str, Answers] = {}
    for answers in questions.values():
        sets.setdefault(prompt_id(answers.prompt), answers)
    for (identity, model), text in found.answers.items():
        if identity in questions:
            questions[identity].tokens[model] = _tokens(len(text))
    for (identity, model), grade in found.grades.items():
        if identity in questions and (identity, model) in found.answers:
            questions[identity].quality[model] = grade
    return sets


def _urls(choices: Choices) -> Sequence[str]:
    urls = [_URL.format(_QUESTIONS_AT, "question")]
    for ours, theirs in (choices.models or MODELS).items():
        if theirs[0] not in _ANSWERS_AT:
            raise WorkloadError(
                f"--models: the files of {theirs[0]!r} ({ours}) must be given with --file, or set HEADWAY_DATA"
            )
        urls.append(_URL.format(_ANSWERS_AT[theirs[0]], f"model_answer/{theirs[0]}"))
        if choices.quality:
            urls.append(_URL.format(_JUDGMENTS_AT[theirs[0]], f"model_judgment/{theirs[0]}"))
    return urls


ARENA = prompt_set(
    name="arena",
    folder="arena_2023",
    models=MODELS,
    row=_Row,
    take=_take,
    read=_read,
    title="Chatbot Arena prompts of 2023 with answer lengths and GPT-4's grades by model",
    licence="CC-BY-4.0 (prompts), CC-BY-NC-4.0 (answers: only lengths and grades are kept)",
    urls=_urls,
    patterns=("*.jsonl",),
    original_quality=True,
)
