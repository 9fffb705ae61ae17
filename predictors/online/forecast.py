"""The forecast from a request's prompt, computed once a request: the length and the quality of each model's answer."""

from __future__ import annotations

from math import exp, log

from predictors.kernels import LengthTable
from predictors.online.model_lengths import Shares

_MOST_LOGIT = 6.0
_LEAST_SHARE = 0.0025


#: Mean and standard deviation; None if unknown. The fleet file's quality has no deviation.
Quality = tuple[float | None, float | None]


class PromptForecast:
    """By model: `predicted` are the length model's shares, `tables` the corrected lengths. `learned` is the relevance
    model's mean quality and its standard deviation, with `trust` that the prompt is similar to its training data, and the prompt's `cluster`.
    `quality` has the final values, by model and the fleet file's quality."""

    __slots__ = ("cluster", "learned", "predicted", "quality", "tables", "trust")

    def __init__(self) -> None:
        self.predicted: dict[str, Shares] = {}
        self.tables: dict[str, LengthTable] = {}
        self.learned: dict[str, tuple[float, float]] = {}
        self.trust = 0.0
        self.cluster: int | None = None
        self.quality: dict[tuple[str, float | None], Quality] = {}


def blended(prior: float | None, learned: tuple[float, float] | None, trust: float) -> Quality:
    """The expected quality before feedback: the fleet file's `prior` and the learned one, blended in log-odds.

        logit(quality) = (1 - trust) * logit(prior) + trust * logit(learned)

    The standard deviation is that of the learned part.
    """
    if learned is None or (prior is not None and trust <= 0.0):
        return prior, None
    mean, deviation = learned
    if prior is None:
        return mean, deviation
    quality = sigmoid((1.0 - trust) * logit(prior) + trust * logit(mean))
    return quality, deviation * trust * quality * (1.0 - quality) / max(mean * (1.0 - mean), _LEAST_SHARE)


def logit(share: float) -> float:
    """The log-odds of a share, cut near 0 and 1."""
    share = min(max(share, _LEAST_SHARE), 1.0 - _LEAST_SHARE)
    return log(share / (1.0 - share))


def sigmoid(logit: float) -> float:
    """The share with these log-odds."""
    return 1.0 / (1.0 + exp(-min(max(logit, -_MOST_LOGIT), _MOST_LOGIT)))
