"""LLMRouter: questions of many task sets and how well nine models answered each; no answers, so no lengths.

ulab-uiuc/LLMRouter, data/dcrouter_preprocessed/{train,test}.json: [{"question", "scores": {model: 0..1}}].
The source's own split is undone. The originals hold GPQA questions too, which the data folder leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.sources.prompt_sets import Answers, names_for, prompt_id, to_requests
from benchmarks.workloads.sources.source import (
    Choices,
    ModelNames,
    Source,
    csv_rows,
    json_lines,
    json_list,
    number,
)

_COMMIT = "4e7a796942ce26e9d5f2b93191c7c2585c99c2e3"
_URL = f"https://raw.githubusercontent.com/ulab-uiuc/LLMRouter/{_COMMIT}/data/dcrouter_preprocessed/{{}}.json"
_NAME = "llmrouter"
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


def _read_folder(paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
    prompts, responses = paths
    sets = {str(data["prompt_id"]): Answers(str(data["prompt"])) for _, data in json_lines(prompts)}
    known: set[str] = set()
    for line, row in csv_rows(responses, ("prompt_id", "model", "score")):
        known.add(row["model"])
        if row["prompt_id"] in sets:
            score = number(row["score"], responses, line, "score", 0, 1)
            sets[row["prompt_id"]].quality[row["model"]] = score
    return to_requests(_NAME, sets, names_for(choices.models, MODELS, known), choices)


def _read_original(paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
    sets: dict[str, Answers] = {}
    known: set[str] = set()
    for path in paths:
        for place, item in enumerate(json_list(path), start=1):
            prompt, scores = item.get("question"), item.get("scores")
            if not isinstance(prompt, str) or not isinstance(scores, dict):
                raise WorkloadError(f"{path}, item {place}: question must be a text and scores an object")
            known.update(scores)
            answers = sets.setdefault(prompt_id(prompt), Answers(prompt))
            for model, score in scores.items():
                answers.quality[model] = number(score, path, place, f"scores.{model}", 0, 1)
    return to_requests(_NAME, sets, names_for(choices.models, MODELS, known), choices)


LLMROUTER = Source(
    name=_NAME,
    title="LLMRouter questions of 13 task sets with scores by model, no lengths",
    licence="MIT (the repository); questions under their sets' licences, not for redistribution",
    timed=False,
    texts=True,
    folder_files=("llmrouter/prompts.jsonl.gz", "llmrouter/responses.csv.gz"),
    read_folder=_read_folder,
    read_original=_read_original,
    urls=lambda _choices: [_URL.format(part) for part in ("train", "test")],
    models=MODELS,
    original_quality=True,
    lengths_unknown=True,
)
