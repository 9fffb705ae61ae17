"""ZeroEval: GSM8K, MATH level 5 and CRUXEval questions and greedy answers of many models.

WildEval/ZeroEval, result_dirs/TASK/MODEL.json: [{"question" or "problem", "output": [text], "answer" (the right
one), "dataset", ...}]. The prompt is the bare question; lengths are those of answers that reason in JSON first.
Quality is 1 for a right answer and 0 for a wrong one, of the published files by our own reading of the outputs.
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
    number,
    whole_number,
)
from benchmarks.workloads.sources.zeroeval_scoring import is_right

_COMMIT = "8c1485edf12c6efb5f69135a562927c5ad484059"
_URL = f"https://raw.githubusercontent.com/WildEval/ZeroEval/{_COMMIT}/result_dirs/{{}}/{{}}.json"
_NAME = "zeroeval"
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


def _read_folder(paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
    prompts, responses = paths
    tasks: dict[str, str] = {}
    sets: dict[str, Answers] = {}
    for _, data in json_lines(prompts):
        identity = str(data["prompt_id"])
        tasks[identity] = str(data["task"])
        sets[identity] = Answers(str(data["prompt"]))
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
            answers.quality[model] = number(row["correct"], responses, line, "correct", 0, 1)
    return to_requests(_NAME, sets, names_for(choices.models, MODELS, known), choices)


def _read_original(paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
    sets: dict[str, Answers] = {}
    known: set[str] = set()
    for path in paths:
        model = path.stem
        known.add(model)
        for place, item in enumerate(json_list(path), start=1):
            task = str(item.get("dataset"))
            if task not in CHARACTERS_PER_TOKEN:
                raise WorkloadError(
                    f"{path}, item {place}: dataset {task!r} is none of {', '.join(CHARACTERS_PER_TOKEN)}"
                )
            prompt = _question(item)
            output = item.get("output")
            if isinstance(output, list):
                output = output[0] if output else None
            if prompt is None or not isinstance(output, str):
                raise WorkloadError(f"{path}, item {place}: question or problem, and output, must be texts")
            answers = sets.setdefault(prompt_id(prompt), Answers(prompt))
            answers.tokens[model] = _tokens(len(output), task)
            if choices.quality and item.get("answer") is not None:
                answers.quality[model] = float(is_right(task, output, str(item["answer"])))
    return to_requests(_NAME, sets, names_for(choices.models, MODELS, known), choices)


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
    original_quality=True,
)
