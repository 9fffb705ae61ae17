"""The lengths of each model's answers, the weight of a trained length model, and the engine's way of counting prompts.

A trained model knows prompts; the fleet's own answers show the fleet's lengths. They are combined:

    p(y | prompt) ~ w * learned(y / s | prompt) * seen(y) / expected(y) + (1 - w) * online(y)

`s` is the ratio of this fleet's answers to the learned model's predictions (an exponential mean of logs). `seen` and
`expected` are the observed frequencies of lengths and those that the learned model expected. They turn its distribution
over all prompts into the fleet's (a correction for prior shift: Saerens et al., Neural Computation 14, 2002). `w` is
the posterior weight of the learned model against the fleet's histogram, from their fading log-likelihoods. If prompts
have no effect on lengths (an emulated engine), the histogram gets all the weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log

import numpy as np

from predictors.analytic.length_table import BINS, EDGES, LengthTable, bin_of
from predictors.online.length import LengthDistribution

#: Prior mean prompt in tokens: between the means of the Azure trace (1,180) and of ShareGPT (250).
PRIOR_PROMPT_TOKENS = 500.0
_PROMPT_MEMORY = 64

#: The weight of the learned model's own marginal, in pseudo-observations.
_INERTIA = 16.0
_MAX_WEIGHT = 2048.0
#: Log odds of the learned model before any observation, and how quickly evidence fades.
_PRIOR_LOG_ODDS = 2.2
_EVIDENCE_MEMORY = 0.98
_MOST_EVIDENCE = 30.0
#: Shares are compared over neighbouring bins: single bins have too few observations.
_KERNEL = np.array([1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]) / 16.0

_SCALE_MEMORY = 256
_LEAST_SHARE = 1e-9
#: A smaller difference of scale is ignored.
_LEAST_LOG_SCALE = 0.02
_EDGES = np.array(EDGES)

Shares = np.ndarray  # (BINS,) of one output length


def _median(shares: Shares) -> float:
    below = np.cumsum(shares)
    at = int(np.searchsorted(below, 0.5 * below[-1]))
    return float(max(1.0, 0.5 * (_EDGES[at] + _EDGES[min(at + 1, BINS)])))


class LearnedLengths:
    """The correction of a learned length distribution for one model of the fleet."""

    __slots__ = ("_expected", "_observed", "_seen", "_weight", "evidence", "log_scale", "ratio")

    def __init__(self) -> None:
        self._seen = np.zeros(BINS)
        self._expected = np.zeros(BINS)
        self._weight = 0.0
        self.ratio: Shares = np.ones(BINS)  # the ratio of observed to expected frequencies
        self.evidence = 0.0
        self.log_scale = 0.0
        self._observed = 0

    @property
    def weight(self) -> float:
        """The weight of the learned model in [0, 1]; the rest is the histogram's."""
        return 1.0 / (1.0 + exp(-(_PRIOR_LOG_ODDS + self.evidence)))

    def table(self, predicted: Shares, online: LengthTable) -> LengthTable:
        """The final distribution."""
        return served_tables([self], predicted[None], [online])[0]

    def observe(self, predicted: Shares, online: LengthTable, tokens: int, censored: bool) -> None:
        """Learn from an answer of `tokens`, for which the model had predicted `predicted`. `censored`: it stopped at
        its cap."""
        at = bin_of(tokens)
        ((scaled,), (corrected,)) = _corrected([self], predicted[None])
        if censored:
            ours, theirs = corrected[at:].sum(), sum(online.shares[at:])
        else:
            ours, theirs = corrected[at], online.shares[at]
        evidence = _EVIDENCE_MEMORY * self.evidence + log(max(ours, 1e-9) / max(theirs, 1e-9))
        self.evidence = max(-_MOST_EVIDENCE, min(_MOST_EVIDENCE, evidence))
        if self._weight >= _MAX_WEIGHT:
            self._seen *= 0.5
            self._expected *= 0.5
            self._weight *= 0.5
        self._weight += 1.0
        self._expected += scaled
        if censored:
            self._seen[at:] += corrected[at:] / max(corrected[at:].sum(), 1e-12)
        else:
            self._seen[at] += 1.0
        prior = _INERTIA / self._weight * self._expected
        seen = np.convolve(self._seen + prior, _KERNEL, "same")
        expected = np.convolve(self._expected + prior, _KERNEL, "same")
        self.ratio = seen / np.maximum(expected, 1e-12)
        self._observed += 1
        rate = 1.0 / (min(self._observed, _SCALE_MEMORY) + _INERTIA)
        error = log(max(tokens, 1) / _median(scaled))
        self.log_scale += rate * (max(error, 0.0) if censored else error)


def served_tables(
    learned: Sequence[LearnedLengths], predicted: np.ndarray, online: Sequence[LengthTable]
) -> list[LengthTable]:
    """The final distributions of M models for which a trained model predicted `predicted` (M, BINS)."""
    weights = np.array([[each.weight] for each in learned])
    seen = np.array([each.shares for each in online])
    return LengthTable.of_each(weights * _corrected(learned, predicted)[1] + (1.0 - weights) * seen)


def _corrected(learned: Sequence[LearnedLengths], predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(M, BINS) twice: the prediction stretched by the scale, and the same corrected by the observed frequencies."""
    scaled = predicted
    if any(abs(each.log_scale) >= _LEAST_LOG_SCALE for each in learned):
        scaled = predicted.copy()
        below = np.zeros((len(predicted), BINS + 1))
        np.cumsum(predicted, axis=1, out=below[:, 1:])
        for row, each in enumerate(learned):
            if abs(each.log_scale) >= _LEAST_LOG_SCALE:
                moved = np.interp(_EDGES * exp(-each.log_scale), _EDGES, below[row])
                moved[0], moved[-1] = 0.0, below[row, -1]
                np.subtract(moved[1:], moved[:-1], out=scaled[row])
                scaled[row] += _LEAST_SHARE
    corrected = scaled * np.array([each.ratio for each in learned])
    corrected /= corrected.sum(axis=1, keepdims=True)
    return scaled, corrected


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
        if predicted is not None:
            self.learned.observe(predicted, self.output, each, censored)
        at = bin_of(each)
        output = self.output
        if output.parent is not None:
            output.parent.observe_bin(at, censored)
        output.observe_bin(at, censored)


class Lengths:
    """`ModelLengths` by model name. Models of one family share."""

    def __init__(self) -> None:
        self._models: dict[str, ModelLengths] = {}
        self._families: dict[str, LengthDistribution] = {}

    def of(self, model: str, family: str | None = None) -> ModelLengths:
        """The entry of a model, created on first use."""
        entry = self._models.get(model)
        if entry is None:
            shared = None
            if family is not None:
                shared = self._families.get(family)
                if shared is None:
                    shared = self._families[family] = LengthDistribution()
            entry = self._models[model] = ModelLengths(shared)
        return entry

    def all(self) -> Iterable[ModelLengths]:
        """Every entry."""
        return self._models.values()

    def weights(self) -> dict[str, float]:
        """By model: the trained model's share."""
        return {model: entry.learned.weight for model, entry in self._models.items()}

    def observe(
        self,
        model: str,
        family: str | None,
        output_tokens: int,
        max_tokens: int | None = None,
        choices: int = 1,
    ) -> None:
        """Learn from a complete answer. `output_tokens` are those of all choices, `max_tokens` caps each."""
        entry = self.of(model, family)
        entry.observe_output(output_tokens, max_tokens, choices)
