"""Answers whose length depends on words of the prompt: what a length predictor must find."""

from __future__ import annotations

import numpy as np

from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, Prompt
from predictors.training.length_net import LengthSettings

TOPICS = {"poem": 120, "essay": 900, "code": 400, "sum": 20}
MODELS = {"llama3.1:8b": ("llama", 1.0), "llama3.1:70b": ("llama", 1.3), "qwen2.5:7b": ("qwen", 0.7)}
FILLING = [
    "please", "about", "the", "a", "my", "for", "with", "small", "green", "river", "house", "tree", "stone",
    "bird", "cloud", "lamp",
]  # fmt: skip

#: A tiny network, seconds to train.
TINY = LengthSettings(
    calibration_parts=2, epochs=4, least_steps=60, rate=1e-2, factors=3, least_word_prompts=3, word_size=4, patch_size=4, hidden=4,
    dense=8, prompt_size=6, model_size=4, mix=8,
)  # fmt: skip


def made_data(
    prompts: int = 120, *, seed: int = 1, cap: int | None = None, shuffled: bool = False
) -> Dataset:
    rng = np.random.default_rng(seed)
    made, answers, lengths = [], [], []
    for number in range(prompts):
        topic = list(TOPICS)[int(rng.integers(len(TOPICS)))]
        words = [str(word) for word in rng.choice(FILLING, 8)]
        words.insert(int(rng.integers(8)), topic)
        text = " ".join(["write", *words])
        prompt = Prompt(f"p{seed}-{number}", f"g{seed}-{number}", "made", prompt_features(text), topic, text)
        made.append(prompt)
        for model, (family, factor) in MODELS.items():
            tokens = max(1, round(TOPICS[topic] * factor * float(np.exp(rng.normal(0, 0.2)))))
            capped = cap is not None and tokens >= cap
            answers.append((prompt.id, model, family, min(tokens, cap) if capped and cap else tokens, capped))
            lengths.append(tokens)
    if shuffled:
        order = rng.permutation(prompts)
        size = len(MODELS)
        taken = [answers[int(order[n // size]) * size + n % size] for n in range(len(answers))]
        answers = [(mine[0], *other[1:]) for mine, other in zip(answers, taken, strict=True)]
    return Dataset(tuple(made), tuple(Answer(*each) for each in answers))
