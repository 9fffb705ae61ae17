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
    """A distribution that is read from a window of observed errors (`predictors.online.residuals`)."""

    values: list[float]
    bias: float
    tail: float

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
