"""The experts of relevance, each fitted on its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.cluster import KMeans
from sklearn.linear_model import Ridge
from torch import nn

from predictors.kernels.reference.relevance_network import Prototypes
from predictors.learned.text import COUNTS
from predictors.training.prompt_vectors import Scale, Settings, train_network
from predictors.training.relevance_labels import Labels, priors
from predictors.training.relevance_pooling import pooled_departures

# --- the network ----------------------------------------------------------------------------------------
_HIDDEN = 256
_MEMBERS = 2
_SETTINGS = Settings(epochs=30, batch=256, rate=3e-3, decay=1e-2)
_DROPPED = 0.5


@dataclass(frozen=True)
class Network:
    """Departures in log-odds: max(x @ hidden + hidden_bias, 0) @ out + out_bias. Members of the ensemble lie side by
    side in the hidden layer."""

    hidden: np.ndarray  # (X, N)
    hidden_bias: np.ndarray  # (N,)
    out: np.ndarray  # (N, H)
    out_bias: np.ndarray  # (H,)

    def departures(self, vectors: np.ndarray) -> np.ndarray:
        """(P, H) of vectors (P, X)."""
        return np.asarray(
            np.maximum(vectors @ self.hidden + self.hidden_bias, 0.0) @ self.out + self.out_bias
        )


def fit_network(vectors: np.ndarray, labels: Labels, rows: np.ndarray, seed: int) -> Network:
    """An ensemble of networks with one hidden layer that all heads share, fitted on some rows with soft labels. A
    prompt weighs as the root of its number of answers, since the answers to one prompt are much alike."""
    members = [_fit_member(vectors[rows], labels.quality[rows], seed + member) for member in range(_MEMBERS)]
    return Network(
        np.concatenate([member.hidden for member in members], axis=1),
        np.concatenate([member.hidden_bias for member in members]),
        np.concatenate([member.out for member in members]) / _MEMBERS,
        np.mean([member.out_bias for member in members], axis=0),
    )


def _fit_member(vectors: np.ndarray, quality: np.ndarray, seed: int) -> Network:
    torch.manual_seed(seed)
    scale = Scale(vectors)
    given = torch.from_numpy(scale(vectors))
    there = torch.from_numpy((~np.isnan(quality)).astype(np.float32))
    actual = torch.from_numpy(np.nan_to_num(quality))
    weight = there / there.sum(dim=1, keepdim=True).clamp(min=1.0).sqrt()
    prior = torch.from_numpy(priors(quality))
    hidden, out = nn.Linear(given.shape[1], _HIDDEN), nn.Linear(_HIDDEN, quality.shape[1])
    with torch.no_grad():
        out.weight.mul_(0.1)
        out.bias.zero_()
    network = nn.Sequential(nn.Dropout(_DROPPED / 2), hidden, nn.ReLU(), nn.Dropout(_DROPPED), out)
    loss_of = nn.BCEWithLogitsLoss(reduction="none")

    def loss(rows: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = (loss_of(prior + found, actual[rows]) * weight[rows]).sum() / weight[rows].sum()
        return total

    train_network(network, given, torch.arange(len(given)), loss, seed, _SETTINGS)
    first, bias = scale.folded(hidden.weight.detach().numpy().T, hidden.bias.detach().numpy())
    return Network(first, bias, out.weight.detach().numpy().T, out.bias.detach().numpy())


# --- the lexicon ----------------------------------------------------------------------------------------
_SCORES_A_SCALE = 3
_RIDGE = 4.0
#: A floor for means near 0 or 1: log-odds there change by at most 1 / this for each unit of quality.
_LEAST_SLOPE = 0.02


@dataclass(frozen=True)
class Lexicon:
    """Departures in log-odds: (weights of grams @ grams) @ out."""

    grams: np.ndarray  # (G, L)
    out: np.ndarray  # (L, H)

    def departures(self, weights: scipy.sparse.csr_matrix) -> np.ndarray:
        """(P, H) of weights of grams (P, G)."""
        return np.asarray((weights @ self.grams) @ self.out)


def fit_lexicon(weights: scipy.sparse.csr_matrix, labels: Labels, rows: np.ndarray) -> Lexicon:
    """By scale: the main patterns over models in which quality departs from the models' means, and ridge regressions of
    the amount of each pattern on the weights of a prompt's grams."""
    quality = labels.quality[rows]
    mean = 1.0 / (1.0 + np.exp(-priors(quality)))
    coefficients, outs = [], []
    for scale in range(len(labels.scales)):
        heads = labels.heads_on(scale)
        there = ~np.isnan(quality[:, heads])
        rated = there.any(axis=1)
        if not rated.any():
            continue
        departed = np.nan_to_num(quality[:, heads] - mean[heads])[rated]
        # A missing answer counts as no departure. The rest is scaled up, by how few answered.
        answered = there[rated].mean(axis=1)
        _, _, patterns = np.linalg.svd(departed, full_matrices=False)
        patterns = patterns[:_SCORES_A_SCALE]
        amounts = (departed @ patterns.T) / answered[:, None]
        ridge = Ridge(alpha=_RIDGE, solver="sparse_cg", fit_intercept=True)
        ridge.fit(weights[rows[rated]], amounts, sample_weight=answered / answered.mean())
        coefficients.append(np.atleast_2d(ridge.coef_).T)
        # A small step in quality as a step in log-odds.
        out = np.zeros((len(patterns), quality.shape[1]))
        out[:, heads] = patterns / np.maximum(mean[heads] * (1.0 - mean[heads]), _LEAST_SLOPE)
        outs.append(out)
    return Lexicon(np.concatenate(coefficients, axis=1), np.concatenate(outs))


