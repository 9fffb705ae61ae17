"""Small made data sets for the training tests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Attempt, Dataset, Prompt, Run, State

TASKS = {"count": (20, 0.9), "list": (120, 0.6), "essay": (600, 0.3)}
NOUNS = ("apples", "trains", "rivers", "letters", "planets", "cooks", "stones", "clouds")
MODELS = {"llama-3.1-8b": ("llama", 1.0), "qwen2.5-7b": ("qwen", 1.6)}


def answers(prompts: int = 160, seed: int = 1, source: str = "made") -> Dataset:
    """Prompts of three kinds, which decide how long and how good two models' answers are."""
    random = Random(seed)
    made, given = [], []
    for number in range(prompts):
        task = random.choice(sorted(TASKS))
        words = " ".join(random.choices(NOUNS, k=8))
        text = f"{task.capitalize()} the following for me please, number {number}: {words}."
        identity = f"{source}-{number}"
        made.append(Prompt(identity, identity, source, prompt_features(text), task, text))
        tokens, quality = TASKS[task]
        for model, (family, factor) in MODELS.items():
            length = max(1, round(tokens * factor * random.lognormvariate(0, 0.25)))
            right = float(random.random() < quality)
            given.append(
                Answer(identity, model, family, length, False, right, "correct", 1.7e9 + 60 * number)
            )
    about = {"sources": [{"name": source, "licence": "CC0", "rows": len(given)}]}
    return Dataset(tuple(made), tuple(given), about=about)


def log(
    levels: Sequence[str | None] = (None,),
    attempts: int = 100,
    *,
    source: str = "log",
    started_at_s: float | None = None,
    waiting: int = 0,
    kv_usage: float | None = 0.1,
) -> Dataset:
    """A run for each level: an attempt and a report each second, first tokens half a second later."""
    runs, rows, states = [], [], []
    for number, level in enumerate(levels):
        name = f"{source}-{number}"
        runs.append(Run(name, source, "a", "llama-3.1-8b", level=level, started_at_s=started_at_s))
        for second in range(attempts):
            rows.append(
                Attempt(
                    name, "llama-3.1-8b", float(second), 100, second + 0.5, second + 2.5, output_tokens=50
                )
            )
            states.append(State(name, float(second), 1, waiting, kv_usage))
    about = {"sources": [{"name": source, "licence": "CC0", "rows": len(rows)}]}
    return Dataset(runs=tuple(runs), attempts=tuple(rows), states=tuple(states), about=about)
