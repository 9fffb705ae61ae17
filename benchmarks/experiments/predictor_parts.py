"""The predictor that serves with parts left out or replaced.

The predictor itself has no switch. Trained models are replaced among those that it is given. What it learns online is set back
before each prediction, or kept in an object that does not learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks.simulator import Arrival
from predictors.kernels import ModelWeight, Offsets
from predictors.kernels.length_bins import BINS, bin_of
from predictors.kernels.levels import TAUS
from predictors.learned.length_model import LengthModel
from predictors.learned.models import Models, load_models
from predictors.online.candidate_stats import CandidateStats
from predictors.online.length import LengthDistribution
from predictors.online.prediction import Predictions
from predictors.online.predictor import OnlinePredictor
from router.config import FleetConfig
from router.core.interfaces import Option
from router.core.types import PromptFeatures, Request

if TYPE_CHECKING:
    from benchmarks.experiments.latency_fits import LatencyFit  # imports torch

#: Observations after which the latency model has 99.6 % of the weight, which does not grow much further.
_RIGHT = 50
SHIPPED: Literal["shipped"] = "shipped"
#: What is known of an answer's length: nothing but the prior, the mean of the model's answers, their running histogram, what
#: a length model says of the prompt, or the length itself.
Lengths = Literal["prior", "mean", "histogram", "shipped", "true"] | Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Parts:
    """What predicts. `latency` is the latency model, None for the physical estimate alone. `weighed`: by the records of both;
    else the model alone. `calibrated`: with the online offsets of quantiles. `corrected`: the estimate's own errors are
    learned. `lengths` may be the arrays of a length model."""

    latency: LatencyFit | Literal["shipped"] | None = SHIPPED
    weighed: bool = True
    calibrated: bool = True
    corrected: bool = True
    lengths: Lengths = "histogram"

    def predictor(
        self, config: FleetConfig, mean_tokens: Callable[[], Mapping[str, float]]
    ) -> PartialPredictor:
        """The predictor in its first state. `mean_tokens` gives the mean of answers by model, if that is what is known."""
        shipped = load_models()
        latency: Any = shipped.latency
        if self.latency != SHIPPED:
            latency = None if self.latency is None else self.latency.model()
        length: Any = None
        if self.lengths == "true":
            length = _TrueLengths([each.name for each in config.models])
        elif self.lengths == "shipped":
            length = shipped.length
        elif isinstance(self.lengths, Mapping):
            length = LengthModel(self.lengths)
        memory = None if latency is None else shipped.memory
        predictor = PartialPredictor(self, Models(latency=latency, length=length, memory=memory))
        if self.lengths in ("prior", "mean"):
            means = mean_tokens() if self.lengths == "mean" else {}
            for each in config.models:
                known = means.get(each.name)
                predictor.stats.lengths.of(each.name, each.family).output = _Fixed(known)
        return predictor

    def arrivals(self, config: FleetConfig, found: Iterable[Arrival]) -> Iterator[Arrival]:
        """The requests as this predictor sees them."""
        for arrival in found:
            if self.lengths == "true":
                tokens = tuple(arrival.output_tokens[each.name] for each in config.models)
                arrival.request.features = PromptFeatures((), (), tokens)
            yield arrival


class PartialPredictor(OnlinePredictor):
    """See the module's docstring."""

    def __init__(self, parts: Parts, models: Models) -> None:
        super().__init__(models)
        self._parts = parts

    def predict_all(self, request: Request, options: Sequence[Option], now: float) -> Predictions:
        for option in options:
            self._set_back(self.stats.of(option.candidate, option.instance))
        return super().predict_all(request, options, now)

    def _set_back(self, of: CandidateStats) -> None:
        if not self._parts.weighed and not isinstance(of.weights[0], _ModelAlone):
            of.weights = _ModelAlone(), _ModelAlone()
        if not self._parts.calibrated:
            of.group.offsets = Offsets(), Offsets()
        if not self._parts.corrected:
            of.forget_errors()
            self.stats.changed()


class _ModelAlone(ModelWeight):
    """Nearly all weight to the latency model, which was right often where the physical estimate was far off. It learns no
    more."""

    def __init__(self) -> None:
        super().__init__()
        right, wrong = (0.0,) * len(TAUS), (10.0,) * len(TAUS)
        for _ in range(_RIGHT):
            super().learn((*right, *wrong, *right), 0.0)

    def learn(self, quantiles: Sequence[float], actual: float) -> None:
        pass


class _Fixed(LengthDistribution):
    """Lengths that do not learn: the prior, or one length."""

    def __init__(self, tokens: float | None) -> None:
        super().__init__()
        if tokens is not None:
            self.take(_at(round(tokens)))

    def observe_bin(self, at: int, censored: bool) -> None:
        self.observed += 1


class _TrueLengths:
    """A length model that reads the true lengths of a request's answers from its features (`Parts.arrivals`)."""

    def __init__(self, models: Sequence[str]) -> None:
        self._place = {name: at for at, name in enumerate(models)}

    def shares(self, features: PromptFeatures, models: Sequence[tuple[str, str | None]]) -> np.ndarray:
        return np.stack([_at(features.counts[self._place[name]]) for name, _ in models])


def _at(tokens: int) -> np.ndarray:
    """(BINS,) shares of one length."""
    shares = np.full(BINS, 1e-9)
    shares[bin_of(max(1, tokens))] = 1.0
    return np.asarray(shares / shares.sum())
