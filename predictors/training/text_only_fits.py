"""The fits of the text-only estimators: clusters, regressions, two heads, factors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from predictors.training.prompt_vectors import Arrays, Scale, Settings, train_network

# --- clusters -------------------------------------------------------------------------------------------
#: In a cluster, what the model does elsewhere at prompts of this level counts as so many answers.
_LEANING = 8.0
_LENGTH_LEANING = 3.0


def fit_clusters(
    vectors: np.ndarray,
    answers: tuple[np.ndarray, np.ndarray],
    priors: tuple[np.ndarray, np.ndarray],
    count: int,
    seed: int,
) -> Arrays:
    """k-means of the directions (P, D). `answers` and `priors` are (quality, tokens) of (P, H); answers are NaN where
    there is none, priors are the expectation of each cell."""
    found = KMeans(min(count, len(vectors)), n_init=3, random_state=seed).fit(vectors)
    centres = found.cluster_centers_
    centres = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-9)
    means = []
    for values, prior, leaning in zip(answers, priors, (_LEANING, _LENGTH_LEANING), strict=True):
        table = np.empty((len(centres), values.shape[1]))
        for cluster in range(len(centres)):
            rows = found.labels_ == cluster
            lean = leaning * prior[rows].mean(axis=0)
            many = (~np.isnan(values[rows])).sum(axis=0)
            table[cluster] = (np.nansum(values[rows], axis=0) + lean) / (many + leaning)
        means.append(table)
    return {"centres": centres, "cluster_quality": means[0], "cluster_tokens": means[1]}


# --- regressions ----------------------------------------------------------------------------------------
_LENGTH_PENALTY = 30.0
#: Predicted lengths stay between these quantiles of the model's own.
_LENGTH_BOUNDS = (0.01, 0.99)


def fit_logistic(
    vectors: np.ndarray, quality: np.ndarray, weight: np.ndarray, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    """(weights (X, H), bias (H,)) of one logistic regression for each model with soft labels: each answer counts as a
    good one and a bad one, weighed by its quality. `penalty` is sklearn's C."""
    scale = Scale(vectors)
    given = scale(vectors)
    weights, bias = np.zeros((given.shape[1], quality.shape[1])), np.zeros(quality.shape[1])
    for head in range(quality.shape[1]):
        shares = np.concatenate(
            [weight[:, head] * quality[:, head], weight[:, head] * (1.0 - quality[:, head])]
        )
        labels = np.repeat([1, 0], len(given))
        counted = shares > 1e-6
        if len(set(labels[counted].tolist())) < 2:
            chance = float(np.clip(np.average(quality[:, head], weights=weight[:, head] + 1e-9), 0.01, 0.99))
            bias[head] = np.log(chance / (1.0 - chance))
            continue
        found = LogisticRegression(C=penalty, max_iter=300)
        found.fit(np.concatenate([given, given])[counted], labels[counted], shares[counted])
        weights[:, head], bias[head] = found.coef_[0], found.intercept_[0]
    return scale.folded(weights, bias)


def fit_ridge(vectors: np.ndarray, log_tokens: np.ndarray, guess: np.ndarray) -> Arrays:
    """Ridge regressions of log length, one for each model. `guess` (P, H) stands in for cells without a length, at a
    small weight. Zero for models without any length."""
    scale = Scale(vectors)
    given = scale(vectors)
    heads = log_tokens.shape[1]
    weights, bias = np.zeros((given.shape[1], heads)), np.zeros(heads)
    low, high, spread = np.zeros(heads), np.zeros(heads), np.zeros(heads)
    there = ~np.isnan(log_tokens)
    seen = there.any(axis=1)
    for head in np.flatnonzero(there.any(axis=0)):
        own = there[:, head]
        actual = np.where(own, np.nan_to_num(log_tokens[:, head]), guess[:, head])
        found = Ridge(_LENGTH_PENALTY).fit(given[seen], actual[seen], np.where(own, 1.0, 0.1)[seen])
        weights[:, head], bias[head] = found.coef_, found.intercept_
        low[head], high[head] = np.quantile(log_tokens[own, head], _LENGTH_BOUNDS)
        spread[head] = np.mean((found.predict(given[own]) - actual[own]) ** 2) / 2.0
    weights, bias = scale.folded(weights, bias)
    return {
        "ridge": weights,
        "ridge_bias": bias,
        "length_low": low,
        "length_high": high,
        "spread": np.minimum(spread, 0.5),
    }


# --- networks -------------------------------------------------------------------------------------------
BUCKETS = 10
_HIDDEN = 64
_RANK = 16
_SETTINGS = Settings(epochs=25, batch=128, rate=3e-3, decay=3e-2, least_steps=600)
_DROPPED = 0.4
_LENGTH_SHARE = 0.3


