"""LLMRouter: questions of many task sets and how well nine models answered each; no answers, so no lengths.

ulab-uiuc/LLMRouter, data/dcrouter_preprocessed/{train,test}.json: [{"question", "scores": {model: 0..1}}].
The source's own split is undone. The originals hold GPQA questions too, which the data folder leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.workloads.published import Record, Share, json_list
from benchmarks.workloads.sources.prompt_sets import AnswerRow, Answers, prompt_id, prompt_set
from benchmarks.workloads.sources.source import Choices, ModelNames

_COMMIT = "4e7a796942ce26e9d5f2b93191c7c2585c99c2e3"
_URL = f"https://raw.githubusercontent.com/ulab-uiuc/LLMRouter/{_COMMIT}/data/dcrouter_preprocessed/{{}}.json"
MODELS: ModelNames = {
    "llama-3.1-8b": ("llama-3.1-8b-instruct",),
    "qwen2.5-7b": ("qwen2.5-7b-instruct",),
    "gemma-2-9b": ("gemma-2-9b-it",),
    "mistral-7b-v0.3": ("mistral-7b-instruct-v0.3",),
    "codegemma-7b": ("codegemma-7b",),
    "llama3-chatqa-1.5-8b": ("llama3-chatqa-1.5-8b",),
    "llama3-chatqa-1.5-70b": ("llama3-chatqa-1.5-70b",),
    "llama-3.1-nemotron-51b": ("llama-3.1-nemotron-51b-instruct",),
    "llama-3.3-nemotron-49b": ("llama-3.3-nemotron-super-49b-v1",),
}


class _Row(AnswerRow):
    score: Share


class _Question(Record):
    question: str
    scores: dict[str, Share]


def _take(answers: Answers, row: _Row, _choices: Choices) -> None:
    answers.quality[row.model] = row.score


def _read(paths: Sequence[Path], choices: Choices) -> dict[str, Answers]:
    sets: dict[str, Answers] = {}
    for path in paths:
        for item in json_list(path, _Question):
            sets.setdefault(prompt_id(item.question), Answers(item.question)).quality.update(item.scores)
    return sets


LLMROUTER = prompt_set(
    name="llmrouter",
    folder="llmrouter",
    models=MODELS,
    row=_Row,
    take=_take,
    read=_read,
    title="LLMRouter questions of 13 task sets with scores by model, no lengths",
    licence="MIT (the repository); questions under their sets' licences, not for redistribution",
    urls=lambda _choices: [_URL.format(part) for part in ("train", "test")],
    original_quality=True,
    lengths_unknown=True,
)
