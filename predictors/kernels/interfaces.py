"""What kernels read of the objects that they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class LogError(Protocol):
    """The distribution of one log error."""

    def quantile(self, probability: float) -> float:
        """The log error not exceeded with this probability."""
        ...

    def exceed(self, residual: float) -> float:
        """P(log error > residual)."""
        ...


class ErrorWindow(LogError, Protocol):
    """A distribution that is read from a window of observed errors (`predictors.kernels.reference.residuals`)."""

    values: list[float]
    bias: float
    tail: float
    median: float
    count: int
    factors: tuple[float, float, float]

    def quantiles(self, probabilities: Sequence[float]) -> list[float]:
        """The log errors not exceeded with these probabilities."""
        ...


class Lengths(Protocol):
    """A distribution of lengths (`predictors.kernels.reference.lengths.LengthTable`)."""

    @property
    def curve(self) -> np.ndarray: ...


class Answer(Protocol):
    """A named tuple that begins with the distribution of one choice's length, the most tokens of a choice (None: no
    bound), and the number of choices."""

    @property
    def table(self) -> Lengths: ...
    @property
    def cap(self) -> int | None: ...
    @property
    def choices(self) -> int: ...


class CappedLength(Protocol):
    """The length of an answer under a cap (`predictors.analytic.answer_length.AnswerLength`)."""

    @property
    def mean(self) -> float: ...
    @property
    def long_mean(self) -> float: ...
    @property
    def usual_mean(self) -> float: ...
    @property
    def usual_capped(self) -> float: ...


class StepConstants(Protocol):
    """The constants of an engine's steps, in wall seconds (`predictors.analytic.physical.StepCosts`)."""

    overhead_s: float
    floor_s: float
    token_s: float
    extra_s: float
    seq_s: float
    kv_token_s: float
    pair_s: float
    load_s: float
    kv_capacity_tokens: int
    batched_tokens: int
    seats: int


class PromptLengths(Protocol):
    """What is known of a model's prompts (`predictors.online.model_lengths.ModelLengths`)."""

    prompt_ratio: float
    mean_prompt_tokens: float


class Rate(Protocol):
    """A rate of prefills (`predictors.analytic.physical.PrefillRate`)."""

    def tokens_per_s(self, now: float) -> float: ...


class Windows(Protocol):
    """The window to read, by stratum of load (`predictors.kernels.reference.residuals.StratifiedResiduals`)."""

    @property
    def windows(self) -> Sequence[ErrorWindow]: ...


class Shrinks(Protocol):
    """How far an estimate is drawn towards its mean (`predictors.kernels.reference.residuals.Shrinkage`)."""

    def shrunk(self, estimate_s: float) -> float: ...


class CandidateErrors(Protocol):
    """What is kept of a candidate (`predictors.online.candidate_stats.CandidateStats`)."""

    @property
    def costs(self) -> StepConstants: ...
    @property
    def lengths(self) -> PromptLengths: ...
    @property
    def prefills(self) -> Rate: ...
    @property
    def ttft(self) -> Windows: ...
    @property
    def tpot(self) -> Windows: ...
    @property
    def shrinkage(self) -> Shrinks: ...
