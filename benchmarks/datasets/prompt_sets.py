"""Published prompts with many models' answers: how long they were and how good. Texts of answers are not read.

| set | lengths | quality |
|---|---|---|
| zeroeval | yes, 4,096 tokens at most | correct or not |
| alpaca_eval | yes | win against GPT-4 Turbo; else against text-davinci-003 |
| arena_2023 | yes, 1,024 tokens at most | GPT-4's grade |
| llmrouter | no | score of the task |
| routellm | GSM8K only | correct or not |

Wins against two references are two kinds of quality ("win", "win_davinci003"): 0.9 against the weak one is
worth less than 0.5 against the strong one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.datasets.groups import groups
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.sources.source import csv_rows, json_lines, number, whole_number
from predictors.learned.names import family_of
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, Prompt

_PROMPTS = "prompts.jsonl.gz"
_RESPONSES = "responses.csv.gz"
_MODELS = "models.csv"
#: A judge's wins in order of preference: by GPT-4 Turbo with weights, as a function call, with a chain of thought.
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
_ARENA_CAP = 1024
#: A base model that does not answer questions.
_ARENA_JUNK = {"llama-13b"}
#: Hide their reasoning, so that the length of what is seen says nothing.
_HIDDEN_REASONING = re.compile(r"o1(-|$)")


class _Line:
    """One row of a table of answers; wrong values raise a WorkloadError that names file and line."""

    def __init__(self, path: Path, line: int, values: Mapping[str, str]) -> None:
        self.path, self.line, self.values = path, line, values

    def text(self, name: str) -> str:
        return self.values[name]

    def share(self, name: str, low: float = 0.0, high: float = 1.0) -> float | None:
        """A number scaled from [low, high] to [0, 1], None where the column is empty."""
        text = self.values.get(name, "")
        return (
            (number(text, self.path, self.line, name, low, high) - low) / (high - low) if text != "" else None
        )

    def tokens(self) -> int | None:
        """Tokens of the answer; None where unknown. An empty answer is a failed call, not a short answer."""
        text = self.values.get("out_tokens", "")
        return whole_number(text, self.path, self.line, "out_tokens") or None if text != "" else None


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a row says of one answer."""

    output_tokens: int | None = None
    capped: bool = False
    quality: float | None = None
    quality_kind: str | None = None


def _zeroeval(row: _Line) -> _Facts:
    tokens = row.tokens()
    if _HIDDEN_REASONING.match(row.text("model")):
        tokens = None
    misjudged = (row.text("model"), row.text("task")) in _ZEROEVAL_MISJUDGED
    return _facts(tokens, _ZEROEVAL_CAP, None if misjudged else row.share("correct"), "correct")


def _alpaca_eval(row: _Line) -> _Facts:
    for column, kind in _WINS:
        win = row.share(column)
        if win is not None:
            return _facts(row.tokens(), None, win, kind)
    return _facts(row.tokens(), None, None, "win")


def _arena(row: _Line) -> _Facts | None:
    if row.text("model") in _ARENA_JUNK:
        return None
    return _facts(row.tokens(), _ARENA_CAP, row.share("gpt4_score_1_10", 1.0, 10.0), "judged")


def _llmrouter(row: _Line) -> _Facts:
    return _facts(None, None, row.share("score"), "score")


def _routellm(row: _Line) -> _Facts:
    return _facts(row.tokens(), None, row.share("correct"), "correct")


def _facts(tokens: int | None, cap: int | None, quality: float | None, kind: str) -> _Facts:
    capped = tokens is not None and cap is not None and tokens >= cap
    return _Facts(tokens, capped, quality, kind if quality is not None else None)


@dataclass(frozen=True, slots=True)
class PromptSet:
    """A folder of prompts and answers. `answer` reads a row of answers, None to leave it out."""

    licence: str
    columns: tuple[str, ...]
    answer: Callable[[_Line], _Facts | None]


PROMPT_SETS: dict[str, PromptSet] = {
    "zeroeval": PromptSet("Apache-2.0; outputs under their providers' terms", ("out_tokens", "correct"), _zeroeval),
    "alpaca_eval": PromptSet("CC-BY-NC-4.0", ("out_tokens", *(column for column, _ in _WINS)), _alpaca_eval),
    "arena_2023": PromptSet("CC-BY-4.0 prompts, CC-BY-NC-4.0 outputs", ("out_tokens", "gpt4_score_1_10"), _arena),
    "llmrouter": PromptSet("MIT; questions under their own licences", ("score",), _llmrouter),
    "routellm": PromptSet("Apache-2.0", ("correct", "out_tokens"), _routellm),
}  # fmt: skip


def read_prompt_sets(folders: Mapping[str, Path]) -> Dataset:
    """The prompts and answers of the named sets, {name: folder}. Near copies are found across all of them; a
    question that two sets have is two prompts of one group, since they put it in different words around it.
    Raises WorkloadError for tables that are not as published."""
    texts: dict[str, str] = {}
    rows: dict[str, list[tuple[str, str | None]]] = {}
    for name, folder in folders.items():
        rows[name] = []
        for prompt, text, task in _prompts(folder / _PROMPTS):
            texts[prompt] = text
            rows[name].append((prompt, task))
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
        sources.append({"name": name, "licence": PROMPT_SETS[name].licence, "rows": counts})
    return Dataset(tuple(prompts), tuple(answers), about={"sources": sources})


def _prompts(path: Path) -> Iterator[tuple[str, str, str | None]]:
    for line, row in json_lines(path):
        prompt, text = row.get("prompt_id"), row.get("prompt")
        if not isinstance(prompt, str) or not isinstance(text, str):
            raise WorkloadError(f"{path}, line {line}: prompt_id and prompt must be strings")
        task = row.get("task", row.get("source"))
        yield prompt, text, task if isinstance(task, str) else None


def _answers(name: str, folder: Path) -> Iterator[Answer]:
    families = _families(folder / _MODELS)
    reader = PROMPT_SETS[name]
    path = folder / _RESPONSES
    for line, values in csv_rows(path, ("prompt_id", "model", *reader.columns)):
        facts = reader.answer(_Line(path, line, values))
        if facts is None:
            continue
        model = values["model"]
        yield Answer(
            f"{name}/{values['prompt_id']}",
            model,
            family_of(model) or families.get(model),
            facts.output_tokens,
            facts.capped,
            facts.quality,
            facts.quality_kind,
        )


def _families(path: Path) -> dict[str, str]:
    """Families by model where the set's own table of models tells more than the name (`mistral-tuned`)."""
    if not path.is_file():
        return {}
    found = {row["model"]: family_of(row.get("family") or "") for _, row in csv_rows(path, ("model",))}
    return {model: family for model, family in found.items() if family is not None}
