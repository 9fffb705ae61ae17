"""Published prompts with many models' answers: how long they were and how good (docs/datasets.md says what each set has).
Texts of answers are not read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from benchmarks.datasets.groups import groups
from benchmarks.datasets.terms import TERMS
from benchmarks.workloads.published import EMPTY, Count, Record, Share, json_records, table
from benchmarks.workloads.sources.arena import MAX_OUTPUT_TOKENS, Grade, quality
from benchmarks.workloads.sources.prompt_sets import AnswerRow, PromptRow
from predictors.learned.names import family_of
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, Prompt

_PROMPTS = "prompts.jsonl.gz"
_RESPONSES = "responses.csv.gz"
_MODELS = "models.csv"
#: A judge's wins in order of preference: by GPT-4 Turbo with weights, as a function call, with a chain of thought. Wins
#: against the weaker reference are another kind of quality: 0.9 of them is worth less than 0.5 against the stronger one.
_WINS = (
    ("win_vs_gpt4t_weighted", "win"),
    ("win_vs_gpt4t_fn", "win"),
    ("win_vs_gpt4t_cot", "win"),
    ("win_vs_davinci003", "win_davinci003"),
)
#: Scoring of the stored outputs disagrees with the published accuracy: lengths are kept, correctness is not.
_ZEROEVAL_MISJUDGED = {
    ("Phi-3-mini-4k-instruct", "math-l5"),
    ("Qwen2.5-3B-Instruct", "math-l5"),
    ("yi-large-preview", "gsm"),
    ("claude-3-5-haiku-20241022", "crux"),
}
_ZEROEVAL_CAP = 4096
#: A base model that does not answer questions.
_ARENA_JUNK = {"llama-13b"}
#: Hide their reasoning, so that the visible length is not the answer's.
_HIDDEN_REASONING = re.compile(r"o1(-|$)")


class _Row(AnswerRow):
    #: Of the answer. An empty answer is a failed call, not a short answer.
    out_tokens: Annotated[Count | None, EMPTY] = None
    task: str = ""


class _Correct(_Row):
    correct: Annotated[Share | None, EMPTY]


class _Wins(_Row):
    win_vs_gpt4t_weighted: Annotated[Share | None, EMPTY]
    win_vs_gpt4t_fn: Annotated[Share | None, EMPTY]
    win_vs_gpt4t_cot: Annotated[Share | None, EMPTY]
    win_vs_davinci003: Annotated[Share | None, EMPTY]


class _Graded(_Row):
    gpt4_score_1_10: Annotated[Grade | None, EMPTY]


class _Scored(_Row):
    score: Annotated[Share | None, EMPTY]


#: What a row has about one answer: its tokens, whether they were cut, its quality, and the kind of that.
_Facts = tuple[int | None, bool, float | None, str | None]


def _zeroeval(row: _Correct) -> _Facts:
    tokens = None if _HIDDEN_REASONING.match(row.model) else row.out_tokens
    misjudged = (row.model, row.task) in _ZEROEVAL_MISJUDGED
    return _facts(tokens, _ZEROEVAL_CAP, None if misjudged else row.correct, "correct")


def _alpaca_eval(row: _Wins) -> _Facts:
    wins = ((getattr(row, column), kind) for column, kind in _WINS)
    win, kind = next((one for one in wins if one[0] is not None), (None, "win"))
    return _facts(row.out_tokens, None, win, kind)


def _arena(row: _Graded) -> _Facts | None:
    if row.model in _ARENA_JUNK:
        return None
    grade = row.gpt4_score_1_10
    return _facts(row.out_tokens, MAX_OUTPUT_TOKENS, None if grade is None else quality(grade), "judged")


def _facts(tokens: int | None, cap: int | None, quality: float | None, kind: str) -> _Facts:
    capped = tokens is not None and cap is not None and tokens >= cap
    return tokens or None, capped, quality, kind if quality is not None else None


#: By name of the set: the rows of its answers, and what reads one (None: it is left out).
PROMPT_SETS: dict[str, tuple[type[_Row], Callable[[Any], _Facts | None]]] = {
    "zeroeval": (_Correct, _zeroeval),
    "alpaca_eval": (_Wins, _alpaca_eval),
    "arena_2023": (_Graded, _arena),
    "llmrouter": (_Scored, lambda row: _facts(None, None, row.score, "score")),
    "routellm": (_Correct, lambda row: _facts(row.out_tokens, None, row.correct, "correct")),
}


def read_prompt_sets(folders: Mapping[str, Path]) -> Dataset:
    """The prompts and answers of the named sets, {name: folder}. Near copies are found across all of them; a
    question that two sets have is two prompts of one group, since they put it in different words around it.
    Raises WorkloadError for tables that are not as published."""
    texts: dict[str, str] = {}
    rows: dict[str, list[tuple[str, str | None]]] = {}
    for name, folder in folders.items():
        rows[name] = []
        for row in json_records(folder / _PROMPTS, PromptRow):
            texts[row.prompt_id] = row.prompt
            rows[name].append((row.prompt_id, row.task or None))
    group = groups(texts)
    prompts = [
        Prompt(f"{name}/{prompt}", group[prompt], name, prompt_features(texts[prompt]), task, texts[prompt])
        for name, found in rows.items()
        for prompt, task in found
    ]
    known = {prompt.id for prompt in prompts}
    answers: list[Answer] = []
    sources = []
    for name, folder in folders.items():
        before = len(answers)
        answers += [answer for answer in _answers(name, folder) if answer.prompt in known]
        counts = {"prompts": len(rows[name]), "answers": len(answers) - before}
        sources.append({"name": name, "licence": TERMS[name].licence, "rows": counts})
    return Dataset(tuple(prompts), tuple(answers), about={"sources": sources})


def _answers(name: str, folder: Path) -> Iterator[Answer]:
    families = _families(folder / _MODELS)
    rows, facts_of = PROMPT_SETS[name]
    for row in table(folder / _RESPONSES, rows):
        facts = facts_of(row)
        if facts is not None:
            family = family_of(row.model) or families.get(row.model)
            yield Answer(f"{name}/{row.prompt_id}", row.model, family, *facts)


class _Model(Record):
    model: str
    family: str = ""


def _families(path: Path) -> dict[str, str]:
    """Families by model where the set's own table of models has more than the name (`mistral-tuned`)."""
    if not path.is_file():
        return {}
    found = {row.model: family_of(row.family) for row in table(path, _Model)}
    return {model: family for model, family in found.items() if family is not None}
