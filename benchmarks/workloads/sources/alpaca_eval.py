"""AlpacaEval: 805 instructions and the answers of many models, for local tests.

tatsu-lab/alpaca_eval, results/MODEL/model_outputs.json: [{"instruction", "output", "generator", "dataset"}].
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from benchmarks.workloads.published import EMPTY, Count, Number, Record, json_list
from benchmarks.workloads.sources.prompt_sets import (
    AnswerRow,
    Answers,
    prompt_id,
    prompt_set,
    tokens_of_characters,
)
from benchmarks.workloads.sources.source import Choices, ModelNames

_COMMIT = "cd543a149df89434d8a54582c0151c0b945c3d20"
_URL = f"https://raw.githubusercontent.com/tatsu-lab/alpaca_eval/{_COMMIT}/results/{{}}/model_outputs.json"
#: Characters of an answer for one of its tokens, over 38,509 answers of 58 models by their own tokenizers.
CHARACTERS_PER_TOKEN = 4.39
MODELS: ModelNames = {
    "llama-3.1-8b": ("Meta-Llama-3.1-8B-Instruct-Turbo", "Meta-Llama-3-8B-Instruct"),
    "llama-3.1-70b": ("Meta-Llama-3.1-70B-Instruct-Turbo", "Meta-Llama-3-70B-Instruct"),
    "qwen2.5-7b": ("FuseChat-Qwen-2.5-7B-Instruct", "Qwen1.5-7B-Chat"),
    "qwen2.5-72b": ("Qwen2-72B-Instruct", "Qwen1.5-72B-Chat"),
}


class _Row(AnswerRow):
    out_tokens: Count
    out_chars: Count
    #: One judge only, so that the models' values compare.
    win_vs_gpt4t_weighted: Annotated[Number | None, EMPTY] = None


class _Output(Record):
    """An item of AlpacaEval's model_outputs.json."""

    instruction: str
    output: str
    generator: str


def _take(answers: Answers, row: _Row, choices: Choices) -> None:
    estimated = tokens_of_characters(row.out_chars, CHARACTERS_PER_TOKEN)
    answers.tokens[row.model] = max(1, row.out_tokens) if choices.native_lengths else estimated
    if row.win_vs_gpt4t_weighted is not None:
        answers.quality[row.model] = min(1.0, max(0.0, row.win_vs_gpt4t_weighted))


def _read(paths: Sequence[Path], choices: Choices) -> dict[str, Answers]:
    sets: dict[str, Answers] = {}
    for path in paths:
        for item in json_list(path, _Output):
            answers = sets.setdefault(prompt_id(item.instruction), Answers(item.instruction))
            answers.tokens[item.generator] = tokens_of_characters(len(item.output), CHARACTERS_PER_TOKEN)
    return sets


ALPACA_EVAL = prompt_set(
    name="alpaca_eval",
    folder="alpaca_eval",
    models=MODELS,
    row=_Row,
    take=_take,
    read=_read,
    title="AlpacaEval instructions with answer lengths by model",
    licence="CC-BY-NC-4.0 (instructions), answers under the providers' terms; not for redistribution",
    urls=lambda choices: [_URL.format(theirs[0]) for theirs in (choices.models or MODELS).values()],
)