# --- the prototypes -------------------------------------------------------------------------------------
_PROMPTS_A_PROTOTYPE = 40
_MOST_PROTOTYPES = 384
#: Quantiles of the nearness of prompts to their prototype. Half of the first means no trust, the second full trust.
_NEAR = (0.01, 0.05)


def fit_prototypes(
    vectors: np.ndarray, labels: Labels, rows: np.ndarray, seed: int
) -> tuple[Prototypes, np.ndarray]:
    """(prototypes, (K, H) departures of each head's quality there from its mean, in log-odds)."""
    directions = vectors[rows, : -len(COUNTS) - 1]
    count = int(np.clip(len(rows) // _PROMPTS_A_PROTOTYPE, 1, _MOST_PROTOTYPES))
    means = KMeans(count, n_init=1, random_state=seed).fit(directions)
    centres = means.cluster_centers_
    centres = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-9)
    likeness = directions @ centres.T
    nearest = likeness.argmax(axis=1)
    _, departures = pooled_departures(labels, rows, nearest, count)
    counts = np.zeros((count, len(labels.scales)))
    for scale in range(len(labels.scales)):
        rated = (~np.isnan(labels.quality[np.ix_(rows, labels.heads_on(scale))])).any(axis=1)
        np.add.at(counts[:, scale], nearest, rated)
    low, high = np.quantile(likeness.max(axis=1) * vectors[rows, -1], _NEAR)
    near = (float(low) / 2.0, max(float(high), float(low) / 2.0 + 1e-3))
    return Prototypes(centres.astype(np.float32), counts.astype(np.float32), near), departures


# --- the tasks ------------------------------------------------------------------------------------------
_PROMPTS_OF_TASK = 20
_TASK_RIDGE = 1.0
_TASK_STEPS = 60


@dataclass(frozen=True)
class Tasks:
    """Departures from the prior in log-odds: softmax(x @ weights + bias) @ departures. The softmax is the probability of
    each task."""

    weights: np.ndarray  # (X, T)
    bias: np.ndarray  # (T,)
    departures: np.ndarray  # (T, H)
    prior: np.ndarray  # (H,) log-odds of the heads' means

    def of(self, vectors: np.ndarray) -> np.ndarray:
        """(P, T) probabilities of the tasks, of vectors (P, X)."""
        return np.asarray(softmax(vectors @ self.weights + self.bias, axis=1))


def fit_tasks(vectors: np.ndarray, labels: Labels, rows: np.ndarray) -> Tasks:
    """A logistic regression from prompts to tasks, and the quality of the models at each task. Rare tasks, and prompts
    without one, form one task for each source."""
    prompts = [labels.prompts[row] for row in rows]
    often = Counter((prompt.source, prompt.task) for prompt in prompts)
    names = [
        f"{prompt.source}/{prompt.task}"
        if prompt.task and often[prompt.source, prompt.task] >= _PROMPTS_OF_TASK
        else prompt.source
        for prompt in prompts
    ]
    found, task = np.unique(names, return_inverse=True)
    scale = Scale(vectors[rows])
    given = np.column_stack([scale(vectors[rows]), np.ones(len(rows))])
    actual = np.eye(len(found))[task]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(given.shape[1], len(found))
        log_shares = log_softmax(given @ weights, axis=1)
        slope = given.T @ (np.exp(log_shares) - actual) + _TASK_RIDGE * weights
        value = _TASK_RIDGE / 2 * float(flat @ flat) - float((actual * log_shares).sum())
        return value, slope.ravel()

    start = np.zeros(given.shape[1] * len(found))
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _TASK_STEPS}).x
    *weights, bias = best.reshape(given.shape[1], len(found))
    prior, departures = pooled_departures(labels, rows, task, len(found))
    return Tasks(*scale.folded(np.stack(weights), bias), departures, prior)
