"""What the latency model has to beat, fitted to the same target rows, lags included: gradient-boosted trees (one for each
quantile) and a linear model. They have no calibration of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from predictors.kernels.levels import TAUS
from predictors.training.replay import Episode

TREES, LINEAR = "gradient-boosted trees", "linear"
#: Log seconds (N, 2, 5) of an episode's requests.
Baseline = Callable[[Episode], np.ndarray]

#: Trees are fitted to at most this many requests, drawn at random.
_MOST_REQUESTS = 40_000
ROUNDS = 200
MOST_RESIDUAL = 4.0


def grown(seed: int, rows: tuple[np.ndarray, ...], **settings: Any) -> HistGradientBoostingRegressor:
    """Trees with this loss and maybe other settings, fitted to rows, residuals and maybe weights."""
    usual = {"max_iter": ROUNDS, "learning_rate": 0.07, "min_samples_leaf": 20, "random_state": seed}
    trees = HistGradientBoostingRegressor(**usual | settings)
    # More threads than idle cores wait for each other for minutes.
    with threadpool_limits(limits=1):
        return trees.fit(*rows)


def fit_trees(found: Sequence[Episode], seed: int) -> Baseline:
    """One model a quantile, of the log residual to the corrected estimate."""
    models = [
        [grown(seed, rows, loss="quantile", quantile=tau) for tau in TAUS]
        for rows in (target_rows(found, time, seed) for time in range(2))
    ]

    def predict(episode: Episode) -> np.ndarray:
        corrections = np.stack([[model.predict(episode.targets) for model in of_time] for of_time in models])
        ordered = np.sort(corrections.transpose(2, 0, 1), axis=2)
        return np.asarray(episode.corrected[:, :, None] + ordered)

    return predict


def fit_linear(found: Sequence[Episode], seed: int) -> Baseline:
    """Ridge on standardised features; its quantiles are those of its residuals."""
    parts = []
    for time in range(2):
        features, residual, weight = target_rows(found, time, seed)
        mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
        model = Ridge(alpha=1.0).fit((features - mean) / scale, residual, weight)
        left = residual - model.predict((features - mean) / scale)
        parts.append((model, mean, scale, np.quantile(left, TAUS)))

    def predict(episode: Episode) -> np.ndarray:
        corrections = [
            model.predict((episode.targets - mean) / scale)[:, None] + quantiles
            for model, mean, scale, quantiles in parts
        ]
        return np.asarray(episode.corrected[:, :, None] + np.stack(corrections, axis=1))

    return predict


def target_rows(
    found: Sequence[Episode], time: int, seed: int, most: int = _MOST_REQUESTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(target rows, log residual, weight) of requests whose TTFT (`time` 0) or TPOT (1) is known; every source weighs
    as the square root of its requests, as in training the model."""
    features = np.concatenate([each.targets for each in found])
    residual = np.concatenate([each.residual[:, time] for each in found])
    sources = np.concatenate([np.repeat(each.run.source, len(each.targets)) for each in found])
    _, of, counts = np.unique(sources, return_inverse=True, return_counts=True)
    weight = counts[of] ** -0.5
    known = np.flatnonzero(np.isfinite(residual))
    if len(known) > most:
        known = np.random.default_rng(seed).choice(known, most, replace=False)
    if not len(known):
        return np.zeros((2, features.shape[1])), np.zeros(2), np.ones(2)
    return features[known], np.clip(residual[known], -MOST_RESIDUAL, MOST_RESIDUAL), weight[known]