def fit_two_heads(
    vectors: np.ndarray, quality: np.ndarray, weight: np.ndarray, log_tokens: np.ndarray, seed: int
) -> Arrays:
    """ECCOS-T: capability and a distribution over buckets of length for each model, from one hidden layer. Buckets hold
    equal shares of each model's own answers. Models without lengths have no buckets."""
    heads = quality.shape[1]
    bucket, means = _bucketed(log_tokens)
    scale = Scale(vectors)
    torch.manual_seed(seed)
    hidden, out = nn.Linear(vectors.shape[1], _HIDDEN), nn.Linear(_HIDDEN, heads * (1 + BUCKETS))
    network = nn.Sequential(nn.Dropout(_DROPPED / 2), hidden, nn.ReLU(), nn.Dropout(_DROPPED), out)
    _start(out, _log_odds(quality, weight))
    actual, counted = torch.from_numpy(quality).float(), torch.from_numpy(weight).float()
    buckets = torch.from_numpy(bucket)
    good, place = (
        nn.BCEWithLogitsLoss(reduction="none"),
        nn.CrossEntropyLoss(reduction="none", ignore_index=-1),
    )

    def loss(rows: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        quality_loss = (good(found[:, :heads], actual[rows]) * counted[rows]).sum() / counted[rows].sum()
        logits = found[:, heads:].reshape(-1, heads, BUCKETS).transpose(1, 2)
        known = (buckets[rows] >= 0).sum().clamp(min=1)
        total: torch.Tensor = quality_loss + _LENGTH_SHARE * place(logits, buckets[rows]).sum() / known
        return total

    _train(network, scale(vectors), counted.sum(dim=1) > 0, loss, seed)
    first, first_bias = scale.folded(_of(hidden.weight).T, _of(hidden.bias))
    return {
        "hidden": first,
        "hidden_bias": first_bias,
        "two_heads": _of(out.weight).T,
        "two_heads_bias": _of(out.bias),
        "bucket_tokens": means,
    }


def _bucketed(log_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bucket of each answer, -1 without a length (P, H); mean tokens of each model's buckets (H, B))."""
    bucket = np.full(log_tokens.shape, -1, dtype=np.int64)
    means = np.zeros((log_tokens.shape[1], BUCKETS))
    for head in range(log_tokens.shape[1]):
        own = np.flatnonzero(~np.isnan(log_tokens[:, head]))
        if not len(own):
            continue
        tokens = np.exp(log_tokens[own, head])
        edges = np.quantile(tokens, np.arange(1, BUCKETS) / BUCKETS)
        places = np.searchsorted(edges, tokens, side="right")
        bucket[own, head] = places
        for each in range(BUCKETS):
            means[head, each] = tokens[places == each].mean() if (places == each).any() else np.median(tokens)
    return bucket, means


def fit_factors(vectors: np.ndarray, quality: np.ndarray, weight: np.ndarray, seed: int) -> Arrays:
    """RouteLLM's bilinear form with K models: w . (v_m * W e) + bias, fitted on whether answers were good. So the
    difference of two models' log-odds is that of the win between them."""
    scale = Scale(vectors)
    torch.manual_seed(seed)
    project = nn.Linear(vectors.shape[1], _RANK, bias=True)
    out = nn.Linear(_RANK, quality.shape[1])
    network = nn.Sequential(nn.Dropout(_DROPPED / 2), project, out)
    _start(out, _log_odds(quality, weight))
    actual, counted = torch.from_numpy(quality).float(), torch.from_numpy(weight).float()
    good = nn.BCEWithLogitsLoss(reduction="none")

    def loss(rows: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = (good(found, actual[rows]) * counted[rows]).sum() / counted[rows].sum()
        return total

    _train(network, scale(vectors), counted.sum(dim=1) > 0, loss, seed)
    projection, shift = scale.folded(_of(project.weight).T, _of(project.bias))
    models = _of(out.weight)
    return {"mf_projection": projection, "mf_models": models, "mf_bias": _of(out.bias) + models @ shift}


def _start(out: nn.Linear, log_odds: np.ndarray) -> None:
    """Start at each model's own mean."""
    with torch.no_grad():
        out.weight.mul_(0.1)
        out.bias.zero_()
        out.bias[: len(log_odds)] = torch.from_numpy(log_odds).float()


def _log_odds(quality: np.ndarray, weight: np.ndarray) -> np.ndarray:
    mean = ((quality * weight).sum(axis=0) + 1.0) / (weight.sum(axis=0) + 2.0)
    return np.asarray(np.log(mean / (1.0 - mean)))


def _train(
    network: nn.Module,
    given: np.ndarray,
    used: torch.Tensor,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    seed: int,
) -> None:
    inputs, rows = torch.from_numpy(given).float(), torch.nonzero(used).flatten()
    train_network(network, inputs, rows, loss, seed, _SETTINGS)


def _of(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().numpy(), dtype=np.float64)
