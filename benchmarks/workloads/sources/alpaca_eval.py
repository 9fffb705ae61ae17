"""AlpacaEval: 805 instructions and the answers of many models.

tatsu-lab/alpaca_eval, results/MODEL/model_outputs.json: [{"instruction", "output", "generator", "dataset"}].
The instructions are published as CC-BY-NC-4.0 and the answers under each provider's terms: for local tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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

_COMMIT = "cd543a149df89434d8a54582c0151c0b945c3d20"
_URL = f"https://raw.githubusercontent.com/tatsu-lab/alpaca_eval/{_COMMIT}/results/{{}}/model_outputs.json"
_NAME = "alpaca_eval"
#: Characters of an answer for one of its tokens, over 38,509 answers of 58 models by their own tokenizers.
CHARACTERS_PER_TOKEN = 4.39
MODELS: ModelNames = {
    "llama-3.1-8b": ("Meta-Llama-3.1-8B-Instruct-Turbo", "Meta-Llama-3-8B-Instruct"),
    "llama-3.1-70b": ("Meta-Llama-3.1-70B-Instruct-Turbo", "Meta-Llama-3-70B-Instruct"),
    "qwen2.5-7b": ("FuseChat-Qwen-2.5-7B-Instruct", "Qwen1.5-7B-Chat"),
    "qwen2.5-72b": ("Qwen2-72B-Instruct", "Qwen1.5-72B-Chat"),
}


def _read_folder(paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
    prompts, responses = paths
    sets = {str(data["prompt_id"]): Answers(str(data["prompt"])) for _, data in json_lines(prompts)}
    known: set[str] = set()
    keep = wanted(choices.models or MODELS)
    for line, row in csv_rows(responses, ("prompt_id", "model", "out_tokens", "out_chars")):
        model = row["model"]
        known.add(model)
        answers = sets.get(row["prompt_id"])
        if answers is None or model not in keep:
            continue
        answers.tokens[model] = (
            whole_number(row["out_tokens"], responses, line, "out_tokens", 1)
            if choices.native_lengths
            else tokens_of_characters(
                whole_number(row["out_chars"], responses, line, "out_chars"), CHARACTERS_PER_TOKEN
            )
        )
        # One judge only, so that the models' values compare.
        judged = row.get("win_vs_gpt4t_weighted")
        if choices.quality and judged:
            answers.quality[model] = min(1.0, max(0.0, float(judged)))
    return to_requests(_NAME, sets, names_for(choices.models, MODELS, known), choices)


def _read_original(paths: Sequence[Path], choices: Choices) -> list[WorkloadRequest]:
    sets: dict[str, Answers] = {}
    known: set[str] = set()
    for path in paths:
        for number, item in enumerate(json_list(path), start=1):
            prompt, output, model = (item.get(key) for key in ("instruction", "output", "generator"))
            if not isinstance(prompt, str) or not isinstance(output, str) or not isinstance(model, str):
                raise WorkloadError(
                    f"{path}, item {number}: instruction, output and generator must be texts (AlpacaEval model_outputs.json)"
                )
            known.add(model)
            answers = sets.setdefault(prompt_id(prompt), Answers(prompt))
            answers.tokens[model] = tokens_of_characters(len(output), CHARACTERS_PER_TOKEN)
    return to_requests(_NAME, sets, names_for(choices.models, MODELS, known), choices)


def _urls(choices: Choices) -> Sequence[str]:
    return [_URL.format(theirs[0]) for theirs in (choices.models or MODELS).values()]


ALPACA_EVAL = Source(
    name=_NAME,
    title="AlpacaEval instructions with answer lengths by model",
    licence="CC-BY-NC-4.0 (instructions), answers under the providers' terms; not for redistribution",
    timed=False,
    texts=True,
    folder_files=("alpaca_eval/prompts.jsonl.gz", "alpaca_eval/responses.csv.gz"),
    read_folder=_read_folder,
    read_original=_read_original,
    urls=_urls,
    models=MODELS,
)
