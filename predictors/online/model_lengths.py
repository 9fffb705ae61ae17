"""What is known of each model's answers: their lengths, the correction of a trained length model, and how the engine
counts prompts.
"""

from __future__ import annotations

from collections.abc import Container
from math import exp, log

import numpy as np

from predictors.kernels import LearnedLengths, LengthTable
from predictors.kernels.length_bins import bin_of
from predictors.online.length import LengthDistribution

#: Prior mean prompt in tokens: between the means of the Azure trace (1,180) and of ShareGPT (250).
PRIOR_PROMPT_TOKENS = 500.0
_PROMPT_MEMORY = 64
#: About what a chat template adds to a prompt. A shorter prompt tells little of how the engine counts text.
_TEMPLATE_TOKENS = 64

Shares = np.ndarray  # (BINS,) of one output length


class ModelLengths:
    """The learned data of one model: output lengths, mean prompt, and the ratio of the engine's count of prompt tokens
    to the router's."""

    __slots__ = ("_prompts", "learned", "mean_prompt_tokens", "output", "prompt_log_ratio", "prompt_ratio")

    def __init__(self, family: LengthDistribution | None) -> None:
        self.output = LengthDistribution(family)
        self.learned = LearnedLengths()
        self.mean_prompt_tokens = PRIOR_PROMPT_TOKENS
        self.prompt_log_ratio = 0.0
        self.prompt_ratio = 1.0  # engine's prompt tokens / estimate
        self._prompts = 0

    def observe_prompt(self, estimated_tokens: int, engine_tokens: int) -> None:
        """Learn from the engine's own count of a prompt."""
        if estimated_tokens <= 0 or engine_tokens <= 0:
            return
        self._prompts += 1
        rate = 1.0 / (self._prompts + 1 if self._prompts < _PROMPT_MEMORY else _PROMPT_MEMORY)
        self.mean_prompt_tokens += rate * (engine_tokens - self.mean_prompt_tokens)
        ratio = engine_tokens / estimated_tokens
        if not 0.1 <= ratio <= 10.0:
            ratio = 0.1 if ratio < 0.1 else 10.0
        rate *= estimated_tokens / (estimated_tokens + _TEMPLATE_TOKENS)
        self.prompt_log_ratio += rate * (log(ratio) - self.prompt_log_ratio)
        self.prompt_ratio = exp(self.prompt_log_ratio)

    def observe_output(
        self, output_tokens: int, max_tokens: int | None, choices: int, predicted: Shares | None = None
    ) -> None:
        """Learn from a complete answer. `output_tokens` are those of all choices, `max_tokens` caps each, `predicted`
        is what a trained model had predicted."""
        each = output_tokens if choices <= 1 else round(output_tokens / choices)
        each = max(each, 1)
        censored = max_tokens is not None and each >= max_tokens
        output = self.output
        at = bin_of(each) if predicted is None else self.learned.observe(predicted, output, each, censored)
        if output.parent is not None:
            output.parent.observe_bin(at, censored)
        output.observe_bin(at, censored)


class ServedModels:
    """Some models with their families, and what is known of their answers, by column. `rated` are the names of those that the
    relevance model knows."""

    __slots__ = ("learned", "lengths", "models", "names", "output", "rated")

    def __init__(
        self, models: tuple[tuple[str, str | None], ...], lengths: list[ModelLengths], rated: list[str]
    ) -> None:
        self.models = models
        self.names = frozenset([model for model, _ in models])
        self.lengths = lengths
        self.output: list[LengthTable] = [each.output for each in lengths]
        self.learned = [each.learned for each in lengths]
        self.rated = rated

    def without(self, known: Container[str]) -> ServedModels:
        """Those that are not `known`."""
        both = [each for each in zip(self.models, self.lengths, strict=True) if each[0][0] not in known]
        rated = [model for model in self.rated if model not in known]
        return ServedModels(tuple([model for model, _ in both]), [lengths for _, lengths in both], rated)


class Lengths:
    """`ModelLengths` by model name. Models of one family share."""

    def __init__(self) -> None:
        self.models: dict[str, ModelLengths] = {}
        self._families: dict[str, LengthDistribution] = {}

    def of(self, model: str, family: str | None = None) -> ModelLengths:
        """The entry of a model, created on first use."""
        entry = self.models.get(model)
        if entry is None:
            shared = None if family is None else self._families.setdefault(family, LengthDistribution())
            entry = self.models[model] = ModelLengths(shared)
        return entry
