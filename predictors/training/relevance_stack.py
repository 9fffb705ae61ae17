"""The weights of the experts, fitted on prompts that they had not seen.

On each scale an expert's departures are split into what all models have in common (how hard the prompt is) and what is
particular to a model. The common part decides how good an answer will be, the particular part which model to pick. The
particular part is noisier, and a picker that follows noise is worse than one that always picks the best model. So each
part of each expert has its own weight, by likelihood, which begins at 1 for the tasks, whose qualities are pooled, and at
0 for what the others say beyond them: a difference that is not credible does not move a pick.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from predictors.training.relevance_labels import Labels

#: How strongly weights are held where they begin. A scale with little data keeps them there.
_RIDGE = 20.0


@dataclass(frozen=True)
class Trust:
    """The weights of one scale: of the common and the particular part of each expert, and a constant."""

    constant: float
    common: tuple[float, ...]
    particular: tuple[float, ...]

    def weighed(self, departures: np.ndarray, expert: int) -> np.ndarray:
        """An expert's departures of the heads of this scale (last axis), weighed."""
        common = departures.mean(axis=-1, keepdims=True)
        return np.asarray(self.common[expert] * common + self.particular[expert] * (departures - common))


def fit_trust(labels: Labels, prior: np.ndarray, departures: np.ndarray) -> list[Trust]:
    """Weights by scale, by maximum likelihood on soft labels. `prior` (P, H) and `departures` (experts, P, H; the tasks are the
    last) are predicted for prompts that the experts were not fitted on, departures as far as they are faded in."""
    return [
        _of_scale(labels, prior, departures, labels.heads_on(scale)) for scale in range(len(labels.scales))
    ]


def _of_scale(labels: Labels, prior: np.ndarray, departures: np.ndarray, heads: np.ndarray) -> Trust:
    quality = labels.quality[:, heads]
    rated = (~np.isnan(quality)).any(axis=1)
    quality = quality[rated]
    experts = departures[:, rated][:, :, heads]
    common = np.broadcast_to(experts.mean(axis=2, keepdims=True), experts.shape)
    particular = experts - common
    there = ~np.isnan(quality)
    given = np.concatenate([np.ones((1, int(there.sum()))), common[:, there], particular[:, there]]).T
    actual, offset = quality[there].astype(float), prior[rated][:, heads][there].astype(float)
    count = len(experts)
    of_tasks = [*[0.0] * (count - 1), 1.0]
    start = np.array([0.0, *of_tasks, *of_tasks])

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logit = offset + given @ weights
        value = np.logaddexp(0.0, logit) - actual * logit
        slope = given.T @ (1.0 / (1.0 + np.exp(-logit)) - actual)
        away = weights - start
        return float(value.sum() + _RIDGE / 2 * away @ away), slope + _RIDGE * away

    bounds = [(-1.0, 1.0), *[(0.0, 2.0)] * (2 * count)]
    constant, *weights = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x.tolist()
    return Trust(constant, tuple(weights[:count]), tuple(weights[count:]))
