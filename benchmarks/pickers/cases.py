"""What is picked from: the models of a published set under a tariff, with true qualities and lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from benchmarks.datasets.prompt_sets import PROMPT_SETS
from benchmarks.datasets.public import present, read_public
from benchmarks.evaluate.picks import OfPrompts
from benchmarks.workloads.sources import llmrouter
from predictors.learned.names import family_of
from predictors.training.dataset import Dataset, DatasetError, Prompt
from router.core.types import Candidate, Price

#: Output tokens of every answer of a set that has no lengths: about the mean of ZeroEval's answers by the four
#: models below.
ASSUMED_TOKENS = 300.0
#: ZeroEval's fixed instruction, which its bare questions stand in.
_INSTRUCTION_TOKENS = 90
_CHARACTERS_A_TOKEN = 4.0

#: Names in the sets by names in a fleet.
_ZEROEVAL = {
    "llama-3.1-8b": "Meta-Llama-3.1-8B-Instruct",
    "llama-3.1-70b": "Meta-Llama-3.1-70B-Instruct",
    "qwen2-7b": "Qwen2-7B-Instruct",
    "qwen2-72b": "Qwen2-72B-Instruct",
}
_PEERS = {
    "athene-70b": "Athene-70B",
    "llama-3-70b": "Meta-Llama-3-70B-Instruct",
    "llama-3.1-70b": "Meta-Llama-3.1-70B-Instruct",
    "qwen2-72b": "Qwen2-72B-Instruct",
}
_CLOSED = {
    "gpt-4o": "gpt-4o-2024-08-06",
    "gpt-4o-mini": "gpt-4o-mini-2024-07-18",
    "claude-3-haiku": "claude-3-haiku-20240307",
    "claude-3-5-sonnet": "claude-3-5-sonnet-20241022",
}
#: In the order of their prices below.
_LLMROUTER = sorted(name for names in llmrouter.MODELS.values() for name in names)


@dataclass(frozen=True, slots=True)
class Case:
    """Models (fleet name: name in the set) and their prices. `max_tokens` bounds answers, as it did in the set;
    `instruction_tokens` were around every prompt; `tokens` is the length of every answer where the set has
    none (None: it has)."""

    name: str
    set: str
    models: Mapping[str, str]
    prices: Mapping[str, Price]
    instruction_tokens: int = 0
    max_tokens: int | None = None
    tokens: float | None = None

    def candidates(self) -> list[Candidate]:
        """One instance a model, of the model's name, in the order of `models`."""
        return [
            Candidate(model, model, published, self.prices[model], family=family_of(published))
            for model, published in self.models.items()
        ]


def _zeroeval(
    name: str, prices: Mapping[str, tuple[float, float]], models: Mapping[str, str] = _ZEROEVAL
) -> Case:
    tariff = {model: Price(*usd) for model, usd in prices.items()}
    return Case(f"zeroeval/{name}", "zeroeval", models, tariff, _INSTRUCTION_TOKENS, 4096)


#: USD per million tokens. DeepInfra's as in benchmarks/scenarios/two-families.fleet.yaml; the others of ZeroEval from
#: litellm 1.109's table, `peers` (four models of nearly one quality) at what Fireworks takes for models of their size,
#: `closed` at the list prices of the models' year; LLMRouter's as that set states them.
CASES = {
    case.name: case
    for case in (
        _zeroeval(
            "deepinfra",
            {
                "llama-3.1-8b": (0.03, 0.05),
                "llama-3.1-70b": (0.40, 0.40),
                "qwen2-7b": (0.04, 0.10),
                "qwen2-72b": (0.36, 0.40),
            },
        ),
        _zeroeval(
            "fireworks",
            {
                "llama-3.1-8b": (0.1, 0.1),
                "llama-3.1-70b": (0.9, 0.9),
                "qwen2-7b": (0.2, 0.2),
                "qwen2-72b": (0.9, 0.9),
            },
        ),
        _zeroeval("peers", dict.fromkeys(_PEERS, (0.9, 0.9)), _PEERS),
        _zeroeval(
            "closed",
            {
                "gpt-4o": (2.5, 10.0),
                "gpt-4o-mini": (0.15, 0.6),
                "claude-3-haiku": (0.25, 1.25),
                "claude-3-5-sonnet": (3.0, 15.0),
            },
            _CLOSED,
        ),
        Case(
            "llmrouter",
            "llmrouter",
            {name: name for name in _LLMROUTER},
            {
                name: Price(usd, usd)
                for name, usd in zip(_LLMROUTER, (0.2, 0.1, 0.2, 0.9, 0.9, 0.9, 0.2, 0.2, 0.2), strict=True)
            },
            tokens=ASSUMED_TOKENS,
        ),
    )
}


