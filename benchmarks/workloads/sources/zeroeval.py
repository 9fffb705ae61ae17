"""ZeroEval: GSM8K, MATH level 5 and CRUXEval questions and greedy answers of many models.

WildEval/ZeroEval, result_dirs/TASK/MODEL.json: [{"question" or "problem", "output": [text], "answer" (the right
one), "dataset", ...}]. The prompt is the bare question; lengths are those of answers that reason in JSON first.
Quality is 1 for a right answer and 0 for a wrong one, of the published files by our own reading of the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from benchmarks.workloads.published import EMPTY, Count, Record, Share, json_list
from benchmarks.workloads.sources.prompt_sets import (
    AnswerRow,
    Answers,
    prompt_id,
    prompt_set,
    tokens_of_characters,
)
from benchmarks.workloads.sources.source import Choices, ModelNames
from benchmarks.workloads.sources.zeroeval_scoring import is_right

_COMMIT = "8c1485edf12c6efb5f69135a562927c5ad484059"
_URL = f"https://raw.githubusercontent.com/WildEval/ZeroEval/{_COMMIT}/result_dirs/{{}}/{{}}.json"
#: Characters of an answer for one of its tokens by task, over 101,967 answers by the models' own tokenizers.
CHARACTERS_PER_TOKEN: Mapping[str, float] = {"gsm": 3.39, "math-l5": 2.75, "crux": 3.47}
MODELS: ModelNames = {
    "llama-3.1-8b": ("Meta-Llama-3.1-8B-Instruct",),
    "llama-3.1-70b": ("Meta-Llama-3.1-70B-Instruct",),
    # Qwen2.5 was not run on GSM8K; Qwen2 was run on all three tasks.
    "qwen2-7b": ("Qwen2-7B-Instruct",),
    "qwen2-72b": ("Qwen2-72B-Instruct",),
}
#: The runs' own bound on an answer; answers that ran away end here.
MAX_OUTPUT_TOKENS = 4096
#: Models that were not run on all three tasks.
_TASKS_OF = {
    "Qwen2.5-7B-Instruct": ("math-l5", "crux"),
    "Qwen2.5-72B-Instruct": ("math-l5", "crux"),
}


def _listed(output: Any) -> Any:
    return [output] if isinstance(output, str) else output


class _Row(AnswerRow):
    out_tokens: Count
    out_chars: Count
    correct: Annotated[Share | None, EMPTY]


class _Output(Record):
    """An item of a published file: a question or a problem, and the model's answer."""

    dataset: Literal["gsm", "math-l5", "crux"]
    prompt: str = Field(validation_alias=AliasChoices("question", "problem"))
    output: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_listed)]
    #: The right one.
    answer: Any = None


def _take(answers: Answers, row: _Row, choices: Choices) -> None:
    estimated = _tokens(row.out_chars, answers.task)
    answers.tokens[row.model] = max(1, row.out_tokens) if choices.native_lengths else estimated
    if row.correct is not None:
        answers.quality[row.model] = row.correct


def _read(paths: Sequence[Path], choices: Choices) -> dict[str, Answers]:
    sets: dict[str, Answers] = {}
    for path in paths:
        model = path.stem
        for item in json_list(path, _Output):
            answers = sets.setdefault(prompt_id(item.prompt), Answers(item.prompt))
            output = item.output[0]
            answers.tokens[model] = _tokens(len(output), item.dataset)
            if choices.quality and item.answer is not None:
                answers.quality[model] = float(is_right(item.dataset, output, str(item.answer)))
    return sets


def _tokens(characters: int, task: str) -> int:
    return min(MAX_OUTPUT_TOKENS, tokens_of_characters(characters, CHARACTERS_PER_TOKEN[task]))


def _urls(choices: Choices) -> Sequence[str]:
    return [
        _URL.format(task, model)
        for theirs in (choices.models or MODELS).values()
        for model in theirs
        for task in _TASKS_OF.get(model, tuple(CHARACTERS_PER_TOKEN))
    ]


ZEROEVAL = prompt_set(
    name="zeroeval",
    folder="zeroeval",
    models=MODELS,
    row=_Row,
    take=_take,
    read=_read,
    title="ZeroEval questions (GSM8K, MATH level 5, CRUXEval) with answer lengths by model",
    licence="Apache-2.0 (GSM8K MIT, CRUXEval MIT, MATH MIT; answers under the providers' terms)",
    urls=_urls,
    original_quality=True,
)
