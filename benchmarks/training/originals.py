"""The published originals of the prompt sets that the shipped predictors learn from, for who has no HEADWAY_DATA.

They have texts of answers and no token counts: lengths are characters over a constant of the task, so an artifact made from them
differs a little from one made from the folder.

RouteLLM (lm-sys/RouteLLM, routellm/evals): a CSV file for GSM8K and one for each MMLU subject; columns prompt, then for each model
whether it was right, and for GSM8K its answer (`MODEL_response`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from benchmarks.datasets.groups import groups
from benchmarks.datasets.terms import TERMS
from benchmarks.workloads.fetch import download
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import Record, table
from benchmarks.workloads.sources.prompt_sets import prompt_id, tokens_of_characters
from benchmarks.workloads.sources.source import Choices
from benchmarks.workloads.sources.zeroeval import MAX_OUTPUT_TOKENS, ZEROEVAL
from predictors.learned.names import family_of
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, DatasetError, Prompt

_ROUTELLM = "https://raw.githubusercontent.com/lm-sys/RouteLLM/0b64fdafe049e596a3f5657c219329f24af24198/routellm/evals/{}"
#: The model's name in the set.
MIXTRAL = "mixtral-8x7b-instruct"
#: Characters of Mixtral's GSM8K answers for one of their tokens, over 1,050 answers by its own tokenizer.
_MIXTRAL_CHARACTERS_PER_TOKEN = 2.29
_MMLU = (
    *("abstract_algebra", "anatomy", "astronomy", "business_ethics", "clinical_knowledge", "college_biology"),
    *("college_chemistry", "college_computer_science", "college_mathematics", "college_medicine"),
    *("college_physics", "computer_security", "conceptual_physics", "econometrics", "electrical_engineering"),
    *("elementary_mathematics", "formal_logic", "global_facts", "high_school_biology"),
    *("high_school_chemistry", "high_school_computer_science", "high_school_european_history"),
    *("high_school_geography", "high_school_government_and_politics", "high_school_macroeconomics"),
    *("high_school_mathematics", "high_school_microeconomics", "high_school_physics"),
    *("high_school_psychology", "high_school_statistics", "high_school_us_history"),
    *("high_school_world_history", "human_aging", "human_sexuality", "international_law", "jurisprudence"),
    *("logical_fallacies", "machine_learning", "management", "marketing", "medical_genetics"),
    *("miscellaneous", "moral_disputes", "moral_scenarios", "nutrition", "philosophy", "prehistory"),
    *("professional_accounting", "professional_law", "professional_medicine", "professional_psychology"),
    *("public_relations", "security_studies", "sociology", "us_foreign_policy", "virology"),
    "world_religions",
)

#: (prompt's text, task, answer to it; its `prompt` is filled in later).
_Row = tuple[str, str, Answer]


def read_originals(models: Mapping[str, Collection[str]], environment: Mapping[str, str]) -> Dataset:
    """ZeroEval's answers of `models` ({task: models}) and RouteLLM's of Mixtral, from the cache or downloaded
    into it. Raises DatasetError."""
    try:
        rows = {"zeroeval": list(_zeroeval(models, environment)), "routellm": list(_routellm(environment))}
    except WorkloadError as error:
        raise DatasetError(str(error)) from error
    return dataset(rows)


def _zeroeval(models: Mapping[str, Collection[str]], environment: Mapping[str, str]) -> Iterator[_Row]:
    for task, names in models.items():
        urls = [
            url
            for url in ZEROEVAL.urls(Choices(models={name: (name,) for name in sorted(names)}))
            if url.rsplit("/", 2)[1] == task
        ]
        yield from zeroeval_rows([download(url, environment) for url in urls], task)


def zeroeval_rows(paths: Sequence[Path], task: str) -> Iterator[_Row]:
    """The answers in result files of one task, a file a model."""
    names = [path.stem for path in paths]
    choices = Choices(models={name: (name,) for name in names}, quality=True)
    requests = ZEROEVAL.read_original(ZEROEVAL.name, paths, choices)
    assert isinstance(requests, list)  # noqa: S101 (a set of prompts is no traffic)
    for request in requests:
        lengths = request.output_tokens if isinstance(request.output_tokens, Mapping) else {}
        for name, tokens in lengths.items():
            quality = (request.quality or {}).get(name)
            kind = None if quality is None else "correct"
            capped = tokens >= MAX_OUTPUT_TOKENS
            answer = Answer("", name, family_of(name), tokens, capped, quality, kind)
            yield request.prompt or "", task, answer


def _routellm(environment: Mapping[str, str]) -> Iterator[_Row]:
    files = {"gsm8k": "gsm8k/gsm8k_responses.csv"}
    files |= {task: f"mmlu/responses/mmlu_{task}.csv" for task in _MMLU}
    for task, file in files.items():
        yield from routellm_rows(download(_ROUTELLM.format(file), environment), task)


class _Mixtral(Record):
    """A row of RouteLLM's files: whether Mixtral was right, and its answer where the file has it."""

    prompt: str
    right: Literal["True", "False"] = Field(alias="mixtral-8x7b-instruct-v0.1")
    answer: str = Field("", alias="mixtral-8x7b-instruct-v0.1_response")


def routellm_rows(path: Path, task: str) -> Iterator[_Row]:
    for row in table(path, _Mixtral):
        answer = row.answer.strip()
        tokens = tokens_of_characters(len(answer), _MIXTRAL_CHARACTERS_PER_TOKEN) if answer else None
        quality = float(row.right == "True")
        yield row.prompt, task, Answer("", MIXTRAL, family_of(MIXTRAL), tokens, False, quality, "correct")


def dataset(rows: Mapping[str, Sequence[_Row]]) -> Dataset:
    """{source: its rows} as a data set, with near copies across all sources in one group."""
    texts = {prompt_id(text): text for found in rows.values() for text, _, _ in found}
    group = groups(texts)
    prompts: dict[str, Prompt] = {}
    answers: dict[tuple[str, str], Answer] = {}
    counts: dict[str, int] = defaultdict(int)
    for source, found in rows.items():
        for text, task, answer in found:
            known = prompt_id(text)
            identity = f"{source}/{known}"
            prompts[identity] = Prompt(identity, group[known], source, prompt_features(text), task, text)
            answers[identity, answer.model] = replace(answer, prompt=identity)
            counts[source] += 1
    sources = [
        {"name": source, "licence": TERMS[source].licence, "rows": {"answers": count}, "from": "originals"}
        for source, count in counts.items()
    ]
    return Dataset(tuple(prompts.values()), tuple(answers.values()), about={"sources": sources})