@dataclass(frozen=True)
class Table(OfPrompts):
    """Prompts that every model of a case has answered, with the truth: `quality` (P, M) in [0, 1], `cost_usd`
    (P, M), `output_tokens` (P, M), `prompt_tokens` (P,)."""

    case: Case
    quality: np.ndarray
    cost_usd: np.ndarray
    output_tokens: np.ndarray
    prompt_tokens: np.ndarray


def read_sets(folder: Path) -> Dataset:
    """All sets of prompts that the folder has, read together, so that near copies in two sets share a group. Raises
    DatasetError."""
    found = present(folder, PROMPT_SETS)
    if not found:
        raise DatasetError(f"{folder}: has no folder of {', '.join(PROMPT_SETS)}")
    return read_public(folder, found)


def read_tariff(path: Path) -> Case:
    """A case of your own, from YAML: `set` (a published set), `models` by name in the fleet, each with `published` (its
    name in the set) and its two prices. Its name is the file's. Raises DatasetError."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        models = {name: each.pop("published") for name, each in found["models"].items()}
        prices = {name: Price(**each) for name, each in found["models"].items()}
        like = next(case for case in CASES.values() if case.set == found["set"])
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError, StopIteration) as error:
        raise DatasetError(
            f"{path}: no tariff: it needs `set` ({' or '.join(dict.fromkeys(case.set for case in CASES.values()))}) and "
            "`models`, each with `published`, `input_usd_per_mtok` and `output_usd_per_mtok`"
        ) from error
    return replace(like, name=f"{like.set}/{path.stem}", models=models, prices=prices)


def table_of(case: Case, data: Dataset) -> Table:
    """Raises DatasetError where no prompt has an answer by every model."""
    column = {published: at for at, published in enumerate(case.models.values())}
    row = {prompt.id: at for at, prompt in enumerate(data.prompts)}
    quality = np.full((len(row), len(column)), np.nan)
    tokens = np.full(quality.shape, np.nan if case.tokens is None else case.tokens)
    for answer in data.answers:
        at = column.get(answer.model)
        if at is None or answer.prompt not in row:
            continue
        if answer.quality is not None:
            quality[row[answer.prompt], at] = answer.quality
        if case.tokens is None and answer.output_tokens is not None:
            tokens[row[answer.prompt], at] = answer.output_tokens
    whole = np.flatnonzero(~(np.isnan(quality) | np.isnan(tokens)).any(axis=1))
    if not len(whole):
        raise DatasetError(f"{case.name}: no prompt was answered by all of {', '.join(case.models)}")
    prompts = tuple(data.prompts[at] for at in whole)
    size = np.array([_prompt_tokens(prompt, case) for prompt in prompts])
    output_tokens = tokens[whole]
    return Table(prompts, case, quality[whole], usd_of(case, size, output_tokens), output_tokens, size)


def usd_of(case: Case, prompt_tokens: np.ndarray, output_tokens: np.ndarray) -> np.ndarray:
    """(P, M) prices of answers of so many tokens (P, M) to prompts of so many (P,)."""
    prices = [case.prices[model] for model in case.models]
    paid = np.array([(each.input_usd_per_mtok, each.output_usd_per_mtok) for each in prices])
    return np.asarray((prompt_tokens[:, None] * paid[:, 0] + output_tokens * paid[:, 1]) * 1e-6)


def _prompt_tokens(prompt: Prompt, case: Case) -> int:
    characters = len(prompt.text) if prompt.text is not None else prompt.features.counts[0]
    return round(characters / _CHARACTERS_A_TOKEN) + case.instruction_tokens


def part(table: Table, rows: Sequence[int] | np.ndarray) -> Table:
    """Some rows of a table."""
    at = np.asarray(rows, dtype=int)
    arrays = ("quality", "cost_usd", "output_tokens", "prompt_tokens")
    taken = {name: getattr(table, name)[at] for name in arrays}
    return replace(table, prompts=tuple(table.prompts[row] for row in at), **taken)
