"""ZeroEval: GSM8K, MATH level 5 and CRUXEval questions and greedy answers of many models.

WildEval/ZeroEval, result_dirs/TASK/MODEL.json: [{"question" or "problem", "output": [text], "dataset", ...}].
The prompt is the bare question; lengths are those of answers that reason in JSON first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.sources.prompt_sets import (
    Answers,
    names_for,
    prompt_id,
    to_requests,
    tokens_of_characters,
    wanted,
)
from benchmarks.workloads.sources.source import (
    Choices,
    ModelNames,
    Source,
    csv_rows,
    json_lines,
    json_list,
    whole_number,
)

_COMMIT = "8c1485edf12c6efb5f69135a562927c5ad484059"
_URL = f"https://raw.githubusercontent.com/WildEval/ZeroEval/{_COMMIT}/result_dirs/{{}}/{{}}.json"
_NAME = "zeroeval"
#: Characters of an answer for one of its tokens by task, over 101,967 answers by the models' own tokenizers.
CHARACTERS_PER_TOKEN: Mapping[str, float] = {"gsm": 3.39, "math-l5": 2.75, "crux": 3.47}
MODELS: ModelNames = {
    "llama-3.1-8b": ("Meta-Llama-3.1-8B-Instruct",),
    "llama-3.1-70b": ("Meta-Llama-3.1-70B-Instruct",),
    # Qwen2.5 was not run on GSM8K.
    "qwen2.5-7b": ("Qwen2.5-7B-Instruct", "Qwen2-7B-Instruct"),
    "qwen2.5-72b": ("Qwen2.5-72B-Instruct", "Qwen2-72B-Instruct"),
}
#: The runs' own bound on an answer; answers that ran away end here.
MAX_OUTPUT_TOKENS = 4096
#: Which tasks have a file of a model; the others have all three.
_TASKS_OF = {
    "Qwen2.5-7B-Instruct": ("math-l5", "crux"),
    "Qwen2.5-72B-Instruct": ("math-l5", "crux"),
    "Qwen2-7B-Instruct": ("gsm",),
    "Qwen2-72B-Instruct": ("gsm",),
}


def _read_folder(paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
    prompts, responses = paths
    tasks: dict[str, str] = {}
    sets: dict[str, Answers] = {}
    for _, data in json_lines(prompts):
        identity = str(data["prompt_id"])
        tasks[identity] = str(data["task"])
        sets[identity] = Answers(str(data["prompt"]), session=None)
    known: set[str] = set()
    keep = wanted(choices.models or MODELS)
    for line, row in csv_rows(
        responses, ("prompt_id", "task", "model", "out_tokens", "out_chars", "correct")
    ):
        identity, model = row["prompt_id"], row["model"]
        known.add(model)
        if identity not in sets or model not in keep:
            continue
        answers = sets[identity]
        answers.tokens[model] = (
            whole_number(row["out_tokens"], responses, line, "out_tokens", 1)
            if choices.native_lengths
            else _tokens(whole_number(row["out_chars"], responses, line, "out_chars"), tasks[identity])
        )
        if choices.quality and row["correct"] != "":
            answers.quality[model] = float(row["correct"])
    return to_requests(_NAME, sets, names_for(choices.models, MODELS, known))


def _read_original(paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
    sets: dict[str, Answers] = {}
    known: set[str] = set()
    for path in paths:
        model = path.stem
        known.add(model)
        for number, item in enumerate(json_list(path), start=1):
            task = str(item.get("dataset"))
            if task not in CHARACTERS_PER_TOKEN:
                raise WorkloadError(
                    f"{path}, item {number}: dataset {task!r} is none of {', '.join(CHARACTERS_PER_TOKEN)}"
                )
            prompt = _question(item)
            output = item.get("output")
            if isinstance(output, list):
                output = output[0] if output else None
            if prompt is None or not isinstance(output, str):
                raise WorkloadError(f"{path}, item {number}: question or problem, and output, must be texts")
            answers = sets.setdefault(prompt_id(prompt), Answers(prompt))
            answers.tokens[model] = _tokens(len(output), task)
    return to_requests(_NAME, sets, names_for(choices.models, MODELS, known))


def _tokens(characters: int, task: str) -> int:
    return min(MAX_OUTPUT_TOKENS, tokens_of_characters(characters, CHARACTERS_PER_TOKEN[task]))


def _question(item: Mapping[str, Any]) -> str | None:
    for key in ("question", "problem"):
        if isinstance(item.get(key), str):
            return str(item[key])
    return None


def _urls(choices: Choices) -> Sequence[str]:
    return [
        _URL.format(task, model)
        for theirs in (choices.models or MODELS).values()
        for model in theirs
        for task in _TASKS_OF.get(model, tuple(CHARACTERS_PER_TOKEN))
    ]


ZEROEVAL = Source(
    name=_NAME,
    title="ZeroEval questions (GSM8K, MATH level 5, CRUXEval) with answer lengths by model",
    licence="Apache-2.0 (GSM8K MIT, CRUXEval MIT, MATH MIT; answers under the providers' terms)",
    timed=False,
    texts=True,
    folder_files=("zeroeval/prompts.jsonl.gz", "zeroeval/responses.csv.gz"),
    read_folder=_read_folder,
    read_original=_read_original,
    urls=_urls,
    models=MODELS,
)
